"""Which generation of a run's log is its log: the highest one that a restoration was finished in, else the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runfold.events.entry import NotAnEntry, decode_entry
from runfold.events.nats.api import Api
from runfold.events.nats.log import JetStreamLog
from runfold.events.transitions import LogRestored

if TYPE_CHECKING:
    from runfold.events.nats.connection import Connection

FIRST: Final = 1
_MARK: Final = b'"log_restored"'
"""Stands in the bytes of every entry that says so; looked for before anything is decoded."""


async def generations(connection: Connection, run: str) -> list[int]:
    """Return the generations of a run's log that hold messages, the newest first.

    Raises:
        BrokerError: the broker does not answer.
    """
    names = connection.names
    subjects = await Api(connection).subjects(names.log, names.subjects.logs(run))
    numbers = (subject.rpartition(".")[2] for subject in subjects or ())
    return sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)


async def generation_of(connection: Connection, run: str) -> int:
    """Return the generation that is the run's log; 0 when there is none yet.

    Raises:
        BrokerError: the broker does not answer.
        LogUnavailable: it stopped answering.
    """
    standing = await generations(connection, run)
    for generation in standing:
        if generation <= FIRST or await _is_restored(connection, run, generation):
            return generation
    return FIRST if standing else 0


async def open_log(connection: Connection, run: str) -> JetStreamLog:
    """Return a run's log, in its present generation; raises as `generation_of` does."""
    return JetStreamLog(connection, run, generation=max(await generation_of(connection, run), FIRST))


async def _is_restored(connection: Connection, run: str, generation: int) -> bool:
    async for stored in JetStreamLog(connection, run, generation=generation).read():
        if _MARK in stored.data and _says_restored(stored.data, generation):
            return True
    return False


def _says_restored(data: bytes, generation: int) -> bool:
    try:
        entry = decode_entry(data)
    except NotAnEntry:
        return False
    return any(isinstance(item, LogRestored) and item.generation == generation for item in entry.transitions)
