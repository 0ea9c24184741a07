"""Data sets in ranks: shared out, shuffled, gone on with after a restart, no row lost or doubled."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runfold.workers.data import Cursor, DataConfig, DatasetShard, Given, RankData, resumed
from runfold.workers.errors import DataError


def shards(data: object, world: int, config: DataConfig | None = None) -> list[DatasetShard]:
    return [DatasetShard("train", data, rank=rank, world=world, config=config or DataConfig()) for rank in range(world)]


def rows(shard: DatasetShard) -> list[object]:
    return list(shard)


class Lines:
    """An iterable that can be gone over again and has no length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


@pytest.mark.parametrize("data", [list(range(10)), range(10), np.arange(10), Lines(), lambda: range(10)])
def test_ranks_share_the_rows_equally(data: object) -> None:
    seen = [[int(cast("int", row)) for row in shard] for shard in shards(data, 3)]
    assert seen == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_a_callable_that_returns_an_iterator_is_called_for_each_epoch() -> None:
    shard = shards(lambda: iter(range(4)), 2)[1]
    assert (rows(shard), rows(shard)) == ([1, 3], [1, 3])


def test_the_rows_that_are_left_over_can_be_had_too() -> None:
    config = DataConfig(equal=False)
    assert [rows(shard) for shard in shards(list(range(5)), 2, config)] == [[0, 2, 4], [1, 3]]
    assert [rows(shard) for shard in shards(Lines(), 4, config)] == [
        [0, 4, 8],
        [1, 5, 9],
        [2, 6],
        [3, 7],
    ]
    assert [len(shard) for shard in shards(list(range(5)), 2, config)] == [3, 2]


def test_a_frame_s_rows_are_dicts_and_its_batches_frames() -> None:
    frame = pd.DataFrame({"x": [1, 2, 3, 4], "y": list("abcd")})
    shard = shards(frame, 2)[1]
    assert rows(shard) == [{"x": 2, "y": "b"}, {"x": 4, "y": "d"}]
    batches = list(shard.iter_batches(batch_size=2))
    assert [list(cast("pd.DataFrame", batch)["x"]) for batch in batches] == [[2, 4]]


def test_batches_of_arrays_are_arrays_and_the_last_can_be_dropped() -> None:
    shard = shards(np.arange(10).reshape(5, 2), 1)[0]
    whole = list(shard.iter_batches(batch_size=2))
    assert [cast("np.ndarray[tuple[int, int], np.dtype[np.int64]]", batch).shape for batch in whole] == [
        (2, 2),
        (2, 2),
        (1, 2),
    ]
    assert len(list(shard.iter_batches(batch_size=2, drop_last=True))) == 2
    assert len(list(shard.iter_batches(batch_size=None))) == 1
    with pytest.raises(ValueError, match="batch_size"):
        list(shard.iter_batches(batch_size=0))


