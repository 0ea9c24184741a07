"""Asking for something of a run that may be on the service, on a one-shot run's broker, or over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from runfold.client import ENDED_ALREADY, accepted
from runfold.errors import NotFoundError, UnreachableError
from runfold.events.limits import REQUEST_TIMEOUT_S
from runfold.events.nats.errors import BrokerError
from runfold.runs import clients, known_status
from runfold.unknown import not_running_text, stopped_text

if TYPE_CHECKING:
    from runfold.events.requests import Request
    from runfold.locate import Where

AGAIN_AFTER_S: Final = 0.1


async def ask(where: Where, run: str, request: Request) -> str:
    """Publish a request about a run and return its answer.

    A broker that goes away meanwhile may come back, or have ended with the one run that it served: until
    `REQUEST_TIMEOUT_S` is over the same request is made again, and its answer looked for in the run's archive.

    Raises:
        NotFoundError: nobody knows the run.
        NotAcceptedError: the controller refused it.
        NoAnswerError: nobody answered in time; it may still be done.
        UnreachableError: its service does not run now.
        BrokerError: the broker went away and did not come back; it may still be done.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + REQUEST_TIMEOUT_S
    gone: BrokerError | None = None
    while True:
        try:
            return await _ask(where, run, request)
        except BrokerError as error:
            gone = error
        except (NotFoundError, ConnectionError):
            if gone is None:
                raise
        if loop.time() >= deadline:
            raise gone
        await asyncio.sleep(AGAIN_AFTER_S)


async def _ask(where: Where, run: str, request: Request) -> str:
    async with clients(where) as each:
        async for client in each:
            try:
                return await client.request(run, request)
            except NotFoundError:
                continue
    try:
        found = await known_status(where, run)
    except NotFoundError:
        if where.stopped:  # it may have the run all the same: what is archived lags behind
            raise UnreachableError(f"{run}: nothing was asked.\n{stopped_text(where)}.") from None
        raise
    if (answer := found.requests.get(request.id)) is not None:
        return accepted(answer)
    if not found.terminal:
        raise UnreachableError(
            f"{run} has not ended by its archive: nothing was asked.\n{not_running_text(where, run)}."
        )
    return ENDED_ALREADY
