"""When none of an attempt's ranks trains: its replica groups are down, or have returned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.events.facts import PlacementFailed, PlaceReplaced, Queued, RankReturned, RankStarted
from runfold.events.replicas import members
from runfold.replay.uses import Use

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runfold.events.entry import AnyInput


class Idle:
    """The ranks of one attempt while replica groups are replaced; `spans`: when nobody trained, and for what."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int, Use]] = []
        self._count = 0
        self._returned: set[int] = set()
        self._down: set[int] = set()
        self._lives: dict[int, int] = {}
        self._use: Use = "recovery"
        self._waits = False
        self._since: int | None = None

    def laid_out(self, count: int) -> None:
        """Note how many ranks there are."""
        self._count = count

    def hear(self, item: AnyInput, now: int) -> None:
        """Take what is said of ranks, and of places that are waited for."""
        match item:
            case RankReturned(rank=rank):
                self._returned.add(rank)
            case RankStarted(rank=rank, life=life) if life == self._lives.get(rank, 1):
                self._down.discard(rank)
            case Queued() | PlacementFailed(verdict="busy"):
                self._turn(now, waits=True)
            case PlaceReplaced():
                self._turn(now, waits=False)
            case _:
                return
        self._look(now)

    def went_down(self, replicas: Iterable[int], size: int, use: Use, now: int) -> None:
        """Take out replica groups that are to be replaced: without them the time goes into `use`."""
        gone = {rank for number in replicas for rank in members(number, size)}
        self._lives |= {rank: self._lives.get(rank, 1) + 1 for rank in gone}
        self._down |= gone
        self._returned -= gone
        self.close(now)
        self._use, self._waits = use, False
        self._look(now)

    def close(self, now: int) -> None:
        """End the open span, if there is one."""
        if self._since is not None and self._since < now:
            self.spans.append((self._since, now, "waiting_for_capacity" if self._waits else self._use))
        self._since = None

    def _turn(self, now: int, *, waits: bool) -> None:
        if waits != self._waits:
            self.close(now)
            self._waits = waits

    def _look(self, now: int) -> None:
        if not self._down or len(self._down | self._returned) < self._count:
            self.close(now)
        elif self._since is None:
            self._since = now
