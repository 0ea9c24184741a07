"""Asking for something of a run that may be on the service, on a one-shot run's broker, or over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.client import ENDED_ALREADY
from runfold.errors import NotFoundError
from runfold.runs import clients, find_status

if TYPE_CHECKING:
    from runfold.events.requests import Request
    from runfold.locate import Where


async def ask(where: Where, run: str, request: Request) -> str:
    """Publish a request about a run and return its answer.

    Raises:
        NotFoundError: nobody knows the run.
        NotAcceptedError: the controller refused it.
        NoAnswerError: nobody answered in time; it may still be done.
    """
    async with clients(where) as each:
        async for client in each:
            try:
                return await client.request(run, request)
            except NotFoundError:
                continue
    await find_status(where, run)  # one that stands in the archive has ended; NotFoundError for the others
    return ENDED_ALREADY
