"""The service: broker, controller, supervisor and archiver under one parent, until it is told to stop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from runfold.archiving import Archiver
from runfold.client import open_client
from runfold.interrupts import interrupts
from runfold.left import say_what_is_left
from runfold.restarts import kept_up
from runfold.service import Plan, Service
from runfold.workers.together import until_one_ends

if TYPE_CHECKING:
    from collections.abc import Callable


async def serve(plan: Plan, say: Callable[[str], None], ready: Callable[[Service], None]) -> None:
    """Run the service until SIGINT or SIGTERM; after a second signal what runs may save yet is not waited for.

    `ready` is called once everything runs and `connection.json` is written.

    Raises:
        ServiceError: something did not start, or died too often; everything else was stopped.
    """
    with interrupts() as caught:
        service = Service(plan, say)
        await service.start()
        try:
            ready(service)
            await _until_told(service, caught.first, plan, say)
            await say_what_is_left(service.address, say)
        finally:
            await _stop(service, caught.second)


async def _stop(service: Service, told_again: asyncio.Event) -> None:
    async def hurry() -> None:
        await told_again.wait()
        service.hurry()

    hurrying = asyncio.create_task(hurry(), name="told again to stop")
    try:
        await service.stop()
    finally:
        hurrying.cancel()
        await asyncio.gather(hurrying, return_exceptions=True)


async def _until_told(service: Service, told: asyncio.Event, plan: Plan, say: Callable[[str], None]) -> None:
    tasks: list[asyncio.Task[object]] = [
        asyncio.create_task(told.wait(), name="told to stop"),
        asyncio.create_task(service.tend(), name="tend"),
        asyncio.create_task(kept_up("the archiver", lambda: _archive(service, plan, say), say), name="archive"),
    ]
    await until_one_ends(tasks)


async def _archive(service: Service, plan: Plan, say: Callable[[str], None]) -> None:
    async with open_client(service.address) as client:
        await Archiver(client, plan.data_dir, say).run()
