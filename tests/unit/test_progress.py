"""Progress as plain lines and on a terminal, and how a run's end is told: over the recorded logs of the demo."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import msgspec
import pytest

from runfold.controller.words import entry_words
from runfold.errors import ControllerError, PreemptionError, RunAbortedError, WorkerGroupError
from runfold.events.base import Cause
from runfold.events.beats import RankBeat, RunnerBeat
from runfold.events.counts import counted
from runfold.events.entry import Head
from runfold.events.facts import Reported
from runfold.events.failures import ErrorInfo, Failure, FailureKind
from runfold.events.fold import fold
from runfold.events.state import Aborted, Errored, RunState
from runfold.explain import budgets_text, ending_text, failure_text, metrics_text
from runfold.follow import Told
from runfold.live import LiveProgress
from runfold.progress import REPORT_LINES_BURST_MAX, Line, PlainProgress, progress
from runfold.replay.source import load
from runfold.result import result_of
from support.sources import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runfold.follow import Onlooker

RETRY = ROOT / "tests" / "golden" / "golden-digits-retry.jsonl"


def told() -> Iterator[Told]:
    state: RunState | None = None
    for link in load(RETRY).links:
        state = fold(state, link.entry)
        yield Told(link.entry, state, Head(n=link.entry.n, hash=link.hash))


def final() -> RunState:
    return list(told())[-1].state


def shown(onlooker: Onlooker) -> None:
    for item in told():
        onlooker.entry(item)


def test_plain_lines_tell_every_decision_once_and_every_epoch() -> None:
    out = io.StringIO()
    with progress(out) as onlooker:
        shown(onlooker)
    lines = out.getvalue().splitlines()
    about = [line.split(" s  ")[1].split()[0] for line in lines]
    decided = [word for word in about if word != "report"]
    assert decided == [
        "accepted", "scheduling", "running", "retry", "restarting", "scheduling", "running", "shutting_down", "finished"
    ]  # fmt: skip
    assert sum("worker failure 1 of 1" in line for line in lines) == 1
    assert "accuracy=" in next(line for line in lines if "report 9" in line)


def test_a_report_that_every_rank_made_with_files_is_told_once() -> None:
    first = next(one for one in told() if any(isinstance(item, Reported) for item in one.entry.inputs))
    of_zero = [item for item in first.entry.inputs if isinstance(item, Reported) and item.rank == 0]
    with_files = [msgspec.structs.replace(item, checkpoint=f"c{item.index}") for item in of_zero]
    of_one = [msgspec.structs.replace(item, rank=1) for item in with_files]
    out = io.StringIO()
    plain = PlainProgress(out)
    for reports in (with_files, of_one):
        entry = msgspec.structs.replace(first.entry, inputs=tuple(reports), transitions=())
        plain.entry(Told(entry, first.state, first.head))
    lines = out.getvalue().splitlines()
    assert [line.split()[3] for line in lines] == [str(item.index) for item in of_zero]


def test_a_validation_that_failed_is_told_in_progress_and_result() -> None:
    history = load(ROOT / "tests" / "postmortem" / "archives" / "validation-crash")
    out, state = io.StringIO(), None
    plain = PlainProgress(out)
    for link in history.links:
        state = fold(state, link.entry)
        plain.entry(Told(link.entry, state, Head(n=link.entry.n, hash=link.hash)))
    assert state is not None
    failed = result_of(state, history=lambda: history).failed_validations
    assert failed
    for name, why in failed.items():
        assert why.startswith(f"{name}: its validation failed: ")
        assert f"validation    {why}" in out.getvalue()


def test_a_flood_of_reports_is_thinned_and_it_is_said_how_many_were_left_out() -> None:
    out = io.StringIO()
    plain = PlainProgress(out)
    with_reports = next(t for t in told() if any(isinstance(item, Reported) for item in t.entry.inputs))
    only_reports = msgspec.structs.replace(with_reports.entry, transitions=())
    for _ in range(10 * REPORT_LINES_BURST_MAX):
        plain.entry(Told(only_reports, with_reports.state, with_reports.head))
    plain.entry(list(told())[-1])
    lines = out.getvalue().splitlines()
    assert len(lines) < 4 * REPORT_LINES_BURST_MAX
    assert any("reports before it not shown" in line for line in lines)


def test_what_a_log_says_cannot_take_a_terminal_over() -> None:
    assert "\x1b" not in str(Line(0.0, "retry", "bad \x1b[2J\nnews"))


def test_the_terminal_shows_state_ranks_metrics_and_beats() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    items = list(told())
    with LiveProgress(out) as live:
        for item in items[:-4]:
            live.entry(item)
        rank = RankBeat(rank=1, phase="running", index=42, step=7, memory_bytes=50 * 1024 * 1024, cpu=0.5)
        attempt = items[-5].state.attempt
        beat = {"run": "x", "source": "local", "incarnation": 1, "number": 3, "clock_s": 1.0, "ranks": [rank]}
        live.beat(msgspec.convert({**beat, "attempt": attempt, "ranks": [msgspec.to_builtins(rank)]}, RunnerBeat))
    text = out.getvalue()
    assert "running" in text
    assert "attempt 2" in text
    assert "50 MiB" in text
    assert "accuracy=" in text


def test_a_budget_without_a_limit_is_one_item() -> None:
    state = final()
    spent = msgspec.structs.replace(state.budgets["preemption"], spent=1)
    budgets = {**state.budgets, "preemption": spent}
    assert "preemption 1 (unlimited)" in budgets_text(msgspec.structs.replace(state, budgets=budgets))


def test_metrics_are_told_short_and_whole() -> None:
    packed = {"loss": 0.123456789, "bad": {"float": "nan"}, "big": {"int": str(2**60)}, "text": "x" * 100}
    text = metrics_text(msgspec.convert(packed, dict[str, object]))
    assert text.startswith(f"loss=0.1235 bad=nan big={2**60} text=xxx")
    assert text.endswith("…")


def test_a_finished_run_is_told_with_its_metrics_and_its_story() -> None:
    text = ending_text(final())
    assert "finished" in text
    assert "2 ranks, 2 attempts" in text
    assert "runfold replay golden-digits-retry" in text


def failed(kind: FailureKind, rank: int | None) -> RunState:
    error = ErrorInfo(
        type="ValueError", message="bad", kind=kind, traceback="Traceback\n  a\nValueError: bad", where="a.py:3 in f"
    )
    failure = Failure(kind=kind, attempt=2, node="local", error=error, t=1.0, cause=Cause(input=0), rank=rank)
    phase = Errored(since_t=2.0, reason="no budget left", cause=Cause(input=0), failure=failure)
    other = msgspec.structs.replace(failure, rank=0)
    return msgspec.structs.replace(final(), phase=phase, failure=failure, others=(other,))


def test_an_errored_run_is_told_first_error_first_then_decision_then_budgets() -> None:
    lines = ending_text(failed("user", 1)).splitlines()
    assert lines[0] == "rank 1 failed in attempt 2: ValueError: bad"
    assert lines[1] == "  at a.py:3 in f"
    assert "  Traceback" in lines
    assert any(line.startswith("also: rank 0") for line in lines)
    assert any("no budget left" in line for line in lines)
    assert any(line.startswith("budgets: worker 1 of 1, 0 left") for line in lines)


def test_what_fails_before_there_is_a_group_is_told_as_the_runs() -> None:
    error = ErrorInfo(type="HookError", message="no", kind="controller")
    failure = Failure(kind="controller", attempt=0, node="", error=error, t=1.0, cause=Cause(input=0))
    assert failure_text(failure) == "the run failed before its first attempt: HookError: no"


@pytest.mark.parametrize(
    ("kind", "rank", "error"),
    [("user", 1, WorkerGroupError), ("preempted", 1, PreemptionError), ("placement", None, ControllerError)],
)
def test_a_result_carries_the_error_of_its_kind(kind: FailureKind, rank: int | None, error: type[Exception]) -> None:
    result = result_of(failed(kind, rank))
    assert type(result.error) is error
    assert "ValueError: bad" in str(result.error)
    if isinstance(result.error, WorkerGroupError):
        assert set(result.error.worker_failures) == {0, 1}


def test_an_aborted_run_is_an_error_of_its_own_and_a_failed_teardown_the_controllers() -> None:
    cause = Cause(input=0)
    aborted = msgspec.structs.replace(final(), phase=Aborted(since_t=1.0, reason="enough", cause=cause))
    assert isinstance(result_of(aborted).error, RunAbortedError)
    assert "enough" in ending_text(aborted)
    teardown = msgspec.structs.replace(final(), phase=Errored(since_t=1.0, reason="training finished", cause=cause))
    found = result_of(msgspec.structs.replace(teardown, failure=None))
    assert isinstance(found.error, ControllerError)
    assert found.metrics is not None


def test_errors_survive_pickling() -> None:
    import pickle

    error = WorkerGroupError("bad", {1: "worse"}, result_of(final()))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.worker_failures, again.result.run) == ("bad", {1: "worse"}, "golden-digits-retry")


def test_a_budget_nobody_touched_and_nobody_limited_is_not_told() -> None:
    assert "unlimited" not in budgets_text(final())


@pytest.mark.parametrize(("number", "said"), [(0, "0 ranks"), (1, "1 rank"), (2, "2 ranks")])
def test_what_is_counted_agrees_with_its_number(number: int, said: str) -> None:
    assert counted(number, "rank") == said


def test_a_pickled_function_is_told_by_its_name() -> None:
    digest = "blob:sha256:" + "0" * 64
    assert entry_words(digest, "train") == "train (pickled)"
    assert (entry_words(digest, ""), entry_words("a.py:train", "train")) == (digest, "a.py:train")
