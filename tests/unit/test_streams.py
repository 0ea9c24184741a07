"""Data sets of Ray by their shape; the real ones are in tests/on_ray."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from runfold.parcels import Parcels
from runfold.pickling import pickle_object
from runfold.workers.data import Cursor, DataConfig, DatasetShard
from runfold.workers.payload import unpickled
from runfold.workers.streams import Rows, columns, is_ray_dataset

if TYPE_CHECKING:
    from collections.abc import Iterator


class Shaped:
    """Rows with the calls of a Ray dataset. Like one it has no order until it is asked for."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.context = SimpleNamespace(execution_options=SimpleNamespace(preserve_order=False))

    def iter_rows(self) -> Iterator[dict[str, int]]:
        ordered = self.context.execution_options.preserve_order
        yield from ({"id": number} for number in (self.numbers if ordered else reversed(self.numbers)))

    def count(self) -> int:
        return len(self.numbers)

    def random_shuffle(self, *, seed: int) -> Shaped:
        return Shaped(random.Random(seed).sample(self.numbers, len(self.numbers)))

    def streaming_split(self, n: int) -> None:
        raise NotImplementedError


def shard(data: object, rank: int, cursor: Cursor | None = None, seed: int | None = None) -> DatasetShard:
    return DatasetShard("train", data, rank=rank, world=2, config=DataConfig(shuffle_seed=seed), cursor=cursor)


def ids(rows: object) -> list[int]:
    assert isinstance(rows, list)
    return [row["id"] for row in rows]


@pytest.mark.parametrize("data", [Rows.of(Shaped(list(range(7)))), lambda: Shaped(list(range(7)))])
def test_each_rank_has_its_rows_in_the_order_of_the_dataset(data: object) -> None:
    assert [ids(list(shard(data, rank))) for rank in range(2)] == [[0, 2, 4], [1, 3, 5]]
    assert [len(shard(data, rank)) for rank in range(2)] == [3, 3]


@pytest.mark.parametrize("data", [Rows.of(Shaped(list(range(7)))), lambda: Shaped(list(range(7)))])
def test_batches_are_columns(data: object) -> None:
    batches = list(shard(data, 1).iter_batches(batch_size=2))
    assert all(isinstance(batch, dict) and isinstance(batch["id"], np.ndarray) for batch in batches)
    assert [batch["id"].tolist() for batch in batches if isinstance(batch, dict)] == [[1, 3], [5]]


@pytest.mark.parametrize("data", [Rows.of(Shaped(list(range(8)))), lambda: Shaped(list(range(8)))])
def test_an_epoch_s_order_is_the_seed_s_and_a_cursor_goes_on_in_it(data: object) -> None:
    first, again = [ids(list(shard(data, rank, seed=3))) for rank in (0, 1)], ids(list(shard(data, 0, seed=3)))
    assert first[0] == again
    assert sorted(first[0] + first[1]) == list(range(8))
    whole = shard(data, 0, seed=3)
    epochs = [ids(list(whole)), ids(list(whole))]
    assert epochs[0] != epochs[1]
    assert ids(list(shard(data, 0, Cursor(1, 0, 2), seed=3))) == epochs[1][2:]


def test_one_that_is_given_travels_as_its_rows() -> None:
    parcels = Parcels()
    name = parcels.datasets({"train": Shaped([3, 1, 2])}, None)
    blob = parcels.blob(name)
    assert blob is not None
    given = unpickled(blob)
    assert isinstance(given, tuple)
    rows = given[0]["train"]
    assert (type(rows), ids(rows)) == (Rows, [3, 1, 2])
    assert ids(unpickled(pickle_object(rows))) == [3, 1, 2]


def test_what_has_another_shape_is_none() -> None:
    assert is_ray_dataset(Shaped([]))
    others: list[object] = [Shaped, [1], {"iter_rows": 1}, np.arange(3), iter([]), lambda: Shaped([])]
    assert not any(is_ray_dataset(data) for data in others)


def test_rows_that_are_no_dicts_stay_rows() -> None:
    assert columns([1, 2]) == [1, 2]
    assert columns([]) == []
