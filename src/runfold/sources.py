"""Where a run's entries are read from: the service first, then a one-shot run's broker, then the archive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.errors import UnreachableError
from runfold.events.job import RUN_ID
from runfold.replay.errors import NotFound
from runfold.replay.source import load, read_log

if TYPE_CHECKING:
    from runfold.client import Client
    from runfold.locate import Where
    from runfold.replay.history import History


async def open_history(where: Where, target: str, *, deep: bool = False) -> History:
    """Return the history of a run id, an archive's directory or URL, or an exported file.

    Raises:
        NotFound: nothing of that name, on the service or in the archive.
        CannotRead: it is there, and cannot be read.
        UnreachableError: the service that was named does not answer, and the archive knows no such run.
    """
    unreachable: UnreachableError | None = None
    if RUN_ID.fullmatch(target):
        for address in where.services():
            # What speaks to a broker is loaded when there is one: archives and files are read at once.
            from runfold.client import open_client

            try:
                async with open_client(address) as client:
                    history = await live_history(client, target)
            except UnreachableError as error:
                unreachable = error
                continue
            if history is not None:
                return history
    try:
        return load(target, data_dir=where.data_dir, deep=deep)
    except NotFound:
        if unreachable is not None:
            raise unreachable from None
        raise


async def live_history(client: Client, run: str) -> History | None:
    """Return the history in a run's live log; None when the service has nothing of it."""
    from runfold.events.nats.log import JetStreamLog

    history = await read_log(JetStreamLog(client.connection, run), run)
    return history if history.links or history.damages else None
