"""Data sets of Ray, known by their shape: nothing here imports ray.

One that is given to a trainer is gone over there, and its rows travel. One that a callable returns is streamed in each
rank, in an order that is the same in all of them; what others get is passed over.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeGuard, cast

_SEED_BITS = 31


class RayDataset(Protocol):
    """The part of a Ray dataset that is used."""

    def iter_rows(self) -> Iterable[object]:
        """Go over all rows, each a dict."""
        ...

    def count(self) -> int:
        """Return how many rows there are."""
        ...

    def random_shuffle(self, *, seed: int) -> RayDataset:
        """Return the rows in another order, the same for the same seed."""
        ...


class _ExecutionOptions(Protocol):
    preserve_order: bool


class _Context(Protocol):
    execution_options: _ExecutionOptions


def is_ray_dataset(data: object) -> TypeGuard[RayDataset]:
    """Whether it has the shape of a Ray dataset: rows to be iterated and split, and no place that can be asked for."""
    calls = ("iter_rows", "count", "random_shuffle", "streaming_split")
    return not isinstance(data, type) and all(callable(getattr(data, name, None)) for name in calls)


def in_order(dataset: RayDataset) -> RayDataset:
    """Have a dataset's rows come in the same order each time it is gone over."""
    with suppress(AttributeError):
        context: _Context = cast("_Context", getattr(dataset, "context"))  # noqa: B009  # an older Ray has none
        context.execution_options.preserve_order = True
    return dataset


class Rows(list[object]):
    """The rows of a Ray dataset, taken. Batches of them are columns."""

    @classmethod
    def of(cls, dataset: RayDataset) -> Rows:
        """Take all rows of a dataset."""
        return cls(in_order(dataset).iter_rows())


class Streamed:
    """A Ray dataset that is gone over once an epoch."""

    def __init__(self, dataset: RayDataset) -> None:
        self._dataset = in_order(dataset)

    def __len__(self) -> int:
        """Return how many rows there are, for all ranks together; this may go over all of them."""
        return self._dataset.count()

    def rows(self, epoch: int, seed: int | None) -> Iterator[object]:
        """Go over the rows of an epoch; with a seed in an order that is the same in every rank and every run."""
        if seed is None:
            return iter(self._dataset.iter_rows())
        number = random.Random(f"{seed}:{epoch}").getrandbits(_SEED_BITS)  # noqa: S311  # nothing secret
        return iter(in_order(self._dataset.random_shuffle(seed=number)).iter_rows())


def columns(rows: Sequence[object]) -> object:
    """Return rows as Ray's batches are: an array for each column; rows that have none, as they are."""
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        return list(rows)
    array = cast("Callable[[object], object]", importlib.import_module("numpy").asarray)
    records = cast("Sequence[Mapping[str, object]]", rows)
    return {name: array([row[name] for row in records]) for name in records[0]}
