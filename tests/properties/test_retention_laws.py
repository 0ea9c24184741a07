"""Retention against a reference model of thirty lines, whatever is committed and with whatever scores."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from runfold.events.checkpoints import Kept, doomed, ranked, score_of
from runfold.events.config import CheckpointConfig
from runfold.events.values import pack
from support.runs import Run

METRICS = st.one_of(
    st.just({}),
    st.builds(lambda value: {"a": {"b": value}}, st.sampled_from([1, 2, 2.0, -1.5, True, math.inf, -math.inf])),
    st.builds(lambda value: {"a": {"b": value}}, st.sampled_from([math.nan, "high", None, [1]])),
    st.builds(lambda value: {"a/b": value}, st.integers(-3, 3)),
)
CONFIGS = st.builds(
    CheckpointConfig,
    num_to_keep=st.sampled_from([None, 1, 2, 3]),
    checkpoint_score_attribute=st.sampled_from([None, "a/b"]),
    checkpoint_score_order=st.sampled_from(["max", "min"]),
)


# --- the reference model


@dataclass
class Model:
    """The rules of retention, as plainly as they can be said."""

    config: CheckpointConfig
    there: list[tuple[int, object, bool]]

    def key(self, entry: tuple[int, object, bool]) -> tuple[float, float, int]:
        index, value, _ = entry
        if self.config.checkpoint_score_attribute is None:
            return (0, 0, index)
        if not isinstance(value, int | float) or value != value:  # noqa: PLR0124  # NaN alone differs from itself
            return (0, 0, index)
        return (1, value if self.config.checkpoint_score_order == "max" else -value, index)

    def commit(self, index: int, value: object, validating: bool) -> None:
        self.there = sorted([*self.there, (index, value, validating)], key=self.key)
        k = self.config.num_to_keep
        worst = [] if k is None else self.there[: max(len(self.there) - k, 0)]
        for entry in worst:
            if entry[0] != index and not entry[2]:
                self.there.remove(entry)


def value_of(metrics: dict[str, object]) -> object:
    if "a/b" in metrics:
        return metrics["a/b"]
    inner = metrics.get("a")
    return inner["b"] if isinstance(inner, dict) else None


@settings(max_examples=150)
@given(CONFIGS, st.lists(st.tuples(METRICS, st.booleans()), max_size=12))
def test_the_model_and_the_rules_keep_the_same(
    config: CheckpointConfig, told: list[tuple[dict[str, object], bool]]
) -> None:
    model, kept = Model(config, []), tuple[Kept, ...]()
    for index, (metrics, validating) in enumerate(told):
        model.commit(index, value_of(metrics), validating)
        packed = pack(metrics)
        assert isinstance(packed, dict)
        score, wrong = score_of(packed, config)
        assert (score is None) == bool(wrong) or config.checkpoint_score_attribute is None
        new = Kept(name=f"c{index}", index=index, attempt=1, score=score, validating=validating)
        kept = ranked(kept, new, new.name)
        gone = {one.name for one in doomed(kept, new.name, config.num_to_keep)}
        kept = tuple(one for one in kept if one.name not in gone)
        assert [one.index for one in kept] == [entry[0] for entry in model.there]
        assert new in kept, "the latest is protected"


@settings(max_examples=40)
@given(CONFIGS, st.lists(METRICS, max_size=8))
def test_a_whole_run_keeps_what_the_model_keeps(config: CheckpointConfig, told: list[dict[str, object]]) -> None:
    run = Run(1, checkpoint=config).running()
    model = Model(config, [])
    deleted: set[str] = set()
    for index, metrics in enumerate(told):
        run.says(run.shard(0, index))
        packed = pack(metrics)
        assert isinstance(packed, dict)
        run.says(run.sealed(f"checkpoint_{index:06d}_1", packed))
        model.commit(index, value_of(metrics), False)
        for one in [one for one in run.state.tasks if one.task.kind == "delete"]:
            names = one.task.arguments["names"]
            assert isinstance(names, list)
            deleted |= {str(name) for name in names}
            run.says(run.task_ended(one.task.id))
        assert [one.index for one in run.state.checkpoints.kept] == [entry[0] for entry in model.there]
        assert run.state.tasks == ()
    all_names = {f"checkpoint_{index:06d}_1" for index in range(len(told))}
    assert deleted == all_names - {one.name for one in run.state.checkpoints.kept}


def test_the_tracked_list_has_a_limit_and_never_loses_the_latest() -> None:
    kept = tuple[Kept, ...]()
    for index in range(1010):
        new = Kept(name=f"c{index}", index=index, attempt=1, score=float(-index))
        kept = ranked(kept, new, new.name)
    assert len(kept) == 1000
    assert kept[0].index == 1009
    assert replace(kept[-1], index=0).index == 0
