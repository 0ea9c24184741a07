"""Data sets in ranks: each rank's shard of them, in an order that a seed fixes, from where a checkpoint left off.

Rank `r` of `w` takes the rows `r`, `r + w`, `r + 2w`, … of an epoch's order, so that after as many rows of each rank
the group has seen the first rows of the epoch, all of them, each once. A cursor is (epoch, start, taken): the rows
before `start` were taken by a group of another size, and `taken` since by this rank.
"""

from __future__ import annotations

import random
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol, cast, runtime_checkable

import msgspec

from runfold.events.checkpoints import ranks_in
from runfold.workers.errors import DataError
from runfold.workers.processes import tell
from runfold.workers.streams import Rows, Streamed, columns, is_ray_dataset
from runfold.workers.waits import timed

BATCH_SIZE: Final = 256
ALL: Final = "all"


class DataConfig:
    """How data sets are shared out.

    `datasets_to_split`: "all", or the names of those that are split among the ranks; of others each rank gets the
    whole. `shuffle_seed`: another order in each epoch, the same in every run with this seed; None keeps the order.
    `equal`: every rank gets as many rows as every other, and the few that are left over are left out of that epoch.
    `execution_options` and `enable_shard_locality` are the peer's, and have no effect here.

    A subclass may have the peer's `configure(datasets, world_size, worker_handles, worker_node_ids)`, which returns a
    dict of data sets for each rank: it is called in each, which takes its own.
    """

    def __init__(
        self,
        datasets_to_split: str | Sequence[str] = ALL,
        execution_options: object = None,
        enable_shard_locality: bool = True,
        *,
        shuffle_seed: int | None = None,
        equal: bool = True,
    ) -> None:
        if isinstance(datasets_to_split, str) and datasets_to_split != ALL:
            raise TypeError(f"datasets_to_split: must be 'all' or a list of names, not {datasets_to_split!r}")
        for name, flag in (("enable_shard_locality", enable_shard_locality), ("equal", equal)):
            if not isinstance(flag, bool):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
                raise TypeError(f"{name}: must be True or False, not {flag!r}")
        self.datasets_to_split = datasets_to_split
        self.execution_options = execution_options
        self.enable_shard_locality = enable_shard_locality
        self.shuffle_seed = shuffle_seed
        self.equal = equal

    def splits(self, name: str) -> bool:
        """Whether a data set is split among the ranks."""
        return self.datasets_to_split == ALL or name in self.datasets_to_split


class _Configure(Protocol):
    """Sharing out of the user's own."""

    def __call__(
        self,
        datasets: Mapping[str, object],
        world_size: int,
        *,
        worker_handles: Sequence[object] | None,
        worker_node_ids: Sequence[str],
    ) -> Sequence[Mapping[str, object]]: ...


class Given(msgspec.Struct):
    """What travels to the ranks, pickled: the data sets as they were given, and how they are shared out."""

    datasets: Mapping[str, object]
    config: DataConfig


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """Where a rank is: see the module."""

    epoch: int = 0
    start: int = 0
    taken: int = 0


@runtime_checkable
class _Frame(Protocol):
    """A data frame, of pandas or of its kind."""

    @property
    def columns(self) -> Iterable[object]: ...

    @property
    def iloc(self) -> Mapping[object, object]: ...

    def __len__(self) -> int: ...


