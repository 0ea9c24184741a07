"""Rules of the audit that need the state as it was: sound runs keep them, and each is broken once on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from runfold.controller.effects import CAUSE_AWAITED_MAX_S
from runfold.events.base import Cause, Json
from runfold.events.config import CheckpointConfig, FailureConfig
from runfold.events.entry import Entry, encode_entry, hash_entry
from runfold.events.facts import RankStarted
from runfold.events.failures import Failure
from runfold.events.fold import fold_all
from runfold.events.tasks import DELETE
from runfold.events.transitions import (
    AnyTransition,
    CheckpointCommitted,
    FailureDecided,
    FirstCauseRevised,
    TaskClosed,
    TaskOrdered,
)
from runfold.replay.audit import AuditReport, audit
from runfold.replay.history import History, KnownSnapshot
from runfold.replay.show import render_audit
from support.histories import history
from support.runs import Run

Change = Callable[[Entry], Entry]


def checkpointed(run: Run, index: int, **metrics: Json) -> Run:
    """Let every rank report files, and the checkpoint be sealed."""
    name = f"checkpoint_{run.state.checkpoints.base + index:06d}_{run.state.attempt}"
    run.says(*(run.shard(rank.rank, index) for rank in run.group.ranks))
    return run.says(run.sealed(name, metrics or None))


def failing() -> Run:
    """Rank 1 raises, rank 0 follows; another attempt begins."""
    run = Run(2, failure=FailureConfig(max_failures=2)).running()
    return run.says(run.failed(0, "the other one is gone", "peer"), run.failed(1))


def restarted() -> Run:
    """A run whose second attempt is in user code."""
    run = failing()
    run.says(run.exited(0, 1, asked=True, attempt=1), run.exited(1, 1, attempt=1))
    return run.says(run.started(0), run.started(1))


def keeping_one() -> Run:
    """A run that keeps one checkpoint and has committed two, so that the first was deleted."""
    run = Run(2, checkpoint=CheckpointConfig(num_to_keep=1), failure=FailureConfig(max_failures=1)).running()
    checkpointed(run, 0)
    checkpointed(run, 1)
    return run.says(run.task_ended("delete-1"))


def rewritten(run: Run, n: int, change: Change) -> AuditReport:
    """Audit a run of which entry `n` was rewritten and every later one linked anew: only its meaning is wrong."""
    written: list[bytes] = []
    for entry in run.entries:
        linked = msgspec.structs.replace(entry, prev=hash_entry(written[-1])) if written else entry
        written.append(encode_entry(change(linked) if entry.n == n else linked))
    return audit(history(written))


def where(run: Run, kind: type[AnyTransition]) -> int:
    """The number of the first entry with a transition of a kind."""
    return next(entry.n for entry in run.entries if any(isinstance(item, kind) for item in entry.transitions))


def with_transition(kind: type[AnyTransition], **fields: Any) -> Change:
    """Change fields of the first transition of a kind."""

    def change(entry: Entry) -> Entry:
        items = list(entry.transitions)
        place = next(k for k, item in enumerate(items) if isinstance(item, kind))
        items[place] = msgspec.structs.replace(items[place], **fields)
        return msgspec.structs.replace(entry, transitions=tuple(items))

    return change


def with_transitions(*more: AnyTransition) -> Change:
    """Add transitions."""
    return lambda entry: msgspec.structs.replace(entry, transitions=(*entry.transitions, *more))


def without_transition(kind: type[AnyTransition]) -> Change:
    """Take every transition of a kind away."""
    return lambda entry: msgspec.structs.replace(
        entry, transitions=tuple(item for item in entry.transitions if not isinstance(item, kind))
    )


def said(report: AuditReport, rule: str) -> list[str]:
    return [finding.what for finding in report.findings if finding.rule == rule]


def whole(run: Run) -> History:
    return history(run.bytes)


@pytest.mark.parametrize("run", [failing(), restarted(), keeping_one()], ids=["failing", "restarted", "keeping"])
def test_sound_runs_are_clean(run: Run) -> None:
    report = audit(whole(run))
    assert report.clean, report.findings


def test_late_evidence_that_revises_the_first_cause_is_clean() -> None:
    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(0, "the other one is gone", "peer"))
    run.waits(CAUSE_AWAITED_MAX_S)
    run.says(run.failed(1, attempt=1, ago_s=CAUSE_AWAITED_MAX_S + 0.2))
    assert run.the(FirstCauseRevised).failure.rank == 1
    assert audit(whole(run)).clean


# --- first cause


def test_a_decision_on_another_failure_than_the_first_is_found() -> None:
    run = failing()
    n = where(run, FailureDecided)
    other: Failure = run.state.others[0]
    (what,) = said(rewritten(run, n, with_transition(FailureDecided, failure=other)), "first-cause")
    assert "rank 0" in what.partition("though")[0]
    assert "rank 1" in what.partition("though")[2]


def test_a_decision_on_a_failure_that_nobody_told_is_found() -> None:
    run = failing()
    n = where(run, FailureDecided)
    chosen = run.state.failure
    assert chosen is not None
    made_up = msgspec.structs.replace(chosen, cause=Cause(entry=0, input=0))
    found = said(rewritten(run, n, with_transition(FailureDecided, failure=made_up)), "first-cause")
    assert any("which no input tells" in what for what in found)


def test_a_decision_on_an_attempt_that_is_over_is_found() -> None:
    run = failing()
    chosen = run.state.failure
    assert chosen is not None
    other = msgspec.structs.replace(chosen, attempt=7)
    found = said(
        rewritten(run, where(run, FailureDecided), with_transition(FailureDecided, failure=other)), "first-cause"
    )
    assert found == ["decided on a failure of attempt 7 in attempt 1"]


def test_a_revision_the_wrong_way_is_found() -> None:
    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(0, "the other one is gone", "peer"))
    run.waits(CAUSE_AWAITED_MAX_S)
    run.says(run.failed(1, attempt=1, ago_s=CAUSE_AWAITED_MAX_S + 0.2))
    revised = run.the(FirstCauseRevised)
    change = with_transition(FirstCauseRevised, failure=revised.was, was=revised.failure)
    found = said(rewritten(run, where(run, FirstCauseRevised), change), "first-cause")
    assert any("was not the first cause" in what for what in found)
    assert any("comes before it" in what for what in found)


# --- who was heard


def test_a_decision_that_rests_on_a_stale_voice_is_found() -> None:
    run = restarted()
    run.says(run.failed(1, "late", attempt=1))
    late = run.entries[-1].n
    run.says(run.failed(0, "boom"))
    change = with_transition(FailureDecided, cause=Cause(entry=late, input=0))
    n = run.entries[-1].n
    (what,) = said(rewritten(run, n, change), "stale-voices")
    assert "rank_failed of attempt 1, heard of in attempt 2" in what


def test_a_stale_voice_that_changes_nothing_is_counted_and_clean() -> None:
    run = restarted()
    run.says(run.failed(1, "late", attempt=1))
    report = audit(whole(run))
    assert report.clean, report.findings
    assert report.dropped["stale"] == 3
    assert "voices that changed nothing: 3 stale" in next(render_audit(report))


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"attempt": 9}, "of attempt 9, which no entry before had ordered"),
        ({"incarnation": 5}, "of incarnation 5, which no entry before had ordered"),
    ],
)
def test_what_was_done_before_its_entry_stood_is_found(fields: dict[str, int], what: str) -> None:
    run = restarted()
    ahead = msgspec.structs.replace(run.reported(0, 0), **fields)
    report = audit(whole(run.says(ahead)))
    (found,) = said(report, "write-ahead")
    assert found.endswith(what)


def test_ranks_that_started_before_they_were_laid_out_are_found() -> None:
    run = Run(2)
    run.says(run.placed())
    early = RankStarted(source="local", incarnation=1, number=1, attempt=1, rank=0, life=1, pid=1)
    (found,) = said(audit(whole(run.says(early))), "write-ahead")
    assert "rank_started of rank 0 before the group was laid out" in found


def test_strangers_are_no_finding() -> None:
    run = restarted()
    stranger = RankStarted(source="nobody", incarnation=1, number=1, attempt=7, rank=0, life=1, pid=1)
    assert said(audit(whole(run.says(stranger))), "write-ahead") == []


# --- checkpoints


def test_a_commit_of_another_manifest_than_was_sealed_is_found() -> None:
    run = keeping_one()
    n = where(run, CheckpointCommitted)
    found = said(rewritten(run, n, with_transition(CheckpointCommitted, manifest_digest="other")), "lineage")
    assert found == [
        "checkpoint checkpoint_000000_1 is committed and nobody said that its manifest was sealed, or as another one"
    ]


def test_a_commit_without_a_seal_that_was_ordered_is_found() -> None:
    run = Run(2).running()
    run.says(run.sealed("mine"))
    commit = CheckpointCommitted(
        name="mine", index=0, attempt=1, manifest_digest="d-mine", cause=Cause(input=0), reason="because"
    )
    found = said(rewritten(run, run.entries[-1].n, with_transitions(commit)), "lineage")
    assert found == ["checkpoint mine is committed and its seal was not ordered by an earlier entry"]


def test_a_commit_of_an_attempt_that_had_not_begun_is_found() -> None:
    run = keeping_one()
    found = said(
        rewritten(run, where(run, CheckpointCommitted), with_transition(CheckpointCommitted, attempt=4)), "lineage"
    )
    assert "of attempt 4, which had not begun" in found[0]


def test_a_second_commit_of_the_same_checkpoint_is_found() -> None:
    run = keeping_one()
    first = run.entries[where(run, CheckpointCommitted)]
    again = next(item for item in first.transitions if isinstance(item, CheckpointCommitted))
    found = said(rewritten(run, first.n, with_transitions(again)), "lineage")
    assert any("a second time" in what for what in found)


def test_what_is_deleted_must_not_be_among_those_to_keep() -> None:
    run = keeping_one()
    n = next(
        entry.n
        for entry in run.entries
        for item in entry.transitions
        if isinstance(item, TaskOrdered) and item.task.kind == DELETE
    )
    newest = "checkpoint_000001_1"

    def change(entry: Entry) -> Entry:
        items = [
            msgspec.structs.replace(item, task=msgspec.structs.replace(item.task, arguments={"names": [newest]}))
            if isinstance(item, TaskOrdered) and item.task.kind == DELETE
            else item
            for item in entry.transitions
        ]
        return msgspec.structs.replace(entry, transitions=tuple(items))

    found = said(rewritten(run, n, change), "retention")
    assert f"{newest} is to be deleted though it is among those to keep" in found


def test_what_is_kept_beyond_num_to_keep_is_found() -> None:
    run = keeping_one()
    n = [entry.n for entry in run.entries for item in entry.transitions if isinstance(item, CheckpointCommitted)][1]
    found = said(rewritten(run, n, without_transition(TaskOrdered)), "retention")
    assert "more than num_to_keep are kept: checkpoint_000000_1 should go" in found


def test_a_deletion_that_nobody_did_is_found() -> None:
    run = keeping_one()
    n = run.entries[-1].n
    assert isinstance(run.entries[-1].transitions[0], TaskClosed)
    found = said(rewritten(run, n, with_transition(TaskClosed, cause=Cause(entry=0, input=0))), "retention")
    assert found == ["delete-1 is closed as done, and no fact says that the directories are gone"]


# --- snapshots


def test_snapshots_that_are_the_fold_are_clean_and_others_are_found() -> None:
    run = restarted()
    read = whole(run)
    state = fold_all(read.entries[:4])
    good = KnownSnapshot(kept_by="snapshot 3", n=3, hash=read.links[3].hash, state=state)
    assert audit(read.with_snapshots(good)).clean
    wrong = msgspec.structs.replace(good, state=msgspec.structs.replace(state, attempt=9))
    assert said(audit(read.with_snapshots(wrong)), "snapshots") == [
        "snapshot 3 is not the state that the entries up to here fold into"
    ]
    other = msgspec.structs.replace(good, hash="f" * 64)
    assert "was made of an entry with the hash ffffffffffff" in said(audit(read.with_snapshots(other)), "snapshots")[0]