def test_each_epoch_has_another_order_that_the_seed_fixes() -> None:
    config = DataConfig(shuffle_seed=7)
    first, again = shards(list(range(12)), 2, config), shards(list(range(12)), 2, config)
    epochs = [[rows(shard) for shard in first] for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert epochs[0] == [rows(shard) for shard in again]
    for epoch in epochs:
        assert sorted(cast("list[int]", epoch[0] + epoch[1])) == list(range(12))
    with pytest.raises(DataError, match="known length"):
        DatasetShard("train", Lines(), rank=0, world=1, config=config)


def test_what_is_not_split_every_rank_gets_whole() -> None:
    config = DataConfig(datasets_to_split=["other"])
    assert [rows(shard) for shard in shards([1, 2], 2, config)] == [[1, 2], [1, 2]]
    with pytest.raises(TypeError, match="datasets_to_split"):
        DataConfig(datasets_to_split="train")


@pytest.mark.parametrize("data", [{"x": [1]}, "text", {1, 2}, 3, lambda: 3])
def test_what_has_no_rows_in_an_order_is_refused(data: object) -> None:
    with pytest.raises(DataError, match="'train'"):
        DatasetShard("train", data, rank=0, world=1, config=DataConfig())


def test_an_iterable_without_length_says_so() -> None:
    with pytest.raises(TypeError, match="no known length"):
        len(shards(Lines(), 1)[0])


def test_a_for_that_was_left_is_followed_by_the_next_epoch() -> None:
    shard = shards(list(range(6)), 1)[0]
    for _ in shard:
        break
    assert (shard.epoch, shard.cursor) == (0, Cursor(0, 0, 1))
    assert rows(shard) == list(range(6))
    assert shard.cursor == Cursor(2)


@given(
    total=st.integers(0, 40),
    world=st.integers(1, 4),
    cut=st.integers(0, 12),
    seed=st.none() | st.integers(0, 3),
    sized=st.booleans(),
)
def test_no_row_is_lost_or_doubled_over_a_restart(
    total: int, world: int, cut: int, seed: int | None, sized: bool
) -> None:
    config = DataConfig(shuffle_seed=seed if sized else None)
    data: object = list(range(total)) if sized else (lambda: iter(range(total)))
    seen: list[object] = []
    for rank in range(world):
        before = DatasetShard("train", data, rank=rank, world=world, config=config)
        passing = iter(before)
        seen += [row for _, row in zip(range(min(cut, total // world)), passing, strict=False)]
        after = DatasetShard("train", data, rank=rank, world=world, config=config, cursor=before.cursor)
        seen += rows(after)
        assert after.epoch == 1
    assert len(seen) == len(set(seen)) == total // world * world


@given(total=st.integers(0, 60), before=st.integers(1, 4), after=st.integers(1, 4), taken=st.integers(0, 10))
def test_a_group_of_another_size_goes_on_where_all_ranks_were_at_the_same_place(
    total: int, before: int, after: int, taken: int
) -> None:
    taken = min(taken, total // before)
    mark = RankData(lambda: Given({"train": range(total)}, DataConfig()), rank=0, world=before, left=lambda: ({}, 0))
    shard = mark.shard("train")
    seen = [row for _, row in zip(range(taken), shard, strict=False)]
    text = mark.mark()
    assert text is not None
    left = {f"{(1 << before) - 1:x}": text}
    for rank in range(after):
        cursors = resumed(left, before, rank=rank, world=after, splits=DataConfig().splits)
        data = DatasetShard("train", range(total), rank=rank, world=after, config=DataConfig(), cursor=cursors["train"])
        seen += rows(data)
    others = [row for rank in range(1, before) for row in list(range(rank, total, before))[:taken]]
    assert len(seen + others) == len(set(seen + others))


def test_a_group_of_another_size_begins_the_epoch_anew_where_ranks_were_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    left = {"1": '{"train":[2,0,3]}', "2": '{"train":[2,0,4]}'}
    assert resumed(left, 2, rank=0, world=3, splits=lambda _: True) == {"train": Cursor(2)}
    assert "not at the same place" in capsys.readouterr().err
    assert resumed(left, 2, rank=1, world=2, splits=lambda _: True) == {"train": Cursor(2, 0, 4)}


def test_what_cannot_be_read_of_a_cursor_is_no_cursor() -> None:
    assert resumed({"1": "nonsense"}, 1, rank=0, world=1, splits=lambda _: True) == {}
    assert resumed({}, 0, rank=0, world=1, splits=lambda _: True) == {}


def test_a_rank_knows_its_data_sets_by_name() -> None:
    loads: list[int] = []

    def load() -> Given:
        loads.append(1)
        return Given({"train": [1, 2], "valid": [3]}, DataConfig(datasets_to_split=["train"]))

    data = RankData(load, rank=1, world=2, left=lambda: ({"3": '{"train":[4,0,1]}'}, 2))
    assert data.mark() is None
    assert data.shard("train") is data.shard("train")
    assert data.shard("train").epoch == 4
    assert data.mark() == '{"train":[4,0,1]}'
    assert rows(data.shard("valid")) == [3]
    assert data.mark() == '{"train":[4,0,1],"valid":[1,0,0]}'
    with pytest.raises(KeyError, match="its datasets: train, valid"):
        data.shard("test")
    assert len(loads) == 1


class Halves(DataConfig):
    """Shares out by halves instead of by turns."""

    def configure(
        self,
        datasets: Mapping[str, object],
        world_size: int,
        worker_handles: object = None,
        worker_node_ids: object = None,
        **more: object,
    ) -> list[dict[str, object]]:
        whole = list(cast("Sequence[object]", datasets["train"]))
        each = len(whole) // world_size
        return [{"part": whole[rank * each : (rank + 1) * each]} for rank in range(world_size)]


def test_a_config_may_share_out_in_a_way_of_its_own() -> None:
    def ranked(rank: int, world: int, left: dict[str, str], before: int) -> RankData:
        given = Given({"train": range(8)}, Halves())
        return RankData(lambda: given, rank=rank, world=world, left=lambda: (left, before))

    assert [rows(ranked(rank, 2, {}, 0).shard("part")) for rank in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    left = {"3": '{"part":[1,0,3]}'}
    again = ranked(1, 2, left, 2).shard("part")
    assert (again.epoch, rows(again)) == (1, [7])
    # A group of another size begins the epoch anew: its parts are others.
    other = ranked(0, 4, left, 2).shard("part")
    assert (other.epoch, rows(other)) == (1, [0, 1])
    with pytest.raises(KeyError, match="its datasets: part"):
        ranked(0, 2, {}, 0).shard("train")


def test_a_config_travels() -> None:
    config = pickle.loads(pickle.dumps(DataConfig(shuffle_seed=3)))
    assert config.shuffle_seed == 3
