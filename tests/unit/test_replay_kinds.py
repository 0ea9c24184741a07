"""Every kind of fact, request, conclusion and transition is told: in words, in the use of time, in the trace.

A new kind needs a sample in `support.samples` first; then each of these fails until the kind has its place.
"""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from msgspec.structs import replace

from runfold.events.entry import AnyInput, Entry
from runfold.events.transitions import AnyTransition, GroupLaidOut, RankLaid, StateChanged
from runfold.replay.goodput import goodput
from runfold.replay.history import History, Link, Where
from runfold.replay.perfetto import trace_bytes
from runfold.replay.spans import stretches_of
from runfold.replay.timeline import timeline
from runfold.replay.uses import USES
from runfold.replay.words import input_words, kind_of, transition_words
from support.histories import at, failing_run, history
from support.samples import INPUTS, TRANSITIONS

SCHEMA = json.loads((Path(__file__).parents[1] / "support" / "chrome_trace.json").read_text(encoding="utf-8"))
LAID = RankLaid(rank=0, life=1, place=0, local_rank=0, node_rank=0)
SAMPLES: list[AnyInput | AnyTransition] = [
    *(item for item, _ in INPUTS),
    *(replace(item, layout=(LAID,)) if isinstance(item, GroupLaidOut) else item for item, _ in TRANSITIONS),
]
UNTOLD = {"job_taken", "controller_started", "log_copied", "join"}
"""Kinds without a row of their own: the row of what was decided on them names them."""

UNTRACED = {
    *("placed", "released", "checkpoint_sealed", "task_ended", "runner_ready"),
    *("abort_run", "resize_run", "checkpoint_now", "stop_at_checkpoint", "dump_stacks", "admit_node"),
    *("notice_preemption", "cancel_preemption", "join"),
    *("job_taken", "controller_started", "log_copied", "timer_fired"),
    *("run_accepted", "source_joined", "task_ordered", "task_closed"),
}
"""Kinds without an event of their own in the trace: what is decided on them has one, or nobody looks for them there."""


def named(item: AnyInput | AnyTransition) -> str:
    """The name of a sample among the tests'."""
    return kind_of(item)


def holding(*items: AnyInput | AnyTransition) -> History:
    """A run that fails once, whose second half begins with an entry of this alone. It need not fold."""
    links = history(failing_run()).links
    place = len(links) // 2
    inputs = tuple(item for item in items if isinstance(item, AnyInput))
    transitions = tuple(item for item in items if isinstance(item, AnyTransition))
    t = links[place - 1].entry.t
    entry = Entry(
        v=1, run=links[0].entry.run, n=place, t=t, at=at(t), by="c", epoch=1, cursor=None, inputs=inputs,
        transitions=transitions, prev=links[place - 1].hash,
    )  # fmt: skip
    between = Link(entry=entry, data=b"", hash="0" * 64, where=Where(file="test"))
    whole = enumerate([*links[:place], between, *links[place:]])
    numbered = tuple(replace(link, entry=replace(link.entry, n=n)) for n, link in whole)
    return History(target="test", kind="file", run=entry.run, links=numbered)


@pytest.mark.parametrize("item", SAMPLES, ids=named)
def test_it_has_words(item: AnyInput | AnyTransition) -> None:
    words = input_words(item)[0] if isinstance(item, AnyInput) else transition_words(item)
    assert words or isinstance(item, StateChanged)


@pytest.mark.parametrize("item", SAMPLES, ids=named)
def test_it_stands_in_the_timeline(item: AnyInput | AnyTransition) -> None:
    assert (timeline(holding(item)).rows == timeline(holding()).rows) == (kind_of(item) in UNTOLD)


@pytest.mark.parametrize("item", SAMPLES, ids=named)
def test_time_goes_into_something_whatever_is_said(item: AnyInput | AnyTransition) -> None:
    run = holding(item)
    stretches = stretches_of(run)
    assert sum(one.length for one in stretches) == round(run.entries[-1].t * 1_000_000)
    assert {one.use for one in stretches} <= set(USES)
    assert sum(goodput(run).uses_s.values()) == pytest.approx(run.entries[-1].t)


@pytest.mark.parametrize("item", SAMPLES, ids=named)
def test_the_trace_is_valid_and_shows_it_or_it_is_said_why_not(item: AnyInput | AnyTransition) -> None:
    trace = json.loads(trace_bytes(holding(item)))
    jsonschema.validate(trace, SCHEMA)
    without = json.loads(trace_bytes(holding()))
    assert (trace["traceEvents"] == without["traceEvents"]) == (kind_of(item) in UNTRACED)
