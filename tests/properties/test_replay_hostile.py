"""Whatever stands where a log should be, reading and telling of it ends in an answer or in an error of replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from runfold.events.base import Json
from runfold.events.facts import Reported
from runfold.replay.at import state_at
from runfold.replay.audit import audit
from runfold.replay.errors import ReplayError
from runfold.replay.escape import safe
from runfold.replay.export import read_export
from runfold.replay.history import History
from runfold.replay.render import render_story, render_timeline
from runfold.replay.show import render_audit, render_snapshot, render_verify
from runfold.replay.story import story
from runfold.replay.timeline import timeline
from runfold.replay.verify import verify
from support.histories import Voice, beginning, decided, exported, failing_run, history

DATA = exported(failing_run())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["float", "int", "dict", "x"]), inner),
    max_leaves=8,
)


def tell(run: History) -> list[str]:
    """Everything that is said of a history, as lines."""
    lines = [*render_audit(audit(run)), *render_timeline(timeline(run))]
    asked: list[Callable[[], Iterable[str]]] = [
        lambda: render_story(story(run)),
        lambda: render_snapshot(state_at(run, "+1h")),
        lambda: render_snapshot(state_at(run, "2030-01-01")),
        lambda: render_verify(verify(run)),
    ]
    for ask in asked:
        try:
            lines.extend(ask())
        except ReplayError as error:
            lines.append(safe(str(error)))
    return lines


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_any_bytes_are_told_of(data: bytes) -> None:
    assert tell(read_export(data, "x.jsonl"))


@given(st.integers(0, len(DATA)), st.integers(0, 2000), st.binary(max_size=20))
@settings(deadline=None)
def test_a_log_with_a_hole_in_it_is_told_of(start: int, size: int, extra: bytes) -> None:
    for line in tell(read_export(DATA[:start] + extra + DATA[start + size :], "x.jsonl")):
        assert safe(line) == line


def test_nesting_without_end_is_no_entry() -> None:
    deep = b'{"v":1,"run":"r","n":0,"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    run = read_export(deep + b"\n" + deep + b"\n", "deep.jsonl")
    assert not audit(run).clean


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=6))
@settings(deadline=None)
def test_any_metrics_are_told_of(metrics: dict[str, Json]) -> None:
    pool, node = Voice("pool-local"), Voice("local")
    steps = beginning(pool, node)
    report = Reported(
        source="local", incarnation=1, number=4, attempt=1, rank=0, life=1, index=0, step=None, metrics=metrics
    )
    lines = tell(history(decided([*steps, (1.0, [report])])))
    assert any("1 report" in line for line in lines)
