"""Lines for people: wrapped and coloured on a terminal, plain when piped, and never unsafe."""

from __future__ import annotations

import re

import msgspec
import pytest

from runfold.events.base import Cause
from runfold.events.conclusions import Decider
from runfold.events.entry import decode_entry
from runfold.events.failures import ErrorInfo
from runfold.events.transitions import FailureDecided, FirstCauseRevised
from runfold.replay.at import final_state, state_at
from runfold.replay.audit import audit
from runfold.replay.escape import safe
from runfold.replay.history import History
from runfold.replay.render import Look, render_story, render_timeline, seconds
from runfold.replay.show import render_audit, render_snapshot, render_verify
from runfold.replay.story import story
from runfold.replay.timeline import timeline
from runfold.replay.verify import verify
from support.histories import BOOM, Voice, beginning, chained, decided, errored_run, failing_run, finished_run, history

COLOR = re.compile(r"\x1b\[[0-9;]*m")


def everything(run: History, look: Look) -> list[str]:
    """Every document of a run, as lines."""
    return [
        *render_story(story(run), look),
        *render_timeline(timeline(run), look),
        *render_snapshot(final_state(run), look),
        *render_audit(audit(run), look),
        *render_verify(verify(run), look),
    ]


def failing_with(error: ErrorInfo) -> History:
    """A run whose rank 1 fails like this."""
    pool, node = Voice("pool-local"), Voice("local")
    steps = beginning(pool, node)
    steps.append((2.0, [node.failed(1, error)]))
    return history(decided(steps))


def test_the_story_of_a_failing_run_needs_no_other_tool() -> None:
    run = history(failing_run())
    text = "\n".join([*render_story(story(run)), *render_timeline(timeline(run))])
    for part in (
        "digits-7k2  FINISHED after 9.2 s  (2 attempts, 2 ranks, 24 reports)",
        "attempt 1: rank 1 on local: RuntimeError: boom (user)",
        "at examples/digits.py:42 in train",
        "worker failure 1 of 1",
        "worker 1 of 1, 0 left",
        "INITIALIZING → SCHEDULING",
        "12 reports: ranks 0-1, steps 0-5; loss=0.1667",
        'raise RuntimeError("boom")',
        "RUNNING → RESTARTING",
        "decided to retry: rank 1 failed first: RuntimeError: boom; worker failure 1 of 1",
        "goodput   ",
        "SHUTTING_DOWN → FINISHED: every rank returned",
    ):
        assert part in text


def test_piped_a_row_is_a_line_that_says_its_entry() -> None:
    lines = list(render_timeline(timeline(history(failing_run()))))
    rows = [line for line in lines[1:] if not line.lstrip().startswith("|")]
    assert len(rows) == len(timeline(history(failing_run())).rows)
    assert all(re.match(r" *\d+(-\d+)?  ", row) for row in rows)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_on_a_terminal_no_line_is_wider_than_it(width: int) -> None:
    run = history(failing_run())
    lines = [*render_story(story(run), Look(width=width)), *render_timeline(timeline(run), Look(width=width))]
    assert max(len(line) for line in lines) <= width


def test_colours_only_when_asked_and_nothing_else_changes() -> None:
    run = history(failing_run())
    plain, coloured = everything(run, Look()), everything(run, Look(color=True))
    assert not any("\x1b" in line for line in plain)
    assert any("\x1b" in line for line in coloured)
    assert [COLOR.sub("", line) for line in coloured] == plain


@pytest.mark.parametrize("look", [Look(), Look(width=80), Look(width=80, color=True)])
def test_nothing_from_the_log_reaches_the_terminal_unescaped(look: Look) -> None:
    evil = "\x1b]0;owned\x07\x9b31m\u202e\rx\x00"
    error = msgspec.structs.replace(BOOM, type=evil, message=evil, traceback=f"{evil}\n{evil}", where=evil)
    for line in everything(failing_with(error), look):
        shown = COLOR.sub("", line)
        assert safe(shown) == shown
        assert "owned" not in shown or "\\x1b]0;owned\\x07" in shown


