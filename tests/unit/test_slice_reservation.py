"""Reserving whole TPU slices, by table: heads first, one placement over all, all or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from runfold.workers.pools.slices import (
    SLICE_LABEL,
    AskHead,
    Done,
    Fail,
    Place,
    Release,
    Reserved,
    SliceDemand,
    Step,
    Wait,
    head_resource,
    reserving,
)

TWO = SliceDemand(num_workers=8, workers_per_slice=4, multi_host=True, deadline_s=60.0)
ONE_HOST = SliceDemand(num_workers=2, workers_per_slice=1, multi_host=False, deadline_s=60.0)
SPREAD = tuple({SLICE_LABEL: name} for name in ("a", "a", "a", "a", "b", "b", "b", "b"))
LATE = "1 of 2 slices had a head in time: the others are in use, or not there"


@pytest.mark.parametrize(
    ("demand", "here", "now", "step"),
    [
        (TWO, Reserved(), 0.0, AskHead(number=0)),
        (TWO, Reserved(asked=True), 1.0, Wait(until_s=60.0)),
        (TWO, Reserved(names=("a",), held=True), 2.0, AskHead(number=1)),
        (TWO, Reserved(names=("a",), held=True, asked=True), 3.0, Wait(until_s=60.0)),
        (TWO, Reserved(names=("a", "b"), held=True), 4.0, Place(selectors=SPREAD)),
        (TWO, Reserved(names=("a", "b"), held=True, placed="asked"), 99.0, Wait(until_s=None)),
        (TWO, Reserved(names=("a", "b"), held=True, placed="yes"), 99.0, Done()),
        (TWO, Reserved(names=("a",), held=True, asked=True), 60.0, Release()),
        (TWO, Reserved(names=("a",), asked=True), 60.0, Fail(kind="timeout", reason=LATE)),
        (TWO, Reserved(names=("a", "b"), held=True, error="a host died"), 5.0, Release()),
        (TWO, Reserved(error="x"), 5.0, Fail(kind="failed", reason="the slices were not reserved: x")),
        (ONE_HOST, Reserved(), 0.0, Place(selectors=({}, {}))),
        (ONE_HOST, Reserved(placed="yes", held=True), 0.0, Done()),
    ],
)
def test_what_to_do_next(demand: SliceDemand, here: Reserved, now: float, step: Step) -> None:
    assert reserving(demand, here, now) == step


def test_the_head_of_a_slice_is_known_by_its_resource() -> None:
    assert head_resource("TPU-V4", "2x2x2") == "TPU-v4-2x2x2-head"


@given(st.integers(1, 6), st.integers(1, 8), st.booleans(), st.integers(0, 12), st.booleans())
def test_it_comes_to_an_end_with_everything_or_nothing(
    slices: int, each: int, multi_host: bool, breaks_after: int, late: bool
) -> None:
    demand = SliceDemand(num_workers=slices * each, workers_per_slice=each, multi_host=multi_host, deadline_s=60.0)
    here, now = Reserved(), 0.0
    for turn in range(40):
        step = reserving(demand, here, now)
        match step:
            case AskHead(number=number):
                assert number == len(here.names)
                here = replace(here, asked=True)
            case Wait(until_s=until_s):
                if late and until_s is not None:
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
