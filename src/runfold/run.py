"""Running one job to its end: on the service when one answers, otherwise in one shot on a broker of its own."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.aborting import Abort, abort_when_asked
from runfold.archiver import archive_run
from runfold.awaited import supervisor_awaited
from runfold.client import Client, open_client
from runfold.early import start_early
from runfold.errors import JobRefusedError, RunfoldError, ServiceError, StreamsLostError
from runfold.events.assignment import Assignment
from runfold.events.entry import Head
from runfold.events.nats.blobs import Blobs
from runfold.events.nats.errors import BrokerClosed, BrokerError
from runfold.events.refusal import JobRefused
from runfold.follow import Following, follow_run, quarantine_told
from runfold.interrupts import Interrupts, interrupts
from runfold.locate import STORAGE_FOLDER
from runfold.printed import output_shown
from runfold.replay.errors import ReplayError
from runfold.room import shortage_told
from runfold.service import Plan, Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path
    from typing import TypeVar

    from runfold.client import Receipt
    from runfold.early import Early
    from runfold.events.job import Job
    from runfold.events.state import RunState
    from runfold.follow import Onlooker
    from runfold.locate import Where

    T = TypeVar("T")

REFUSAL_POLL_S: Final = 0.25
GONE_TIMEOUT_S: Final = 5.0
GONE_POLL_S: Final = 0.01
ARCHIVER_TIMEOUT_S: Final = 20.0
CLOSING_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Order:
    """A job to be run to its end.

    `say` hears what a person should know beside the run's own progress. `blobs` are what the job names: the pickled
    function, a filesystem. `early` is what was started before all this was loaded (`runfold.early`). `detach`: an
    interrupt leaves the run alone, where there is a service to go on with it. `keep_returned`: fetch a large return
    value. `nodes`: how many nodes this machine shows. `printed` is shown what ranks print.
    """

    job: Job
    where: Where
    onlooker: Onlooker
    say: Callable[[str], None]
    blobs: tuple[bytes, ...] = ()
    early: Early | None = None
    detach: bool = False
    nodes: int = 1
    keep_returned: bool = False
    printed: Callable[[str], None] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run. `returned` is the blob that holds what rank 0 returned, if it was large and asked for."""

    state: RunState
    head: Head
    returned: bytes | None = None


class Detached(Exception):
    """The run was left to the service; `str` says where it goes on."""


async def run_job(order: Order) -> Outcome:
    """Run a job to its end and return it, whatever end it was.

    Raises:
        JobRefusedError: the controller refused the job.
        RunAbortedError: a second interrupt came, or the first brought no end; everything was stopped at once.
        Detached: an interrupt came, and the run goes on without us.
        ServiceError: a process of our own ended too often.
    """
    with interrupts() as caught:
        service = order.where.service()
        if service is not None:
            async with open_client(service) as client:
                return await _follow_to_end(client, order, caught, can_detach=True)
        return await _run_once(order, caught)


async def _run_once(order: Order, caught: Interrupts) -> Outcome:
    early = order.early or start_early(order.where, order.job)
    folder = early.children.data_dir
    storage = order.where.data_dir / STORAGE_FOLDER
    plan = Plan(
        folder,
        order.where.settings.namespace,
        slots=_slots(order.job, order.nodes),
        once=True,
        storage_dir=storage,
        nodes_count=order.nodes,
    )
    service, kept = Service(plan, order.say, early), _Kept()
    try:
        await service.start()
        tending = asyncio.ensure_future(service.tend())
        try:
            outcome = await _first(_run_on(service, order, caught, kept), tending)
        except StreamsLostError:
            kept.here_alone = False
            raise
        finally:
            tending.cancel()
            await asyncio.gather(tending, return_exceptions=True)
    finally:
        try:
            await service.stop(keep_store=kept.here_alone)
            if not kept.here_alone or await _closed(order, early.lived_in):
                await asyncio.to_thread(_remove, folder)
        finally:
            os.close(early.lived_in)
    return outcome


@dataclass(slots=True)
class _Kept:
    """Whether a run's log may stand on the broker that ends with us alone."""

    here_alone: bool = False


async def _run_on(service: Service, order: Order, caught: Interrupts, kept: _Kept) -> Outcome:
    """Run on our own broker: to the terminal entry, until the group is gone, until the archive is closed."""
    async with open_client(service.address) as client:
        async with archived_meanwhile(client, str(order.job.id), order.where.data_dir, order.say):
            kept.here_alone = True
            try:
                outcome = await _follow_to_end(client, order, caught, can_detach=False)
            except JobRefusedError:
                kept.here_alone = False
                raise
            await _wait_gone(client, outcome.state.run)
        # Nobody has anything to do any more; the broker alone is read from.
        await asyncio.gather(archive_run(client, outcome.state.run, order.where.data_dir), service.stop_children())
        kept.here_alone = False
        return outcome


async def _closed(order: Order, lived_in: int) -> bool:
    """See a run's end in its log and its archive closed, where it was stopped without; say it when that fails."""
    from runfold.salvaging import close_left

    run = str(order.job.id)
    try:
        async with asyncio.timeout(CLOSING_TIMEOUT_S):
            await close_left(order.where, run, lived_in, "stopped without an orderly end", order.say)
    except (RunfoldError, BrokerError, ReplayError, OSError, TimeoutError) as error:
        why = str(error).partition("\n")[0] or f"it took longer than {CLOSING_TIMEOUT_S:g} s"
        order.say(
            f"the end of {run} is not in its log yet, nor is its archive closed: {why}\n"
            f"`{order.where.hint('salvage', run)}` sees to that; so does the next `runfold run` in this data directory"
        )
        return False
    return True