def test_a_long_traceback_keeps_its_end_unless_asked_for_whole() -> None:
    error = msgspec.structs.replace(BOOM, traceback="\n".join(f"frame {k}" for k in range(100)))
    rows = timeline(failing_with(error))
    short = "\n".join(render_timeline(rows))
    assert "… 70 lines more, shown with --full" in short
    assert "frame 99" in short
    assert "frame 3\n" not in short
    assert "frame 3\n" in "\n".join(render_timeline(rows, Look(full=True)))


def test_damage_is_shown_beside_what_can_be_believed() -> None:
    lines = failing_run()
    run = history([*lines[:6], b"junk", *lines[7:]])
    assert any(line.startswith("damaged") for line in render_story(story(run)))
    assert "entry 6 cannot be read" in list(render_timeline(timeline(run)))[-1]
    found = "\n".join(render_audit(audit(run)))
    assert "chain: each entry names the hash" in found
    assert "[message 7 of the log]" in found
    assert "  do: " in found


def test_a_state_shows_group_budgets_and_sources() -> None:
    text = "\n".join(render_snapshot(state_at(history(failing_run()), "4")))
    for part in ("RUNNING since 0.900 s", "worker 0 of 1", "pool-local 1, folded 1", "2 ranks on local (2)"):
        assert part in text
    assert re.search(r"1  local +running", text)


def test_a_clean_audit_and_an_agreeing_verify_are_one_line_each() -> None:
    run = history(finished_run())
    assert len(list(render_audit(audit(run)))) == 1
    assert len(list(render_verify(verify(run)))) == 1


def test_a_divergence_shows_both_decisions() -> None:
    steps = [(entry.t, entry.inputs, list(entry.transitions)) for entry in map(decode_entry, failing_run()[:12])]
    steps[11][2][0] = msgspec.structs.replace(steps[11][2][0], reason="because I say so")
    run = history(chained(steps))
    same = list(render_verify(verify(run)))
    assert same[0].startswith("digits-7k2: diverges: version ")
    assert "entry 11 at 4.500 s, from its transition 0 on" in same[1]
    assert "recorded  failure_decided: decided to retry: because I say so" in same[2]
    assert any("now       failure_decided: decided to retry: rank 1 failed first" in line for line in same)
    other = list(render_verify(verify(run, decider=Decider(version="99"))))
    assert "would now decide differently: version 99 on 1 of 12 entries" in other[0]
    (stopped,) = render_verify(verify(history([*failing_run()[:6], b"junk", *failing_run()[7:]])))
    assert "stopped: after 6 of 6" in stopped


def test_a_state_shows_the_failure_and_what_was_reported() -> None:
    text = "\n".join(render_snapshot(final_state(history(failing_run()))))
    assert "failure   attempt 1, rank 1 on local: RuntimeError: boom (user)" in text
    assert "metrics   loss=0.1667" in text
    assert "reports   24" in text


def test_a_cause_found_later_is_said_to_be() -> None:
    steps = [(entry.t, entry.inputs, list(entry.transitions)) for entry in map(decode_entry, errored_run())]
    late = msgspec.structs.replace(BOOM, type="MemoryError", kind="oom")
    first = next(item for item in steps[5][2] if isinstance(item, FailureDecided)).failure
    revised = FirstCauseRevised(
        cause=Cause(input=0),
        reason="the kernel ended it",
        attempt=1,
        failure=msgspec.structs.replace(first, kind="oom", error=late),
        was=first,
    )
    steps[6][2].insert(0, revised)
    text = "\n".join(render_story(story(history(chained(steps)))))
    assert "attempt 1: rank 1 on local: MemoryError: boom (oom, known only later)" in text


@pytest.mark.parametrize(
    ("duration_s", "shown"),
    [(0.0, "0.0 s"), (59.94, "59.9 s"), (60.2, "1 m 00 s"), (200, "3 m 20 s"), (7500, "2 h 05 m")],
)
def test_durations_as_people_say_them(duration_s: float, shown: str) -> None:
    assert seconds(duration_s) == shown
