"""Of long lists people are shown the first, and how many more there are; texts are cut."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
from msgspec.structs import replace

from runfold import live
from runfold.cli import command
from runfold.controller import intake, keeping
from runfold.errors import EXIT_USAGE
from runfold.events.base import Cause
from runfold.events.conclusions import Decider
from runfold.events.entry import decode_entry
from runfold.events.failures import ErrorInfo, Failure
from runfold.events.refusal import JobRefused
from runfold.events.stacks import RankSeen
from runfold.events.state import Rank
from runfold.events.tasks import STACKS, OpenTask, Task, TaskEnd
from runfold.events.transitions import FailureDecided, StateChanged
from runfold.explain import OTHERS_SHOWN_MAX, ending_text
from runfold.follow import Told
from runfold.live import RANKS_SHOWN_MAX, LiveProgress
from runfold.replay import answers, render
from runfold.replay.differ import Change
from runfold.replay.intended import Intended
from runfold.replay.look import Look
from runfold.replay.rows import RowError
from runfold.replay.show import render_verify
from runfold.replay.story import Setback
from runfold.replay.verify import verify
from runfold.workers.pools.ray import library
from support.histories import chained, failing_run, history
from support.hosting import hosting
from support.memory_ports import MemoryWorld
from support.runs import Run
from support.virtual import run_virtual
from support.waiting import until

if TYPE_CHECKING:
    from rich.console import RenderableType

    from runfold.replay.goodput import Goodput


def test_the_reason_of_a_refusal_is_kept_up_to_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "REASON_MAX_COUNT", 8)

    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            bad = world.jobs.publish(b'{"entrypoint": "a:b", "colour_of_the_job": 1}')
            await until(lambda: world.jobs.termed == [bad])
        record = msgspec.json.decode(world.jobs.refusals[bad], type=JobRefused)
        assert (record.path, len(record.reason)) == ("$.colour", 8)

    run_virtual(story())


@pytest.mark.parametrize("beyond", [0, 3])
def test_so_many_ranks_are_told_of_in_words(beyond: int) -> None:
    count = keeping.RANKS_IN_WORDS_MAX + beyond
    seen = tuple(RankSeen(rank=k, life=1, doing="busy") for k in range(count))
    end = TaskEnd(outcome="done", cause=Cause(input=0), seen=seen)
    words = keeping._ending_words(OpenTask(task=Task(id="stacks-1", kind=STACKS), cause=Cause(input=0)), end)
    assert words.count("rank ") == keeping.RANKS_IN_WORDS_MAX
    assert words.endswith("and 3 more") == bool(beyond)


@pytest.mark.parametrize("beyond", [0, 3])
def test_so_many_changes_are_shown(beyond: int) -> None:
    count = answers.CHANGES_SHOWN_MAX_COUNT + beyond
    changed = tuple(Change(path=f"field{k}", before=k, after=k + 1) for k in range(count))
    lines = list(answers._changes(changed, Look()))
    assert len(lines) == answers.CHANGES_SHOWN_MAX_COUNT + bool(beyond)
    assert (lines[-1] == "  … 3 fields more, shown with --full") == bool(beyond)
    assert len(list(answers._changes(changed, Look(full=True)))) == count


@pytest.mark.parametrize("beyond", [0, 3])
def test_so_many_uses_of_time_are_named(beyond: int) -> None:
    bad = {f"use_{k}": 10.0 for k in range(render.BADPUT_SHOWN_MAX_COUNT + beyond)}
    found = SimpleNamespace(goodput=0.5, badput_s=bad, productive_s=10.0, clock_s=20.0)
    words = render.goodput_words(cast("Goodput", found))
    assert words.count("use ") == render.BADPUT_SHOWN_MAX_COUNT
    assert words.endswith(", 3 more") == bool(beyond)


@pytest.mark.parametrize("beyond", [0, 3])
def test_the_first_and_the_last_failures_are_shown(beyond: int) -> None:
    cause = RowError(rank=0, node="local", type="ValueError", message="bad", kind="user")
    count = render.SETBACKS_SHOWN_MAX_COUNT + beyond
    setbacks = tuple(
        Setback(n=k, t=1.0, attempt=k, cause=cause, decision="retry", reason="again") for k in range(count)
    )
    text = "\n".join(render._setbacks(setbacks, Look()))
    assert text.count("attempt ") == render.SETBACKS_SHOWN_MAX_COUNT
    assert ("… 3 failures more, 3 of them like the first" in text) == bool(beyond)


def test_so_many_divergences_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    for line in failing_run():
        entry = decode_entry(line)
        changed = [
            replace(one, reason="because I say so") if isinstance(one, FailureDecided | StateChanged) else one
            for one in entry.transitions
        ]
        steps.append((entry.t, entry.inputs, changed))
    log = history(chained(steps))
    whole = verify(log, decider=Decider(version="99.0"))
    assert len(whole.divergences) > 2
    monkeypatch.setattr("runfold.replay.verify.DIVERGENCES_MAX_COUNT", 2)
    report = verify(log, decider=Decider(version="99.0"))
    assert report.divergences == whole.divergences[:2]
    more = len(whole.divergences) - 2
    assert (report.checked, report.more, report.more_unintended) == (whole.checked, more, more)
    *_, last = render_verify(report)
    assert last == f"  also {more} entries more, {more} of them not intended"
    seen = [Intended(entry=one.n, reason="meant") for one in whole.divergences[:-1]]
    meant = verify(log, decider=Decider(version="99.0"), intended=seen)
    assert (meant.more_unintended, meant.unneeded, meant.exit_code(strict=True)) == (1, (), 1)
    assert f"on {len(whole.divergences)} of {whole.checked} entries" in next(iter(render_verify(meant)))
    seen.append(Intended(entry=whole.divergences[-1].n, reason="meant"))
    all_meant = verify(log, decider=Decider(version="99.0"), intended=seen)
    assert (all_meant.more_unintended, all_meant.exit_code(strict=True)) == (0, 0)


def test_what_is_no_utf8_is_quoted_up_to_a_length(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "b" * command.SHOWN_MAX_COUNT

    def fails() -> None:
        raise UnicodeEncodeError("utf-8", text + "beyond", 0, 1, "surrogates not allowed")

    monkeypatch.setattr(command, "import_module", lambda _: SimpleNamespace(command=fails))
    assert command._called("ls", "runfold.cli.ls", []) == EXIT_USAGE
    said = capsys.readouterr().err
    assert f"this is no UTF-8, and cannot be recorded: {text}" in said.replace("\n", "")
    assert "beyond" not in said


@pytest.mark.parametrize("beyond", [0, 2])
def test_so_many_other_failures_are_told_of(beyond: int) -> None:
    run = Run(1).running()
    run.says(run.failed(0)).says(run.released())
    error = ErrorInfo(type="ValueError", message="bad", kind="user")
    others = tuple(
        Failure(kind="user", attempt=1, node="local", rank=k, error=error, t=1.0, cause=Cause(input=0))
        for k in range(1, OTHERS_SHOWN_MAX + beyond + 1)
    )
    text = ending_text(replace(run.state, others=others))
    assert text.count("also: rank ") == OTHERS_SHOWN_MAX
    assert ("also: 2 more" in text) == bool(beyond)


@pytest.mark.parametrize("beyond", [0, 3])
def test_so_many_ranks_have_a_row(beyond: int) -> None:
    ranks = tuple(Rank(rank=k, life=1, node="local", source="local") for k in range(RANKS_SHOWN_MAX + beyond))
    table = LiveProgress(io.StringIO())._table(ranks)
    assert table.row_count == RANKS_SHOWN_MAX + bool(beyond)
    assert (list(table.columns[1].cells)[-1] == "3 more") == bool(beyond)


@pytest.mark.parametrize("beyond", [0, 3])
def test_a_nodes_name_is_cut_but_for_what_makes_it_its_own(beyond: int) -> None:
    name = "n" * (library.NODE_NAME_MAX + beyond)
    found = {"NodeID": "0123456789abcdef", "NodeManagerAddress": "10.0.0.1", "NodeName": name, "Alive": True}
    assert library._node(found).name == "n" * library.NODE_NAME_MAX + "-01234567"


def test_the_rate_of_reports_is_taken_of_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "RATE_SAMPLES_MAX", 3)
    run = Run(1).running()
    shown = LiveProgress(io.StringIO())
    told: list[str] = []
    for first in range(0, 20, 5):
        run.says(*(run.reported(0, index) for index in range(first, first + 5)))
        shown.entry(Told(run.entries[-1], run.state, run.head))
        told.append(shown._rate_text())
    assert told == [", 0.5 a second", ", 1.0 a second", ", over 1.5 a second", ", over 1.5 a second"]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Counting(LiveProgress):
    """Counts how often it is drawn."""

    drawn = 0

    def _render(self) -> RenderableType:
        self.drawn += 1
        return super()._render()


def test_a_flood_of_reports_is_drawn_no_more_often_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "REFRESHES_PER_S_MAX", 0.001)
    run = Run(1).running()
    run.says(run.reported(0, 0))
    with _Counting(_Terminal()) as shown:
        at_first = shown.drawn
        for _ in range(50):
            shown.entry(Told(run.entries[-1], run.state, run.head))
        assert shown.drawn == at_first
    assert shown.drawn > at_first, "the last one is"