@asynccontextmanager
async def archived_meanwhile(
    client: Client, run: str, data_dir: Path, say: Callable[[str], None]
) -> AsyncIterator[None]:
    """Keep a run's archive open for as long as the block lasts: who is killed meanwhile has lost a second of it."""
    from runfold.archiving import Archiver

    over = asyncio.Event()
    keeping = asyncio.ensure_future(Archiver(client, data_dir, say).keep(run, over))
    in_order = False
    try:
        yield
        in_order = True
    finally:
        over.set()
        try:
            # Cancelled only when it takes too long: its thread would write on, beside whoever closes the archive next.
            await asyncio.wait([keeping], timeout=ARCHIVER_TIMEOUT_S)
        finally:
            keeping.cancel()
            (end,) = await asyncio.gather(keeping, return_exceptions=True)
        if isinstance(end, Exception) and not isinstance(end, BrokerClosed):
            if in_order:
                raise end
            # What ended the block decides what becomes of the run's directory, and is not hidden by this.
            say(f"the archive of {run} was not written while it ran: {end}")


async def _follow_to_end(client: Client, order: Order, caught: Interrupts, *, can_detach: bool) -> Outcome:
    for blob in order.blobs:
        await Blobs(client.connection).put(blob)
    receipt = await client.submit(order.job)
    async with (
        quarantine_told(client, receipt.run, order.say),
        shortage_told(client, order.say),
        output_shown(client, receipt.run, order.where.hint("logs", receipt.run), order.printed),
        follow_run(client, receipt.run, order.onlooker, digest=receipt.digest) as following,
        supervisor_awaited(following, order.say),
    ):
        detach = order.where.hint("watch", receipt.run) if order.detach and can_detach else None
        user, timeouts = order.where.settings.user, order.job.timeouts
        wish = Abort(client, receipt.run, user, timeouts, order.say, own=not can_detach)
        abort = asyncio.ensure_future(_when_interrupted(wish, caught, detach=detach))
        refused = asyncio.ensure_future(wait_refused(client, receipt, following))
        try:
            state = await _first(following.wait_ended(), abort, refused)
        finally:
            for task in (abort, refused):
                task.cancel()
            await asyncio.gather(abort, refused, return_exceptions=True)
        returned = None
        if order.keep_returned and state.return_blob is not None:
            returned = await Blobs(client.connection).get(f"sha256:{state.return_blob.rpartition(':')[2]}")
        return Outcome(state, following.head or Head(n=state.n, hash=""), returned)


async def _first(wanted: Coroutine[None, None, T], *watching: asyncio.Future[None]) -> T:
    """Return what is wanted; raise what ends one of those that watch, should that come first."""
    task = asyncio.ensure_future(wanted)
    pending: set[asyncio.Future[None] | asyncio.Future[T]] = {task, *watching}
    try:
        while not task.done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                future.result()
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _when_interrupted(abort: Abort, caught: Interrupts, *, detach: str | None) -> None:
    """On an interrupt leave the run to its service (`detach` follows it again), or see it ended."""
    await caught.first.wait()
    if detach is not None:
        raise Detached(f"{abort.run} goes on; follow it again with: {detach}")
    await abort_when_asked(abort, caught)


async def wait_refused(client: Client, receipt: Receipt, following: Following) -> None:
    """Raise `JobRefusedError` when the job is refused; once the run exists, wait for ever, for nothing."""
    while True:
        await asyncio.sleep(REFUSAL_POLL_S)
        if following.state is not None:
            await asyncio.Event().wait()
        await raise_refused(client, receipt)


async def raise_refused(client: Client, receipt: Receipt) -> None:
    """Raise `JobRefusedError` if the job was refused."""
    if (record := await client.refusal(receipt.sequence)) is not None:
        refusal = msgspec.json.decode(record, type=JobRefused)
        raise JobRefusedError(f"the job was refused: {refusal.path}: {refusal.reason}")


async def _wait_gone(client: Client, run: str) -> None:
    """Wait until the last assignment of the run stands, by which everybody drops it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + GONE_TIMEOUT_S
    while loop.time() < deadline:
        message = await client.api.last_message(client.names.assignments, client.names.subjects.assignment(run))
        if message is not None and msgspec.json.decode(message.data, type=Assignment).want == "gone":
            return
        await asyncio.sleep(GONE_POLL_S)


def _slots(job: Job, nodes: int) -> int:
    """Everything the job asks for fits, however small the machine: it is its user's own. Several nodes share it."""
    each = job.scaling.worker_resources.get("CPU", 1.0)
    beside = job.validation.max_concurrent * job.validation.resources.get("CPU", 0.0) if job.validation else 0.0
    if nodes > 1:
        return max(1, math.ceil(math.ceil(job.scaling.max_workers / nodes) * each + beside))
    return max(os.cpu_count() or 1, math.ceil(job.scaling.max_workers * each + beside))


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise ServiceError(f"{folder} could not be removed: {error}") from error
