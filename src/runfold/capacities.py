"""Asking a pool for its capacity, and for another one: over core NATS, answered by its supervisor."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.client import open_client
from runfold.errors import NoAnswerError, NotAcceptedError, UsageError
from runfold.events.beats import PoolBeat
from runfold.events.limits import REQUEST_TIMEOUT_S
from runfold.events.pools import LOCAL_POOL, CapacitySet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from runfold.client import Client
    from runfold.events.nats.client import RawMessage
    from runfold.events.pools import SetCapacity
    from runfold.locate import Address

ASK_AGAIN_S: Final = 1.0
HEAR_TIMEOUT_S: Final = 2.0
"""A supervisor beats once a second."""
NOBODY_HEARD: Final = "no supervisor was heard; start one with `runfold up`"


async def set_capacity(address: Address, pool: str | None, wish: SetCapacity) -> tuple[str, CapacitySet]:
    """Ask a pool for another capacity, again and again until it answers; return its name and its answer.

    Where none is named, this machine's is meant if it is there, else the only one (see `chosen`).

    Raises:
        NotAcceptedError: it will not; the reason says why.
        NoAnswerError: no supervisor of this pool answered.
        UsageError: none is named, and there are several.
    """
    async with open_client(address) as client:
        if pool is None:
            pool = chosen(await _heard(client, until=LOCAL_POOL))
        answer = await _answer(client, pool, wish)
    if not answer.done:
        raise NotAcceptedError(f"pool {pool}: {answer.reason}. Nothing was changed")
    return pool, answer


async def _answer(client: Client, pool: str, wish: SetCapacity) -> CapacitySet:
    subjects = client.names.subjects
    heard: asyncio.Queue[CapacitySet] = asyncio.Queue(1)

    async def hear(message: RawMessage) -> None:
        try:
            answer = msgspec.json.decode(message.data, type=CapacitySet)
        except msgspec.DecodeError:
            return  # of a version that says it in another way: no answer to this one
        if answer.id == wish.id and not heard.full():
            heard.put_nowait(answer)

    async def ask() -> CapacitySet:
        while True:
            await client.connection.publish(subjects.pool_request(pool, "capacity"), msgspec.json.encode(wish))
            try:
                async with asyncio.timeout(ASK_AGAIN_S):
                    return await heard.get()
            except TimeoutError:
                continue

    subscription = await client.connection.subscribe(subjects.pool_answer(pool), hear)
    try:
        async for _ in _turns(client):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    return await ask()
        raise NoAnswerError(
            f"no supervisor of pool {pool!r} answered within {REQUEST_TIMEOUT_S:g} s:\n"
            "`runfold capacity` shows the pools that are there."
        )
    finally:
        await client.connection.unsubscribe(subscription)


async def _turns(client: Client) -> AsyncIterator[None]:
    """Yield once, and again each time that the broker was away meanwhile: nobody was heard then, whoever is there."""
    connection, since_s = client.connection, asyncio.get_running_loop().time()
    while True:
        generation = connection.generation
        yield
        if connection.is_up and connection.generation == generation:
            return
        if not await connection.is_awaited(since_s):
            return


def chosen(pools: Collection[str]) -> str:
    """Return the pool that is meant where none is named: this machine's if it is there, else the only one.

    Raises:
        NoAnswerError: none was heard.
        UsageError: there are several.
    """
    if LOCAL_POOL in pools:
        return LOCAL_POOL
    if not pools:
        raise NoAnswerError(NOBODY_HEARD)
    if len(pools) > 1:
        raise UsageError(f"--pool: say which: {', '.join(sorted(pools))}")
    return next(iter(pools))


async def heard_pools(address: Address) -> dict[str, PoolBeat]:
    """Return the pools whose supervisors beat, by name.

    Raises:
        NoAnswerError: none was heard.
    """
    async with open_client(address) as client:
        pools = await _heard(client)
    if not pools:
        raise NoAnswerError(NOBODY_HEARD)
    return pools


async def _heard(client: Client, until: str | None = None) -> dict[str, PoolBeat]:
    """Return the pools that are heard within `HEAR_TIMEOUT_S`, or until `until` is.

    Where none was by then, the first is waited for as long as an answer is.
    """
    pools: dict[str, PoolBeat] = {}
    found, first = asyncio.Event(), asyncio.Event()

    async def hear(message: RawMessage) -> None:
        try:
            beat = msgspec.json.decode(message.data, type=PoolBeat)
        except msgspec.DecodeError:
            return
        pools[beat.pool] = beat
        first.set()
        if beat.pool == until:
            found.set()

    subscription = await client.connection.subscribe(client.names.subjects.pool_beat("*"), hear)
    try:
        async for _ in _turns(client):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEAR_TIMEOUT_S):
                    await found.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REQUEST_TIMEOUT_S - HEAR_TIMEOUT_S):
                    await first.wait()
    finally:
        await client.connection.unsubscribe(subscription)
    return pools
