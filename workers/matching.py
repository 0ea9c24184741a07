"""Matching the ranks' collectives: who waits for whom, when all are there, and why it can no longer be. No I/O.

Every rank numbers its collectives 1, 2, 3, …; those of one number belong together. The first thing that goes wrong
with a number decides it for all its ranks, those that come later included, so that they stay in step.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from runfold.workers.limits import GATHER_MAX_BYTES
from runfold.workers.link import Collect, Collected, CollectiveKind, RefusalKind, Refused

RANKS_NAMED_MAX: Final = 16


class Outcome(msgspec.Struct, frozen=True):
    """An answer and the ranks it is for."""

    ranks: tuple[int, ...]
    answer: Collected | Refused


class _Round(msgspec.Struct):
    kind: CollectiveKind
    first: int
    since_s: float
    values: dict[int, bytes | None] = {}
    deadline_s: float | None = None
    refused: Refused | None = None


class Matcher:
    """The collectives of so many ranks from `first` on. Times are seconds of any clock that does not jump."""

    def __init__(self, world_size: int, first: int = 0) -> None:
        self._world_size = world_size
        self._all = frozenset(range(first, first + world_size))
        self._rounds: dict[int, _Round] = {}
        self._gone: dict[int, str] = {}

    def arrive(self, rank: int, request: Collect, now_s: float) -> list[Outcome]:
        """A rank takes part in a collective; return what that decides."""
        number = request.number
        current = self._rounds.get(number)
        if current is None:
            current = self._rounds[number] = _Round(request.kind, rank, now_s)
        if current.refused is not None:
            current.values[rank] = None
            refused = current.refused
            self._forget_if_answered(number)
            return [Outcome((rank,), refused)]
        current.values[rank] = request.value
        if request.kind != current.kind:
            return self._refuse(number, "mismatch", _mismatch(number, current, rank, request.kind))
        if request.timeout_s is not None:
            deadline_s = now_s + request.timeout_s
            current.deadline_s = min(deadline_s, current.deadline_s or deadline_s)
        if gone := self._gone.keys() - current.values.keys():
            return self._refuse_for_gone(number, gone)
        return [self._complete(number)] if len(current.values) == self._world_size else []

    def leave(self, rank: int, how: str) -> list[Outcome]:
        """A rank takes part in nothing any more (`how`: "has returned"); refuse what waits for it."""
        if rank in self._gone:
            return []
        self._gone[rank] = how
        outcomes: list[Outcome] = []
        for number, current in list(self._rounds.items()):
            if current.refused is None and rank not in current.values:
                outcomes += self._refuse_for_gone(number, {rank})
            else:
                self._forget_if_answered(number)
        return outcomes

    def expire(self, now_s: float) -> list[Outcome]:
        """Refuse what has waited for its whole timeout."""
        outcomes: list[Outcome] = []
        for number, current in list(self._rounds.items()):
            if current.refused is None and current.deadline_s is not None and current.deadline_s <= now_s:
                missing = sorted(self._missing(current))
                text = (
                    f"{current.kind} #{number} timed out after {now_s - current.since_s:.1f} s: "
                    f"{_name(missing)} did not arrive"
                )
                outcomes += self._refuse(number, "timeout", text, tuple(missing))
        return outcomes

    def next_deadline_s(self) -> float | None:
        """When `expire` will have something to do."""
        waiting = (r.deadline_s for r in self._rounds.values() if r.refused is None)
        return min((d for d in waiting if d is not None), default=None)

    def waiting(self) -> dict[int, tuple[CollectiveKind, int, tuple[int, ...]]]:
        """Return, for each rank that waits, the kind and number of its collective and the ranks missing in it."""
        return {
            rank: (current.kind, number, tuple(sorted(self._missing(current))))
            for number, current in self._rounds.items()
            if current.refused is None
            for rank in current.values
        }

    def _missing(self, current: _Round) -> set[int]:
        return set(self._all - current.values.keys())

    def _complete(self, number: int) -> Outcome:
        current = self._rounds.pop(number)
        ranks = tuple(sorted(current.values))
        values = [value for rank in ranks if (value := current.values[rank]) is not None]
        total = sum(map(len, values))
        if total > GATHER_MAX_BYTES:
            text = (
                f"{current.kind} #{number}: the values of all ranks are {total} bytes together, "
                f"over gather_max_bytes ({GATHER_MAX_BYTES})"
            )
            return Outcome(ranks, Refused(number, current.kind, "too_large", text))
        return Outcome(ranks, Collected(number, values))

    def _refuse_for_gone(self, number: int, gone: Collection[int]) -> list[Outcome]:
        current = self._rounds[number]
        told = [f"rank {rank} {self._gone[rank]}" for rank in sorted(gone)[:RANKS_NAMED_MAX]]
        if len(gone) > RANKS_NAMED_MAX:
            told.append(f"{len(gone) - RANKS_NAMED_MAX} more are gone")
        text = f"{current.kind} #{number} cannot come about: {' and '.join(told)} and will not take part in it"
        return self._refuse(number, "peer", text, tuple(sorted(gone)))

    def _refuse(self, number: int, error: RefusalKind, text: str, missing: tuple[int, ...] = ()) -> list[Outcome]:
        current = self._rounds[number]
        current.refused = Refused(number, current.kind, error, text, missing)
        outcome = Outcome(tuple(sorted(current.values)), current.refused)
        current.values = dict.fromkeys(current.values)
        self._forget_if_answered(number)
        return [outcome]

    def _forget_if_answered(self, number: int) -> None:
        current = self._rounds[number]
        still_to_come = self._world_size - len(current.values.keys() | self._gone.keys())
        if current.refused is not None and still_to_come == 0:
            del self._rounds[number]


def _mismatch(number: int, current: _Round, rank: int, kind: CollectiveKind) -> str:
    return (
        f"ranks called different collectives at the same place: rank {current.first} is in "
        f"{current.kind} #{number}, rank {rank} in {kind} #{number}; "
        "all ranks must call the same ones in the same order"
    )


def _name(ranks: list[int]) -> str:
    named = ", ".join(map(str, ranks[:RANKS_NAMED_MAX]))
    more = f" and {len(ranks) - RANKS_NAMED_MAX} more" if len(ranks) > RANKS_NAMED_MAX else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {named}{more}"
