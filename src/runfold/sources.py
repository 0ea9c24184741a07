"""Where a run's entries are read from: the service first, then a one-shot run's broker, then the archive."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import msgspec

from runfold.errors import BrokerAwayError, UnreachableError
from runfold.events.assignment import Assignment
from runfold.events.entry import Head
from runfold.events.job import RUN_ID
from runfold.events.log import LogUnavailable
from runfold.events.snapshot import decode_snapshot, fold_version
from runfold.folding import state_of
from runfold.replay.archive import archive_path
from runfold.replay.errors import NotFound, ReplayError
from runfold.replay.history import KnownHead, KnownSnapshot
from runfold.replay.segments import grown_so_far
from runfold.replay.source import load, read_log
from runfold.replay.store import open_store
from runfold.replay.summary import read_summary
from runfold.replay.unarchive import read_last

if TYPE_CHECKING:
    from runfold.client import Client
    from runfold.events.status import Status
    from runfold.locate import Where
    from runfold.replay.history import History
    from runfold.replay.story import Story


async def open_history(where: Where, target: str, *, deep: bool = False) -> History:
    """Return the history of a run id, an archive's directory or URL, or an exported file.

    `deep` is for the audit: what was archived beside the log is read too, and so are the heads that others keep of it.

    Raises:
        NotFound: nothing of that name, on the service or in the archive.
        CannotRead: it is there, and cannot be read.
        UnreachableError: the service that was named does not answer, and the archive knows no such run; or that of the
            data directory does not, and the archive does not know the run's end.
    """
    unreachable: UnreachableError | None = None
    heads: tuple[KnownHead, ...] = ()
    if RUN_ID.fullmatch(target):
        for address in where.services():
            # What speaks to a broker is loaded when there is one: archives and files are read at once.
            from runfold.client import open_client

            try:
                async with open_client(address) as client:
                    heads = await known_heads(client, where, target) if deep else heads
                    snapshots = await known_snapshots(client, target) if deep else ()
                    history = await live_history(client, target)
            except UnreachableError as error:
                unreachable = error
                continue
            if history is not None:
                return history.with_heads(*heads).with_snapshots(*snapshots)
    try:
        if not target:
            raise NotFound("there is no run '': name its id, an archive or a file")
        history = load(target, data_dir=where.data_dir, deep=deep).with_heads(*heads)
    except NotFound:
        if unreachable is not None:
            raise unreachable from None
        if not RUN_ID.fullmatch(target):
            raise
        from runfold.unknown import why_unknown

        raise NotFound(await why_unknown(where, target)) from None
    if isinstance(unreachable, BrokerAwayError) and not (history.links and state_of(history).terminal):
        raise unreachable  # the service has more of it
    return history


async def glance(where: Where, target: str, entries_min: int) -> Story | Status | None:
    """Return what tells of a run of at least so many entries before they are read; None of a shorter one.

    The story kept beside its archive, if that is of the log as it stands; else the status of a run on the service.
    """
    if not RUN_ID.fullmatch(target):
        return read_summary(open_store(target), entries_min)
    store = open_store(archive_path(where.data_dir, target))
    for address in where.services():
        from runfold.client import open_client

        try:
            async with open_client(address) as client:
                status = await client.status(target)
        except BrokerAwayError:
            if (kept := read_summary(store, entries_min)) is not None:
                return kept  # of a run that is over
            raise
        except UnreachableError:
            continue
        if status is not None:
            last = read_last(store)
            whole = last is not None and last.head == status.head
            kept = read_summary(store, entries_min) if whole else None
            return kept or (status if status.head.n + 1 >= entries_min else None)
    return read_summary(store, entries_min)


async def live_history(client: Client, run: str) -> History | None:
    """Return the history in a run's live log; None when the service has nothing of it, or has given it back.

    Of a run that was given back the last entry stays: its archive has the rest, and is what is read.

    Raises:
        UnreachableError: the broker stopped answering.
        BrokerError: it does not answer.
    """
    from runfold.events.nats.collected import find_collected
    from runfold.events.nats.generations import open_log

    try:
        history = await read_log(await open_log(client.connection, run), run)
    except LogUnavailable as error:
        raise UnreachableError(str(error)) from error
    if history.damages and not history.links and await find_collected(client.connection, run) is not None:
        return None
    return history if history.links or history.damages else None


async def known_heads(client: Client, where: Where, run: str) -> tuple[KnownHead, ...]:
    """Return the heads of a run's log that are kept outside it, which it must hold: read before the log itself is."""
    found: list[KnownHead] = []
    status = await client.status(run)
    if status is not None:
        found.append(KnownHead(kept_by="the status", head=status.head))
    names = client.names
    message = await client.api.last_message(names.assignments, names.subjects.assignment(run))
    if message is not None and message.data:
        assignment = msgspec.json.decode(message.data, type=Assignment)
        found.append(KnownHead(kept_by="the assignment", head=Head(n=assignment.n, hash=assignment.hash)))
    archived = archived_head(where, run)
    return tuple(found) if archived is None else (*found, KnownHead(kept_by="the archive", head=archived))


def archived_head(where: Where, run: str) -> Head | None:
    """Return how far a run's archive goes, closed or not; None when there is none that could be read."""
    store = open_store(archive_path(where.data_dir, run))
    try:
        last = read_last(store)
        return grown_so_far(store, run).head if last is None else last.head
    except (ReplayError, OSError):
        return None


async def known_snapshots(client: Client, run: str) -> tuple[KnownSnapshot, ...]:
    """Return the newest states of a run that are kept for a take-over, as far as this version would use them."""
    from runfold.events.nats.snapshots import RunSnapshots

    fold = fold_version(version("runfold"))
    found = [decode_snapshot(data, run, fold) for data in await RunSnapshots(client.connection, run).newest()]
    return tuple(
        KnownSnapshot(
            kept_by=f"the snapshot after entry {one.head.n}", n=one.head.n, hash=one.head.hash, state=one.state
        )
        for one in found
        if one is not None
    )
