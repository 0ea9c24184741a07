"""Reserving whole TPU slices, by table: heads first, one placement over all, all or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from runfold.events.slices import slice_of
from runfold.workers.pools.slices import (
    SLICE_LABEL,
    AskHead,
    Done,
    Fail,
    Place,
    Progress,
    Release,
    SliceDemand,
    Step,
    Wait,
    head_resource,
    reserving,
)

TWO = SliceDemand(num_workers=8, workers_per_slice=4, deadline_s=60.0)
NOT_C = SliceDemand(num_workers=8, workers_per_slice=4, deadline_s=60.0, avoid=("c",))
SPREAD = tuple({SLICE_LABEL: name} for name in ("a", "a", "a", "a", "b", "b", "b", "b"))
NO_HOSTS = "not all hosts of a, b were to be had in time: others use them, or they are lost"
LATE = "1 of 2 slices had a head in time: the others are in use, or not there"


@pytest.mark.parametrize(
    ("demand", "here", "now", "step"),
    [
        (TWO, Progress(), 0.0, AskHead(number=0)),
        (TWO, Progress(asked=True), 1.0, Wait(until_s=60.0)),
        # Another head of another slice than those that are had, or are known to be broken or in use.
        (TWO, Progress(names=("a",), held=True), 2.0, AskHead(number=1, avoid=("a",))),
        (TWO, Progress(names=("a",), held=True, asked=True, avoided=("a",)), 3.0, Wait(until_s=60.0)),
        (
            NOT_C,
            Progress(names=("a",), held=True, asked=True, avoided=("a",)),
            3.0,
            AskHead(number=1, avoid=("a", "c")),
        ),
        (NOT_C, Progress(names=("a",), held=True, asked=True, avoided=("a", "c")), 4.0, Wait(until_s=60.0)),
        (TWO, Progress(names=("a", "b"), held=True), 4.0, Place(selectors=SPREAD)),
        (TWO, Progress(names=("a", "b"), held=True, placed="asked"), 9.0, Wait(until_s=60.0)),
        (TWO, Progress(names=("a", "b"), held=True, placed="asked"), 60.0, Release()),
        (TWO, Progress(names=("a", "b"), placed="asked"), 60.0, Fail(kind="late", reason=NO_HOSTS)),
        (TWO, Progress(names=("a", "b"), held=True, placed="yes"), 99.0, Done()),
        (TWO, Progress(names=("a",), held=True, asked=True), 60.0, Release()),
        (TWO, Progress(names=("a",), asked=True), 60.0, Fail(kind="late", reason=LATE)),
        (TWO, Progress(names=("a", "b"), held=True, error="a host died"), 5.0, Release()),
        (TWO, Progress(error="x"), 5.0, Fail(kind="failed", reason="the slices were not reserved: x")),
    ],
)
def test_what_to_do_next(demand: SliceDemand, here: Progress, now: float, step: Step) -> None:
    assert reserving(demand, here, now) == step


def test_the_head_of_a_slice_is_known_by_its_resource() -> None:
    assert head_resource(slice_of("2x2x2", "TPU-V4")) == "TPU-v4-16-head"
    assert head_resource(slice_of("4x4", "v6e")) == "TPU-v6e-16-head"


@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 12), st.booleans())
def test_it_comes_to_an_end_with_everything_or_nothing(slices: int, each: int, breaks_after: int, late: bool) -> None:
    demand = SliceDemand(num_workers=slices * each, workers_per_slice=each, deadline_s=60.0)
    here, now = Progress(), 0.0
    for turn in range(40):
        step = reserving(demand, here, now)
        match step:
            case AskHead(number=number, avoid=avoid):
                assert number == len(here.names)
                assert set(here.names) <= set(avoid)
                here = replace(here, asked=True, avoided=avoid)
            case Wait(until_s=until_s):
                if late:
                    now = until_s
                elif here.placed == "asked":
                    here = replace(here, placed="yes")
                else:
                    here = replace(here, names=(*here.names, f"s{len(here.names)}"), asked=False, held=True)
            case Place(selectors=selectors):
                assert len(selectors) == demand.num_workers
                here = replace(here, placed="asked", held=True)
            case Release():
                here = replace(here, held=False)
            case Done():
                assert here.held
                return
            case Fail():
                assert not here.held
                return
        if turn == breaks_after and here.placed != "yes":
            here = replace(here, error="broken")
    raise AssertionError("it went on and on")