@runtime_checkable
class _Sized(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> object: ...


class DatasetShard:
    """A rank's share of a data set. Each `for` over it, or over its batches, is an epoch.

    The first one after a restart goes on where the checkpoint left off. A row counts as taken when it is handed out.
    """

    def __init__(
        self, name: str, data: object, *, rank: int, world: int, config: DataConfig, cursor: Cursor | None = None
    ) -> None:
        self.name = name
        self._data = _opened(name, data)
        self._rank, self._world = (rank, world) if config.splits(name) else (0, 1)
        self._config = config
        self._cursor = cursor or Cursor()
        self._begun = False
        if config.shuffle_seed is not None and not isinstance(self._data, _Sized | _Frame | Streamed):
            raise DataError(f"dataset {name!r}: only data of known length can be shuffled, not {type(data).__name__}")

    @property
    def cursor(self) -> Cursor:
        """Where this rank is."""
        return self._cursor

    @property
    def epoch(self) -> int:
        """The epoch, from 0, that the present or next `for` goes over."""
        return self._cursor.epoch

    def __len__(self) -> int:
        """Return how many rows this rank gets in a whole epoch."""
        if not isinstance(self._data, _Sized | _Frame | Streamed):
            raise TypeError(f"dataset {self.name!r} has no known length")
        return self._share(len(self._data))

    def count(self) -> int:
        """Return the same as `len`."""
        return len(self)

    def __iter__(self) -> Iterator[object]:
        """Go over the rows of an epoch."""
        return self.iter_rows()

    def iter_rows(self) -> Iterator[object]:
        """Go over the rows of an epoch; a data frame's are dicts."""
        return timed("data", self._rows())

    def _rows(self) -> Iterator[object]:
        for place, row in self._pass():
            yield self._row(place) if place is not None else row

    def iter_batches(self, *, batch_size: int | None = BATCH_SIZE, drop_last: bool = False) -> Iterator[object]:
        """Go over an epoch in batches: data frames of a data frame, arrays of an array, lists of rows of all else.

        A Ray dataset's are dicts of arrays by column.
        """
        return timed("data", self._batches(batch_size, drop_last=drop_last))

    def _batches(self, batch_size: int | None, *, drop_last: bool) -> Iterator[object]:
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size: must be at least 1 or None, not {batch_size}")
        rows = self._pass()
        while batch := list(islice(rows, batch_size)):
            if drop_last and batch_size is not None and len(batch) < batch_size:
                continue
            yield self._batch(batch)

    def iter_torch_batches(self, *, batch_size: int | None = BATCH_SIZE, drop_last: bool = False) -> Iterator[object]:
        """Go over an epoch in tensors: of a data frame, and of a Ray dataset, a dict of them by column."""
        return timed("data", self._tensors(batch_size, drop_last=drop_last))

    def _tensors(self, batch_size: int | None, *, drop_last: bool) -> Iterator[object]:
        from runfold.workers.backends.torchlib import torch as loaded

        torch = loaded()
        for batch in self._batches(batch_size, drop_last=drop_last):
            if isinstance(batch, _Frame):
                table = cast("Mapping[object, object]", batch)
                yield {str(name): torch.as_tensor(_values(table[name])) for name in batch.columns}
            elif isinstance(batch, Mapping):
                named = cast("Mapping[str, object]", batch)
                yield {name: torch.as_tensor(values) for name, values in named.items()}
            else:
                yield torch.as_tensor(_values(batch))

    # --- one pass

    def _pass(self) -> Iterator[tuple[int | None, object]]:
        """Yield (place, None) of data with places, else (None, row); the cursor moves as they are handed out."""
        if self._begun:
            self._cursor = Cursor(self._cursor.epoch + 1)
        self._begun = True
        epoch = self._cursor.epoch
        if isinstance(self._data, _Sized | _Frame):
            yield from self._places(len(self._data))
        elif isinstance(self._data, Streamed):
            yield from self._stream(self._data.rows(epoch, self._config.shuffle_seed))
        else:
            yield from self._stream(cast("Iterable[object]", self._data))
        if self._cursor.epoch == epoch:
            self._cursor, self._begun = Cursor(epoch + 1), False

    def _places(self, total: int) -> Iterator[tuple[int, object]]:
        epoch, start = self._cursor.epoch, self._cursor.start
        order = self._order(total, epoch)
        for k in range(self._cursor.taken, self._share(total - start)):
            self._cursor = Cursor(epoch, start, k + 1)
            yield order[start + self._rank + k * self._world], None

    def _stream(self, data: Iterable[object]) -> Iterator[tuple[None, object]]:
        epoch, start, taken = self._cursor.epoch, self._cursor.start, self._cursor.taken
        rows = islice(iter(data), start + taken * self._world, None)
        while row := list(islice(rows, self._world)):
            if len(row) <= self._rank or (self._config.equal and len(row) < self._world):
                return
            taken += 1
            self._cursor = Cursor(epoch, start, taken)
            yield None, row[self._rank]

    def _share(self, total: int) -> int:
        each, rest = divmod(max(total, 0), self._world)
        return each if self._config.equal else each + (self._rank < rest)

    def _order(self, total: int, epoch: int) -> Sequence[int]:
        seed = self._config.shuffle_seed
        if seed is None:
            return range(total)
        order = array("q", range(total))
        random.Random(f"{seed}:{epoch}").shuffle(order)  # noqa: S311  # the same in every rank, and nothing secret
        return order

    def _row(self, place: int) -> object:
        if isinstance(self._data, _Frame):
            row = self._data.iloc[place]
            to_dict: Callable[[], object] | None = getattr(row, "to_dict", None)
            return row if to_dict is None else to_dict()
        return cast("_Sized", self._data)[place]

    def _batch(self, batch: list[tuple[int | None, object]]) -> object:
        places = [place for place, _ in batch if place is not None]
        if not places:
            rows = [row for _, row in batch]
            return columns(rows) if isinstance(self._data, Streamed) else rows
        if isinstance(self._data, _Frame):
            return self._data.iloc[places]
        if hasattr(self._data, "shape"):
            return cast("Mapping[object, object]", self._data)[places]
        found = [self._row(place) for place in places]
        return columns(found) if isinstance(self._data, Rows) else found


def _values(column: object) -> object:
    to_numpy: Callable[[], object] | None = getattr(column, "to_numpy", None)
    return column if to_numpy is None else to_numpy()


def _opened(name: str, given: object) -> object:
    """Return what rows come from; a callable of no argument is called, here in the rank."""
    data: object = given
    if callable(given) and not isinstance(given, _Frame | _Sized | Iterable) and not is_ray_dataset(given):
        make = cast("Callable[[], object]", given)
        data = make()
        if isinstance(data, Iterator):
            data = _Anew(make)
    if is_ray_dataset(data):
        return Streamed(data)
    kind = _kind(data)
    if isinstance(data, Mapping | str | bytes | set | frozenset):
        raise DataError(
            f"dataset {name!r}: a {kind} is no data set: it has no rows in an order that all ranks agree on"
        )
    if not _has_rows(data):
        raise DataError(f"dataset {name!r}: {kind} has no rows: it is neither sequence nor iterable")
    return data


def _kind(data: object) -> str:
    return type(data).__name__


def _has_rows(data: object) -> bool:
    return isinstance(data, _Frame | _Sized | Iterable)


class _Anew:
    """What a callable returned could be gone over only once: it is called again for each pass."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[object]:
        return iter(cast("Iterable[object]", self._make()))


# --- all data sets of a rank


class RankData:
    """The data sets of one rank. `left` reads where the ranks were in the checkpoint to begin from, by their sets."""

    def __init__(
        self, given: Callable[[], Given], *, rank: int, world: int, left: Callable[[], tuple[dict[str, str], int]]
    ) -> None:
        self._load = given
        self._rank = rank
        self._world = world
        self._left = left
        self._given: Given | None = None
        self._cursors: dict[str, Cursor] = {}
        self._shards: dict[str, DatasetShard] = {}
        self._own = False
        self._lock = threading.Lock()

    def shard(self, name: str) -> DatasetShard:
        """Return this rank's shard; the same object each time."""
        with self._lock:
            if self._given is None:
                self._given = self._begin(self._load())
            given = self._given
            if name not in given.datasets:
                known = ", ".join(sorted(given.datasets)) or "none"
                raise KeyError(f"there is no dataset {name!r} in this run; its datasets: {known}")
            if name not in self._shards:
                rank, world = (0, 1) if self._own else (self._rank, self._world)
                data, cursor = given.datasets[name], self._cursors.get(name)
                self._shards[name] = DatasetShard(
                    name, data, rank=rank, world=world, config=given.config, cursor=cursor
                )
            return self._shards[name]

    def _begin(self, given: Given) -> Given:
        """Return what this rank gets of what was given, and find out where it goes on."""
        left, world_before = self._left()
        self._cursors = resumed(left, world_before, rank=self._rank, world=self._world, splits=given.config.splits)
        configure: _Configure | None = getattr(given.config, "configure", None)
        if configure is None:
            return given
        shared = configure(given.datasets, self._world, worker_handles=None, worker_node_ids=[])
        if len(shared) != self._world:
            raise DataError(f"dataset_config.configure: it must return a dict for each of {self._world} ranks")
        self._own = True
        if world_before != self._world:
            # Shared out in a way of the user's own: where one group was says nothing of where another one is.
            self._cursors = {name: Cursor(at.epoch) for name, at in self._cursors.items()}
        return Given(shared[self._rank], given.config)

    def mark(self) -> str | None:
        """Return where this rank is in all its data sets; None while it has none."""
        if not self._shards:
            return None
        cursors = {**self._cursors, **{name: shard.cursor for name, shard in self._shards.items()}}
        return msgspec.json.encode(cursors, order="deterministic").decode()


def resumed(
    left: Mapping[str, str], world_before: int, *, rank: int, world: int, splits: Callable[[str], bool]
) -> dict[str, Cursor]:
    """Return where a rank goes on, given where the ranks of each set were, and how many there were.

    A group of another size goes on where all its ranks were at the same place; otherwise it begins the epoch anew.
    """
    cursors = {one: _read(text) for ranks, text in left.items() for one in ranks_in(ranks)}
    if not cursors:
        return {}
    if world == world_before:
        return cursors.get(rank, {})
    first = next(iter(cursors.values()))
    if len(cursors) == world_before and all(each == first for each in cursors.values()):
        return {
            name: Cursor(at.epoch, at.start + at.taken * world_before) if splits(name) else at
            for name, at in first.items()
        }
    tell(
        f"runfold: the {world_before} ranks of the checkpoint were not at the same place in their data, so that a "
        f"group of {world} cannot go on there: the epoch begins anew"
    )
    return {name: Cursor(at.epoch) for name, at in first.items()}


def _read(text: str) -> dict[str, Cursor]:
    try:
        return msgspec.json.decode(text, type=dict[str, Cursor])
    except msgspec.DecodeError:
        return {}
