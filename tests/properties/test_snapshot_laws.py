"""A snapshot is read as the state it was made of, whatever a run went through."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given
from msgspec.structs import replace

from runfold.events.config import FailureConfig
from runfold.events.entry import Head
from runfold.events.limits import SNAPSHOT_EVERY_COUNT, SNAPSHOT_MAX_BYTES, SNAPSHOT_TAIL_EVERY_COUNT
from runfold.events.snapshot import (
    TAIL,
    StateSnapshot,
    decode_snapshot,
    encode_snapshot,
    fold_version,
    snapshot_keys,
)
from runfold.events.state import RunState
from support.plays import CONFIGS, PLAYS, SIZES, Line, Size, a_run, inputs_of

FOLD = fold_version("1")


def snapshot_of(state: RunState) -> StateSnapshot:
    return StateSnapshot(fold=FOLD, run=state.run, sequence=9, head=Head(n=state.n, hash="0" * 64), state=state)


@given(SIZES, CONFIGS, PLAYS)
def test_a_state_survives(size: Size, config: FailureConfig, play: list[list[Line]]) -> None:
    run = a_run(size, config)
    for lines in play:
        run.says(*inputs_of(run, lines))
        kept = snapshot_of(run.state)
        data = encode_snapshot(kept)
        assert data is not None
        assert decode_snapshot(data, run.state.run, FOLD) == kept


@given(st.binary(max_size=200))
def test_anything_else_is_none(data: bytes) -> None:
    assert decode_snapshot(data, "digits", FOLD) is None


def test_another_run_another_fold_and_another_entry_are_none() -> None:
    state = a_run(1, FailureConfig()).state
    data = encode_snapshot(snapshot_of(state)) or b""
    assert decode_snapshot(data, state.run, FOLD) is not None
    assert decode_snapshot(data, "other", FOLD) is None
    assert decode_snapshot(data, state.run, fold_version("2")) is None
    moved = StateSnapshot(fold=FOLD, run=state.run, sequence=9, head=Head(n=state.n + 1, hash=""), state=state)
    assert decode_snapshot(encode_snapshot(moved) or b"", state.run, FOLD) is None


def test_a_state_that_is_too_large_is_not_kept() -> None:
    state = a_run(1, FailureConfig()).state
    assert encode_snapshot(snapshot_of(replace(state, warnings=("x" * SNAPSHOT_MAX_BYTES,)))) is None


def test_when_snapshots_are_kept() -> None:
    assert snapshot_keys(0) == snapshot_keys(1) == ()
    assert snapshot_keys(SNAPSHOT_TAIL_EVERY_COUNT) == (TAIL,)
    assert snapshot_keys(SNAPSHOT_EVERY_COUNT) == (TAIL, str(SNAPSHOT_EVERY_COUNT))
