"""What is known of runs, wherever it stands: the service, the brokers of one-shot runs, the archive."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from runfold.brokerhealth import broker_trouble
from runfold.client import open_client
from runfold.controller.status import status as status_of
from runfold.errors import BrokerAwayError, NotFoundError, UnreachableError, UsageError
from runfold.events.base import Document
from runfold.events.counts import counted
from runfold.events.fold import fold_all
from runfold.events.job import RUN_ID
from runfold.events.nats.errors import BrokerError
from runfold.events.refusal import JobRefused
from runfold.replay.archive import list_archives, list_open
from runfold.replay.errors import NotFound, ReplayError
from runfold.replay.source import load
from runfold.room import shortage
from runfold.sources import live_history
from runfold.unknown import refusal_of, refused_text, why_unknown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from runfold.client import Client
    from runfold.events.status import Status
    from runfold.locate import Where
    from runfold.replay.history import History


class Listed(Document, frozen=True, kw_only=True):
    """A run in a list. `where`: on the service, in one shot, in the archive, on a stopped service, or killed."""

    run: str
    name: str
    state: str
    attempt: int
    accepted_at: str
    since: str
    reason: str
    where: str


def check_rank(run: str, rank: int | None, ranks: int) -> None:
    """Raise `UsageError` for a rank that a run of so many ranks has not."""
    if rank is not None and not 0 <= rank < ranks:
        raise UsageError(f"--rank: {run} has {counted(ranks, 'rank')}, numbered from 0")


def clients(where: Where) -> aclosing[AsyncGenerator[Client, None]]:
    """Give a client of the service, then one of each one-shot run that is under way: `async with`, then `async for`.

    Raises:
        UnreachableError: the service that was named does not answer.
    """

    async def each() -> AsyncGenerator[Client, None]:
        for address in where.services():
            async with open_client(address) as client:
                yield client

    # Closed by who uses it: left to the garbage, a connection would be closed when its tasks are gone already.
    return aclosing(each())


@dataclass(frozen=True, slots=True)
class Found:
    """What was found of a run. `kept` is the archive or the file that told it; None where the service did."""

    status: Status | JobRefused
    kept: History | None = None


async def find_status(where: Where, run: str) -> Status | JobRefused:
    """Return a run's status, or why the job of that number was refused; raise as `find_told` does."""
    return (await find_told(where, run)).status


async def find_told(where: Where, run: str) -> Found:
    """Return a run's status, from the service or the archive, or why the job of that number was refused.

    Raises:
        NotFoundError: nobody knows it.
        UnreachableError: the service that was named does not answer, and the archive does not know it; or that of the
            data directory does not, and the archive does not know its end.
    """
    unreachable: UnreachableError | None = None
    try:
        async with clients(where) as each:
            async for client in each:
                if (found := await live_status(client, run) or await refusal_of(client, run)) is not None:
                    return Found(found)
    except UnreachableError as error:
        unreachable = error
    try:
        kept = load(run, data_dir=where.data_dir)
        archived = archived_status(kept)
    except NotFound:
        if unreachable is not None:
            raise unreachable from None
        raise NotFoundError(await why_unknown(where, run)) from None
    if isinstance(unreachable, BrokerAwayError) and not archived.terminal:
        raise unreachable  # the service knows more of it
    return Found(archived, kept)


async def known_status(where: Where, run: str) -> Status:
    """Return a run's status; raise as `find_status` does, and `NotFoundError` for a job that was refused."""
    found = await find_status(where, run)
    if isinstance(found, JobRefused):
        raise NotFoundError(refused_text(found))
    return found


async def service_trouble(where: Where) -> str | None:
    """Return why the service, or a one-shot run's broker, stores nothing at present, as far as it says so."""
    try:
        async with clients(where) as each:
            async for client in each:
                if trouble := await broker_trouble(client.address.monitor) or await shortage(client):
                    return trouble
    except (UnreachableError, BrokerError):
        return None  # told already, or answered by the archive
    return None


async def live_status(client: Client, run: str) -> Status | None:
    """Return a run's status, or what its log says where that was lost; None of a run that the service has not.

    Statuses are not synced: a full disk, or the broker's end, loses some.
    """
    if (status := await client.status(run)) is not None:
        return status
    if RUN_ID.fullmatch(run) and (history := await live_history(client, run)) is not None and history.links:
        return archived_status(history)
    return None


def archived_status(history: History) -> Status:
    """Return the status that a history's entries end in."""
    head = history.head
    state = fold_all(history.entries)
    return status_of(state, head, state.accepted_at)


async def list_runs(where: Where) -> list[Listed]:
    """Return every run that is known, the newest first; one that stands in two places is listed once."""
    found: dict[str, Listed] = {}
    async with clients(where) as each:
        async for client in each:
            place = "once" if client.address.once else "service"
            for status in await client.statuses():
                found.setdefault(status.run, _listed(status, place))
    for last in list_archives(where.data_dir):
        found.setdefault(
            last.run,
            Listed(
                run=last.run,
                name=last.name,
                state=last.outcome,
                attempt=last.attempts,
                accepted_at=last.accepted_at,
                since=last.ended_at,
                reason=last.reason,
                where="archive",
            ),
        )
    killed = where.killed()
    if where.stopped or killed:
        for run in list_open(where.data_dir):
            is_left = where.stopped or run in killed
            if is_left and run not in found and (left := _left(where, run)) is not None:
                found[run] = _listed(left, "killed" if run in killed else "stopped")
    return sorted(found.values(), key=lambda item: (item.accepted_at, item.run), reverse=True)


async def list_refused(where: Where) -> list[JobRefused]:
    """Return the jobs that were refused, the newest first."""
    found: list[JobRefused] = []
    async with clients(where) as each:
        async for client in each:
            names = client.names
            messages = await client.collect(names.refusals, [names.subjects.refused("*")], last_per_subject=False)
            found += [msgspec.json.decode(message.data, type=JobRefused) for message in messages]
    return sorted(found, key=lambda item: (item.at, item.sequence), reverse=True)


def _left(where: Where, run: str) -> Status | None:
    """Return the status of a run whose service does not run, as far as its archive goes."""
    try:
        return archived_status(load(run, data_dir=where.data_dir))
    except ReplayError:
        return None


def _listed(status: Status, where: str) -> Listed:
    return Listed(
        run=status.run,
        name=status.name,
        state=status.state,
        attempt=status.attempt,
        accepted_at=status.accepted_at,
        since=status.since,
        reason=f"{status.reason}; waiting: {status.waiting}" if status.waiting else status.reason,
        where=where,
    )
