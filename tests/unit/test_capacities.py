"""Which pool is meant where none is named."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import msgspec
import pytest

from runfold import capacities
from runfold.capacities import chosen, heard_pools, set_capacity
from runfold.errors import NoAnswerError, UsageError
from runfold.events.beats import PoolBeat
from runfold.events.limits import REQUEST_TIMEOUT_S
from runfold.events.nats.names import Names
from runfold.events.pools import CapacitySet, SetCapacity
from runfold.locate import Address
from support.virtual import run_virtual

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


@pytest.mark.parametrize(
    ("pools", "expected"), [(["local"], "local"), (["ray"], "ray"), (["ray", "local", "other"], "local")]
)
def test_the_pool_that_is_there_is_meant(pools: list[str], expected: str) -> None:
    assert chosen(pools) == expected


def test_where_there_is_none_or_one_of_several_it_must_be_said_which() -> None:
    with pytest.raises(NoAnswerError, match="no supervisor was heard"):
        chosen([])
    with pytest.raises(UsageError, match="--pool: say which: gpus, ray"):
        chosen(["ray", "gpus"])


class Pools:
    """A client of a broker at which the supervisors of these pools beat, and answer."""

    def __init__(self, *pools: str, late_s: float = 0.0) -> None:
        self.pools = pools
        self._late_s = late_s
        self.names = Names("runfold")
        self.connection = self
        self.generation, self.is_up = 1, True
        self.opened_count = 0
        self.heard: dict[int, str] = {}
        self.asked: list[str] = []
        self._subscribed_count = 0
        self._hears: dict[str, Callable[[object], Awaitable[None]]] = {}

    @asynccontextmanager
    async def open(self, _: object) -> AsyncIterator[Pools]:
        self.opened_count += 1
        yield self

    async def subscribe(self, subject: str, hear: Callable[[object], Awaitable[None]]) -> int:
        self._subscribed_count += 1
        self.heard[self._subscribed_count] = subject
        self._hears[subject] = hear
        if subject == self.names.subjects.pool_beat("*"):
            asyncio.get_running_loop().call_later(self._late_s, lambda: asyncio.ensure_future(self._beat(hear)))
        return self._subscribed_count

    async def _beat(self, hear: Callable[[object], Awaitable[None]]) -> None:
        for pool in self.pools:
            await hear(SimpleNamespace(data=msgspec.json.encode(PoolBeat(pool=pool, supervisor="s", nodes={}, free=0))))

    async def unsubscribe(self, number: int) -> None:
        del self.heard[number]

    async def publish(self, subject: str, data: bytes) -> None:
        self.asked.append(subject)
        pool = next(pool for pool in self.pools if subject == self.names.subjects.pool_request(pool, "capacity"))
        done = CapacitySet(id=msgspec.json.decode(data, type=SetCapacity).id, done=True)
        await self._hears[self.names.subjects.pool_answer(pool)](SimpleNamespace(data=msgspec.json.encode(done)))


WISH = SetCapacity(id="mine", slots=2)
NOWHERE = Address("nats://127.0.0.1:9", "runfold", local=True)


@pytest.mark.parametrize(("named", "meant"), [(None, "local"), ("gpus", "gpus")])
def test_a_pool_is_found_and_asked_by_one_connection(
    named: str | None, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Pools("gpus", "local")
    monkeypatch.setattr(capacities, "open_client", client.open)
    pool, answer = run_virtual(set_capacity(NOWHERE, named, WISH))
    assert (pool, answer.done, client.opened_count, client.heard) == (meant, True, 1, {})
    assert client.asked == [client.names.subjects.pool_request(meant, "capacity")]


def test_whoever_asked_for_pools_hears_none_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Pools("gpus", "ray")
    monkeypatch.setattr(capacities, "open_client", client.open)

    async def heard() -> tuple[set[str], float]:
        return set(await heard_pools(NOWHERE)), asyncio.get_running_loop().time()

    assert run_virtual(heard()) == ({"gpus", "ray"}, capacities.HEAR_TIMEOUT_S)
    with pytest.raises(UsageError, match="--pool: say which: gpus, ray"):
        run_virtual(set_capacity(NOWHERE, None, WISH))
    assert client.heard == {}

    async def cancelled() -> None:
        asking = asyncio.ensure_future(heard_pools(NOWHERE))
        await asyncio.sleep(capacities.HEAR_TIMEOUT_S / 2)
        assert len(client.heard) == 1
        asking.cancel()
        await asyncio.wait({asking})

    run_virtual(cancelled())
    assert client.heard == {}


def test_where_no_supervisor_is_heard_it_is_said_how_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacities, "open_client", Pools().open)

    async def silence() -> float:
        with pytest.raises(NoAnswerError, match="no supervisor was heard; start one with `runfold up`"):
            await heard_pools(NOWHERE)
        return asyncio.get_running_loop().time()

    assert run_virtual(silence()) == pytest.approx(REQUEST_TIMEOUT_S, abs=0.01)


def test_a_supervisor_that_stands_still_for_a_moment_is_heard_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Pools("gpus", late_s=5.0)
    monkeypatch.setattr(capacities, "open_client", client.open)
    assert run_virtual(heard_pools(NOWHERE)).keys() == {"gpus"}
    pool, answer = run_virtual(set_capacity(NOWHERE, None, WISH))
    assert (pool, answer.done, client.heard) == ("gpus", True, {})
