"""Reading many messages of a subject by few requests (direct batch get): no consumer to make and remove."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.events.nats.api import API_TIMEOUT_S, StoredMessage
from runfold.events.nats.errors import Unanswered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runfold.events.nats.client import RawMessage
    from runfold.events.nats.connection import Connection

BATCH_MAX_COUNT: Final = 256
BATCH_MAX_BYTES: Final = 8 * 1024 * 1024

_END: Final = "204"
_NONE_THERE: Final = "404"


async def read_batch(connection: Connection, stream: str, subject: str, first: int) -> list[StoredMessage]:
    """Return up to `BATCH_MAX_COUNT` messages of a subject (wildcards allowed) from a sequence on, in order.

    An empty list says that there is none at or after it. On a replicated stream any replica may answer, and it
    may lag a moment behind: what must be complete is to be compared with the leader's last sequence.

    Raises:
        Unanswered: the batch did not arrive whole in time; nothing of it is given.
    """
    return await connection.asked(lambda: _read_batch(connection, stream, subject, first))


async def _read_batch(connection: Connection, stream: str, subject: str, first: int) -> list[StoredMessage]:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str] = loop.create_future()
    messages: list[StoredMessage] = []

    async def receive(message: RawMessage) -> None:
        headers = message.headers or {}
        status = headers.get("Status")
        if status is None:
            messages.append(_stored(message.data, headers))
        elif not ended.done():
            ended.set_result(status)

    inbox = connection.raw.new_inbox()
    api_subject = f"$JS.API.DIRECT.GET.{stream}"
    body = {"seq": first, "batch": BATCH_MAX_COUNT, "max_bytes": BATCH_MAX_BYTES, "next_by_subj": subject}
    subscription = await connection.subscribe(inbox, receive)
    try:
        await connection.publish(api_subject, msgspec.json.encode(body), reply=inbox)
        async with asyncio.timeout(API_TIMEOUT_S):
            status = await ended
    except TimeoutError:
        raise Unanswered(api_subject, f"the messages did not arrive within {API_TIMEOUT_S:g} s") from None
    finally:
        await connection.unsubscribe(subscription)
    if status not in {_END, _NONE_THERE}:
        raise Unanswered(api_subject, f"the server answered {status}")
    return messages


def _stored(data: bytes, headers: Mapping[str, str]) -> StoredMessage:
    return StoredMessage(
        subject=headers["Nats-Subject"],
        sequence=int(headers["Nats-Sequence"]),
        data=data,
        headers=headers,
        stored_at_s=datetime.fromisoformat(headers["Nats-Time-Stamp"]).timestamp(),
    )
