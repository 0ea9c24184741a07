"""One-shot runs that were killed with all they had started: ended by their own controller, archived, cleared away.

What was acknowledged lies in the store of their broker, whose directory stays until it is archived.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.aborting import ending_max_s
from runfold.archiver import archive_run
from runfold.children import Children
from runfold.client import PUBLISH_TIMEOUT_S, open_client
from runfold.early import Early
from runfold.errors import NotAcceptedError, NotFoundError, ServiceError, UsageError
from runfold.events.base import Document
from runfold.events.counts import counted
from runfold.events.job import RUN_ID
from runfold.events.nats.broker import start_broker
from runfold.events.nats.errors import BrokerStartFailed
from runfold.events.nats.names import Role
from runfold.events.nats.publish import Rejected, publish_acked
from runfold.events.requests import AbortRun
from runfold.folding import state_of
from runfold.ids import new_request_id
from runfold.locate import ONCE_FOLDER, STORAGE_FOLDER, Address, answering_once
from runfold.once import taken_over
from runfold.service import Plan, Service
from runfold.sources import live_history

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from runfold.client import Client
    from runfold.events.nats.broker import Broker
    from runfold.events.state import RunState
    from runfold.locate import Where
    from runfold.replay.manifest import LastManifest

END_POLL_S: Final = 0.1
ABORT_VERB: Final = "abort"


class Salvaged(Document, frozen=True, kw_only=True):
    """What became of a run; `outcome` None: nothing had been accepted, so that there was nothing to keep."""

    run: str
    outcome: str | None
    entries: int = 0


def salvaged_text(where: Where, done: Salvaged) -> str:
    """Return in a line what became of a run."""
    if done.outcome is None:
        return f"{done.run}: it had not been accepted; its directory is removed"
    entries = counted(done.entries, "entry")
    return f"{done.run}: {done.outcome}, {entries} archived; `{where.hint('resume', done.run)}` goes on with it"


async def salvage(where: Where, run: str, say: Callable[[str], None]) -> Salvaged:
    """End a run that was killed, close its archive, and remove its directory; on any error the directory stays.

    Raises:
        NotFoundError: nothing was left of such a run.
        UsageError: it is under way.
        ServiceError: its broker or its controller cannot be started, or brings it to no end.
        ReplayError: its log is damaged.
    """
    folder = where.data_dir / ONCE_FOLDER / run
    # A name that is none may lead anywhere, and what it led to would be removed.
    if not RUN_ID.fullmatch(run) or not folder.is_dir():
        raise NotFoundError(f"nothing was left behind of a run {run!r} in {where.data_dir / ONCE_FOLDER}")
    under_way = UsageError(f"{run} is under way: `{where.hint('abort', run)}` ends it")
    with ExitStack() as living:
        try:
            lived_in = living.enter_context(taken_over(folder))
        except BlockingIOError:
            raise under_way from None
        if answering_once(folder) is not None:
            raise under_way
        last = await close_left(where, run, lived_in, "it was killed; salvaged", say)
        await asyncio.to_thread(shutil.rmtree, folder)
    if last is None:
        return Salvaged(run=run, outcome=None)
    return Salvaged(run=run, outcome=last.outcome, entries=last.head.n + 1)


async def close_left(
    where: Where, run: str, lived_in: int, reason: str, say: Callable[[str], None]
) -> LastManifest | None:
    """Have the end of a run in its log, and its archive closed, from a directory that only the caller lives in.

    None: the run had not been accepted. `reason` is that of its abort, unless it has ended or was aborted before.
    Raises what `salvage` raises, and the broker's errors.
    """
    folder = where.data_dir / ONCE_FOLDER / run
    async with _started(folder, where.settings.namespace) as broker:
        address = Address(broker.url(Role.CLIENT), where.settings.namespace, local=True)
        async with open_client(address) as client:
            state = await _state(client, broker, run)
            if state is None:
                return None
            if not state.terminal:
                await _ask_for_the_end(client, where, run, reason)
                early = Early(Children(folder, lived_in=lived_in), broker, lived_in)
                await _end(client, where, early, state, say)
            last = await archive_run(client, run, where.data_dir)
            if last is None:
                raise ServiceError(f"{run} has not ended; what its broker holds stays in {folder}")
            return last


@asynccontextmanager
async def _started(folder: Path, namespace: str) -> AsyncIterator[Broker]:
    """The broker of a run, on what it has stored."""
    try:
        broker = start_broker(folder, namespace=namespace, die_with_parent=True)
    except (BrokerStartFailed, OSError) as error:
        raise ServiceError(f"its broker could not be started, and {folder} is as it was: {error}") from error
    try:
        yield broker
    finally:
        await broker.stop_async()


async def _state(client: Client, broker: Broker, run: str) -> RunState | None:
    """Return how far the run had come; None when it had not been accepted."""
    if await client.api.stream_info(client.names.log) is None:
        if broker.created_marker.exists():
            raise ServiceError(f"the store in {broker.folder} has lost its log; its directory was left as it is")
        return None
    history = await live_history(client, run)
    return None if history is None else state_of(history)


async def _end(client: Client, where: Where, early: Early, state: RunState, say: Callable[[str], None]) -> None:
    """Let the run's own controller write its end, which was asked for."""
    folder = early.children.data_dir
    storage = where.data_dir / STORAGE_FOLDER
    plan = Plan(folder, where.settings.namespace, slots=1, once=True, storage_dir=storage)
    early.children.start()
    service = Service(plan, say, early)
    try:
        await service.start()
        await _ended(client, state)
    finally:
        await service.stop_children()


async def _ask_for_the_end(client: Client, where: Where, run: str, reason: str) -> None:
    """Ask before anybody is there to go on with the run."""
    wish = AbortRun(id=new_request_id(), reason=reason, by=where.settings.user)
    answer = await publish_acked(
        client.connection,
        client.names.subjects.request(run, ABORT_VERB),
        msgspec.json.encode(wish),
        timeout_s=PUBLISH_TIMEOUT_S,
    )
    if isinstance(answer, Rejected):
        raise NotAcceptedError(f"the broker did not take the abort of {run}: {answer.description}. Nothing was changed")


async def _ended(client: Client, state: RunState) -> None:
    loop, limit_s = asyncio.get_running_loop(), ending_max_s(state.job.timeouts)
    deadline = loop.time() + limit_s
    while loop.time() < deadline:
        status = await client.status(state.run)
        if status is not None and status.terminal:
            return
        await asyncio.sleep(END_POLL_S)
    raise ServiceError(
        f"{state.run} did not end within {limit_s:g} s; its directory was left as it is, the same command goes on"
    )
