"""What is to be done of many things, and when: each at most once at a time, the urgent ones first."""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass, field
from itertools import count


@dataclass(slots=True)
class _Item:
    """A thing: when it is due (None: not wanted), whether it is urgent, whether somebody is at it."""

    due_s: float | None = None
    urgent: bool = False
    busy: bool = False


@dataclass(slots=True)
class Agenda:
    """Names with a time each. `next` gives one that is due to a worker, who says `done` of it."""

    _items: dict[str, _Item] = field(default_factory=dict)
    _later: list[tuple[float, int, str]] = field(default_factory=list)
    _waiters: set[asyncio.Event] = field(default_factory=set)
    _numbers: count[int] = field(default_factory=count)

    def want(self, name: str, wait_s: float, *, urgent: bool = False) -> None:
        """Have something done after a while; sooner if it was wanted later. Urgent is at once, and before all else."""
        item = self._items.setdefault(name, _Item())
        due_s = asyncio.get_running_loop().time() + (0.0 if urgent else wait_s)
        sooner = item.due_s is None or due_s < item.due_s
        # What was due already and becomes urgent moves up too: its place among the others counts no more.
        moves_up = urgent and not item.urgent
        item.urgent = item.urgent or urgent
        if sooner:
            item.due_s = due_s
        if (sooner or moves_up) and not item.busy:
            self._push(name, item)

    @property
    def is_pressed(self) -> bool:
        """Whether something urgent waits for a worker."""
        return bool(self._later) and self._later[0][0] < 0

    async def next(self) -> str:
        """Wait until something is due, and take it."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            while self._later and self._is_stale(self._later[0]):
                heapq.heappop(self._later)
            if self._later and self._later[0][0] <= now:
                name = heapq.heappop(self._later)[2]
                item = self._items[name]
                item.due_s, item.urgent, item.busy = None, False, True
                return name
            await self._wait(self._later[0][0] - now if self._later else None)

    def done(self, name: str) -> None:
        """Say that nobody is at something any more."""
        item = self._items[name]
        item.busy = False
        if item.due_s is None:
            del self._items[name]
        else:
            self._push(name, item)

    async def rest(self, rest_s: float) -> None:
        """Rest for a while, or until something urgent comes."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + rest_s
        while not self.is_pressed and (left_s := until_s - loop.time()) > 0:
            await self._wait(left_s)

    def _push(self, name: str, item: _Item) -> None:
        # Below every time of the clock: what is urgent stands first.
        at = -1.0 if item.urgent else item.due_s or 0.0
        heapq.heappush(self._later, (at, next(self._numbers), name))
        self._wake()

    def _is_stale(self, entry: tuple[float, int, str]) -> bool:
        item = self._items.get(entry[2])
        if item is None or item.busy or item.due_s is None:
            return True
        return entry[0] != (-1.0 if item.urgent else item.due_s)

    def _wake(self) -> None:
        for waiter in self._waiters:
            waiter.set()

    async def _wait(self, timeout_s: float | None) -> None:
        """Wait for news, or for a time."""
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.wait()
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(waiter)
