"""Hearing beats: on a connection of their own, so that a flood of them delays nothing that is kept.

Of each source only the newest message is held until the next tick, undecoded. A tick counts as observed time when
everything that was said since the last one could be heard: the connection was up, the PING sent then was answered, no
message was dropped, and the tick came in time.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.controller.liveness import Beat, Heard
from runfold.events.nats.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from runfold.events.nats.client import RawMessage, RawSubscription
    from runfold.events.nats.connection import Connection

TICK_S: Final = 0.5
TICK_LATE_MAX_S: Final = 0.5
PONG_TIMEOUT_S: Final = 2.0
RUNS_PER_TURN_MAX: Final = 32


class _Rank(msgspec.Struct):
    rank: int
    paused: bool = False


class _RunnerBeat(msgspec.Struct):
    """What matters of a runner's beat: the rest is for people, and not decoded."""

    incarnation: int
    number: int
    ranks: list[_Rank] = []
    unsaid_s: float = 0.0


class _PoolBeat(msgspec.Struct):
    nodes: dict[str, int]
    unsaid_s: dict[str, float] = {}


_RUNNERS: Final = msgspec.json.Decoder(_RunnerBeat)
_POOLS: Final = msgspec.json.Decoder(_PoolBeat)


class Ears:
    """All that one controller hears beat. `close` ends it; the connection is its maker's."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._runs: dict[RunEar, None] = {}
        self._pools: dict[str, _Pool] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._ping: asyncio.Task[bool] | None = None
        self._before = (0, 0)

    def run(self, run: str) -> RunEar:
        """Return the ear for one run; nothing is opened by this."""
        return RunEar(self, run)

    async def close(self) -> None:
        """Hear nothing more."""
        tasks: list[asyncio.Task[None] | asyncio.Task[bool]] = [
            task for task in (self._ticking, self._ping) if task is not None
        ]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._ticking = self._ping = None

    async def attend(self, ear: RunEar, pool: str) -> RawSubscription:
        """Hear a run's beats and its pool's."""
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._tick_on(), name="beats")
        subscription = await self._connection.subscribe(self._connection.names.subjects.beats(ear.run), ear.heard)
        if pool not in self._pools:
            heard = self._pools[pool] = _Pool()
            heard.subscription = await self._connection.subscribe(
                self._connection.names.subjects.pool_beat(pool), heard.heard
            )
        self._pools[pool].users += 1
        self._runs[ear] = None
        return subscription

    async def forget(self, ear: RunEar, pool: str, subscription: RawSubscription) -> None:
        """Hear a run's beats no more, nor those of a pool that nobody else attends."""
        self._runs.pop(ear, None)
        await self._connection.unsubscribe(subscription)
        heard = self._pools[pool]
        heard.users -= 1
        if not heard.users and heard.subscription is not None:
            del self._pools[pool]
            await self._connection.unsubscribe(heard.subscription)

    async def _tick_on(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(max(0.0, last + TICK_S - time.monotonic()))
            now = time.monotonic()
            elapsed_s, last = now - last, now
            tick_s = min(elapsed_s, TICK_S) if self._could_hear(elapsed_s) else 0.0
            pools = {name: pool.take() for name, pool in self._pools.items()}
            for k, ear in enumerate(tuple(self._runs)):
                ear.tick(pools, tick_s)
                if k % RUNS_PER_TURN_MAX == RUNS_PER_TURN_MAX - 1:
                    await asyncio.sleep(0)

    def _could_hear(self, elapsed_s: float) -> bool:
        """Whether everything that was said since the last tick was heard; ask the server for the next one."""
        connection, ping = self._connection, self._ping
        answered = ping is not None and ping.done() and not ping.cancelled() and ping.result()
        before, self._before = self._before, (connection.generation, connection.dropped_count)
        if ping is None or ping.done():
            self._ping = asyncio.create_task(self._ask(), name="ping")
        in_time = elapsed_s < TICK_S + TICK_LATE_MAX_S
        return connection.is_up and answered and before == self._before and in_time

    async def _ask(self) -> bool:
        try:
            await self._connection.ready(PONG_TIMEOUT_S)
        except BrokerError:
            return False
        return True


class RunEar:
    """One run's beats. See `runfold.controller.ports.Ear`."""

    def __init__(self, ears: Ears, run: str) -> None:
        self.run = run
        self._ears = ears
        self._pool = ""
        self._newest: dict[str, bytes] = {}
        self._on_tick: Callable[[Heard, float], None] | None = None
        self._subscription: RawSubscription | None = None

    async def open(self, pool: str, on_tick: Callable[[Heard, float], None]) -> None:
        self._pool, self._on_tick = pool, on_tick
        self._subscription = await self._ears.attend(self, pool)

    async def close(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await self._ears.forget(self, self._pool, subscription)

    async def heard(self, message: RawMessage) -> None:
        self._newest[message.subject.rpartition(".")[2]] = message.data

    def tick(self, pools: dict[str, _PoolBeat | None], tick_s: float) -> None:
        newest, self._newest = self._newest, {}
        beats = {source: beat for source, data in newest.items() if (beat := _beat(data)) is not None}
        pool = pools.get(self._pool)
        unsaid_s = [beat.unsaid_s for beat in beats.values()]
        if pool is not None:
            unsaid_s.append(pool.unsaid_s.get(self.run, 0.0))
        if self._on_tick is not None:
            nodes = frozenset(pool.nodes) if pool is not None else None
            self._on_tick(Heard(beats=beats, nodes=nodes, unsaid_s=max(unsaid_s, default=0.0)), tick_s)


class _Pool:
    def __init__(self) -> None:
        self.users = 0
        self.subscription: RawSubscription | None = None
        self._newest: bytes | None = None

    async def heard(self, message: RawMessage) -> None:
        self._newest = message.data

    def take(self) -> _PoolBeat | None:
        data, self._newest = self._newest, None
        if data is None:
            return None
        try:
            return _POOLS.decode(data)
        except msgspec.DecodeError:
            return None


def _beat(data: bytes) -> Beat | None:
    try:
        beat = _RUNNERS.decode(data)
    except msgspec.DecodeError:
        return None
    paused = frozenset(rank.rank for rank in beat.ranks if rank.paused)
    return Beat(incarnation=beat.incarnation, number=beat.number, paused=paused, unsaid_s=beat.unsaid_s)
