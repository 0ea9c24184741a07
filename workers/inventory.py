"""Which checkpoints a run has, as its status says: asked for by ranks, answered when it says what they wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from runfold.events.nats.api import Api
from runfold.events.nats.connection import Connection
from runfold.events.nats.errors import BrokerError
from runfold.events.status import Status
from runfold.workers.link import Inquire, Listed

POLL_S: Final = 0.2


class Inventory:
    """The checkpoints of one run."""

    def __init__(self, connection: Connection, run: str) -> None:
        names = connection.names
        bucket = names.status_bucket
        self._api = Api(connection)
        self._stream, self._subject = names.stream_of(bucket), names.key_subject(bucket, run)

    async def listed(self, inquiry: Inquire, attempt: int, over: Callable[[], bool]) -> Listed:
        """Wait until the status says what is asked for, or time is up, or nobody waits any more; then answer."""
        deadline = None if inquiry.timeout_s is None else time.monotonic() + inquiry.timeout_s
        while True:
            status = await self._status()
            late = deadline is not None and time.monotonic() >= deadline
            if late or over() or (status is not None and settled(status, inquiry, attempt)):
                found = status.checkpoints if status is not None else ()
                return Listed(inquiry.number, [(one.name, one.status) for one in found])
            await asyncio.sleep(POLL_S)

    async def _status(self) -> Status | None:
        try:
            message = await self._api.last_message(self._stream, self._subject)
            return msgspec.json.decode(message.data, type=Status) if message is not None and message.data else None
        except (BrokerError, msgspec.DecodeError):
            return None  # asked again


def settled(status: Status, inquiry: Inquire, attempt: int) -> bool:
    """Whether a status has dealt with what a rank has reported in an attempt, and with validations if that matters."""
    if status.attempt != attempt:
        return status.attempt > attempt
    passed = all(rank.phase == "returned" or rank.index >= inquiry.reports - 1 for rank in status.ranks)
    if not passed or any(index < inquiry.reports for index in status.unsettled):
        return False
    return not (inquiry.validated and any(one.status == "pending" for one in status.checkpoints))
