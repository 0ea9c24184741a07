"""The audit: each rule is broken once, on purpose, and found; a sound run breaks none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from runfold.events.base import Cause
from runfold.events.entry import Entry, Head, decode_entry, encode_entry, hash_entry
from runfold.events.transitions import (
    AttemptStarted,
    ControllerChanged,
    FailureDecided,
    RunAccepted,
    SourceJoined,
    StateChanged,
)
from runfold.replay.audit import FINDINGS_OF_A_RULE_MAX_COUNT, audit
from runfold.replay.history import History, KnownHead
from runfold.replay.rules import RULES
from support.histories import errored_run, failing_run, finished_run, history

Change = Callable[[Entry], Entry]


def rewritten(lines: list[bytes], n: int, change: Change) -> History:
    """A run of which entry `n` was rewritten, and every later one given a new `prev`: only its meaning is wrong."""
    written: list[bytes] = []
    for line in lines:
        entry = decode_entry(line)
        if written:
            entry = msgspec.structs.replace(entry, prev=hash_entry(written[-1]))
        written.append(encode_entry(change(entry) if entry.n == n else entry))
    return history(written)


def with_transition(kind: type, **fields: Any) -> Change:
    """Change fields of the first transition of a kind."""

    def change(entry: Entry) -> Entry:
        items = list(entry.transitions)
        place = next(k for k, item in enumerate(items) if isinstance(item, kind))
        items[place] = msgspec.structs.replace(items[place], **fields)
        return msgspec.structs.replace(entry, transitions=tuple(items))

    return change


def with_fields(**fields: Any) -> Change:
    """Change fields of the entry."""
    return lambda entry: msgspec.structs.replace(entry, **fields)


def again(kind: type) -> Change:
    """Let the entry hold a transition twice."""

    def change(entry: Entry) -> Entry:
        twice = next(item for item in entry.transitions if isinstance(item, kind))
        return msgspec.structs.replace(entry, transitions=(*entry.transitions, twice))

    return change


def broken(run: History) -> set[str]:
    """Ids of the rules that a history breaks, folding left out: most of what is wrong does not fold either."""
    return {finding.rule for finding in audit(run).findings} - {"foldable"}


@pytest.mark.parametrize("lines", [finished_run(), failing_run(), errored_run(), finished_run()[:7]])
def test_sound_runs_are_clean(lines: list[bytes]) -> None:
    report = audit(history(lines))
    assert report.clean, report.findings
    assert (report.entries, len(report.rules)) == (len(lines), len(RULES))


@pytest.mark.parametrize(
    ("rule", "n", "change"),
    [
        ("legal-edges", 12, with_transition(StateChanged, from_state="running", to_state="running")),
        ("legal-edges", 19, with_transition(StateChanged, from_state="scheduling")),
        ("terminal-final", 21, again(StateChanged)),
        ("reason", 11, with_transition(FailureDecided, reason="  ")),
        ("cause", 4, with_transition(StateChanged, cause=Cause(input=9))),
        ("cause", 4, with_transition(StateChanged, cause=Cause(entry=7, input=0))),
        ("cause", 4, with_transition(StateChanged, cause=Cause())),
        ("clock", 6, with_fields(t=0.5)),
        ("attempts", 11, with_transition(AttemptStarted, attempt=3)),
        ("single-writer", 5, with_fields(by="ctl-b2")),
        ("single-writer", 5, with_fields(epoch=2)),
        ("epochs", 0, with_transition(ControllerChanged, epoch=2)),
        ("budgets", 11, with_transition(FailureDecided, spent=2)),
        ("budgets", 11, again(FailureDecided)),
        ("budgets", 11, with_transition(FailureDecided, limit=0)),
        ("incarnations", 1, with_transition(SourceJoined, incarnation=2)),
        ("first-entry", 0, again(RunAccepted)),
    ],
)
def test_each_rule_finds_what_breaks_it(rule: str, n: int, change: Change) -> None:
    report = audit(rewritten(failing_run(), n, change))
    found = [finding for finding in report.findings if finding.rule == rule]
    assert found, report.findings
    assert found[0].n is not None
    assert {result.id for result in report.rules if result.broken} >= {rule}


def test_an_edge_that_is_none_does_not_fold() -> None:
    run = rewritten(failing_run(), 4, with_transition(StateChanged, to_state="finished"))
    assert {finding.rule for finding in audit(run).findings} >= {"legal-edges", "foldable"}


def test_a_changed_entry_breaks_the_chain() -> None:
    lines = failing_run()
    lines[6] = lines[6].replace(b'"index":1', b'"index":2', 1)
    (finding,) = audit(history(lines)).findings
    assert (finding.rule, finding.n) == ("chain", 7)
    assert finding.where is not None


def test_a_missing_entry_breaks_the_numbering() -> None:
    lines = failing_run()
    assert broken(history([*lines[:6], *lines[7:]])) == {"numbering"}


def test_a_stray_is_named_with_its_place() -> None:
    lines = failing_run()
    (finding,) = audit(history([*lines[:6], b"{}", *lines[6:]])).findings
    assert (finding.rule, finding.where and finding.where.sequence) == ("strays", 7)


def test_a_log_shorter_than_a_head_kept_elsewhere_is_found() -> None:
    lines = failing_run()
    head = history(lines).head
    run = history(lines[:-2]).with_heads(KnownHead(kept_by="the assignment", head=head))
    (finding,) = audit(run).findings
    assert (finding.rule, finding.n) == ("head", len(lines) - 2)
    assert "the assignment knows entry 21" in finding.what


def test_a_head_of_other_bytes_is_found_and_one_that_agrees_is_not() -> None:
    run = history(failing_run())
    elsewhere = KnownHead(kept_by="the status", head=Head(n=3, hash=run.links[3].hash))
    assert audit(run.with_heads(elsewhere)).clean
    wrong = KnownHead(kept_by="the status", head=Head(n=3, hash="f" * 64))
    assert broken(run.with_heads(wrong)) == {"head"}


def test_nothing_at_all_is_a_finding() -> None:
    assert broken(history([])) == {"whole"}


def test_many_findings_of_a_rule_are_counted_and_some_shown() -> None:
    lines = finished_run()
    strays = [b"x"] * (FINDINGS_OF_A_RULE_MAX_COUNT + 5)
    report = audit(history([*lines, *strays]))
    assert len(report.findings) == FINDINGS_OF_A_RULE_MAX_COUNT
    assert {rule.id: rule.broken for rule in report.rules}["strays"] == len(strays)


def test_every_rule_says_what_it_means_and_what_to_do_in_one_line() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.meaning
        assert rule.advice
        assert "\n" not in rule.meaning + rule.advice
