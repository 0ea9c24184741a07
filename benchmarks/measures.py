"""What is measured, against a service of its own in a temporary directory."""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from runfold.client import Client, open_client
from runfold.events.assignment import Assignment
from runfold.events.config import BackendConfig, FailureConfig, ScalingConfig
from runfold.events.entry import decode_entry
from runfold.events.facts import FactMessage, Queued, RankFailed, RankStarted
from runfold.events.job import Job
from runfold.events.nats.connection import Connection, connect
from runfold.events.nats.consume import Delivered
from runfold.events.nats.files import read_admin, read_connection
from runfold.events.nats.names import Names, Role
from runfold.events.nats.publish import Acked, publish_acked
from runfold.events.requests import Join
from runfold.events.state import RunState
from runfold.events.values import unpack
from runfold.follow import follow_run
from runfold.ids import new_run_id
from runfold.service import Plan, Service

FUNCTIONS = str(Path(__file__).with_name("functions.py"))
RUNFOLD = Path(sys.executable).with_name("runfold")
RUN_TIMEOUT_S = 120.0
FACTS_COUNT = 200
BENCH_POOL = "bench"
T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """A service that is up, and a client of it."""

    data_dir: Path
    client: Client


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    """Start a service with two slots for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="runfold-bench-") as folder:
        service = Service(Plan(Path(folder), "runfold", slots=2), print)
        await service.start()
        try:
            async with open_client(service.address) as client:
                await run(client, "empty")  # whatever is only done once is done
                yield Bench(Path(folder), client)
        finally:
            await service.stop()


async def connection(started: Bench, role: Role) -> Connection:
    """Connect to the service as one of its other users."""
    file, admin = read_connection(started.data_dir), read_admin(started.data_dir)
    if file is None or admin is None:
        raise RuntimeError("the service wrote no connection.json")
    url = admin.url if role is Role.ADMIN else file.url_of(role)
    return await connect(url, role=role, name=f"bench {role.value}", names=Names())


def job(function: str, folder: Path | None = None, *, workers: int = 2, pool: str = "local", failures: int = 0) -> Job:
    """A job of one of the measured functions."""
    return Job(
        id=new_run_id("bench"),
        entrypoint=f"{FUNCTIONS}:{function}",
        config={} if folder is None else {"folder": str(folder)},
        scaling=ScalingConfig(num_workers=workers),
        failure=FailureConfig(max_failures=failures),
        pool=pool,
    )


async def run(
    client: Client, function: str, folder: Path | None = None, *, failures: int = 0, workers: int = 2
) -> RunState:
    """Run one of the measured functions to its end."""
    wanted = job(function, folder, workers=workers, failures=failures)
    await client.submit(wanted)
    async with follow_run(client, str(wanted.id)) as following:
        return await within(RUN_TIMEOUT_S, following.wait_ended())


async def within(patience_s: float, awaited: Awaitable[T]) -> T:
    """Return what is awaited; TimeoutError when it does not come in time."""
    async with asyncio.timeout(patience_s):
        return await awaited


def noted(folder: Path, what: str, attempt: int) -> list[float]:
    """The times that ranks wrote down."""
    return [float(path.read_text()) for path in folder.glob(f"{what}.{attempt}.[0-9]")]


async def submit_to_user_code(started: Bench) -> float:
    """From the acknowledgement of a job until both ranks are in user code, in seconds."""
    with tempfile.TemporaryDirectory(prefix="runfold-bench-") as name:
        folder = Path(name)
        wanted = job("enter", folder)
        async with follow_run(started.client, str(wanted.id)) as following:
            await started.client.submit(wanted)
            acknowledged = time.monotonic()
            await within(RUN_TIMEOUT_S, following.wait_ended())
        return max(noted(folder, "entered", 1)) - acknowledged


def cold_run() -> float:
    """`runfold run` of an empty function, everything included, in seconds."""
    with tempfile.TemporaryDirectory(prefix="runfold-bench-") as name:
        began = time.perf_counter()
        subprocess.run([RUNFOLD, "run", f"{FUNCTIONS}:empty", "--data", name], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began


@dataclass(frozen=True)
class Restart:
    """A restart and where its time went, in seconds."""

    whole: float
    told: float
    decided: float
    loaded: float
    entered: float


async def restart(
    started: Bench, entrypoint: str = f"{FUNCTIONS}:fail_once", backend: BackendConfig | None = None
) -> Restart:
    """From a rank's exception until both ranks are in user code again."""
    with tempfile.TemporaryDirectory(prefix="runfold-bench-") as name:
        folder = Path(name)
        wanted = job("fail_once", folder, failures=1)
        wanted = msgspec.structs.replace(wanted, entrypoint=entrypoint, backend=backend or BackendConfig())
        seen: list[Delivered] = []
        names = started.client.names
        async with started.client.following(names.log, [names.subjects.log(str(wanted.id))], seen.append):
            async with follow_run(started.client, str(wanted.id)) as following:
                await started.client.submit(wanted)
                await within(RUN_TIMEOUT_S, following.wait_ended())
        return _restart(folder, seen)


def _restart(folder: Path, seen: list[Delivered]) -> Restart:
    wall_offset = time.time() - time.monotonic()
    raised = noted(folder, "raised", 1)[0]
    entered = max(noted(folder, "entered", 2))
    told = decided = loaded = raised
    for message in seen:
        for item in decode_entry(message.data).inputs:
            if isinstance(item, RankFailed):
                told, decided = item.clock_s, message.stored_at_s - wall_offset
            elif isinstance(item, RankStarted) and item.attempt == 2:
                loaded = max(loaded, item.clock_s)
    return Restart(
        whole=entered - raised,
        told=told - raised,
        decided=decided - told,
        loaded=loaded - decided,
        entered=entered - loaded,
    )


async def report_times(started: Bench) -> list[int]:
    """How long `report` takes, in nanoseconds each."""
    state = await run(started.client, "report_many", workers=1)
    if state.return_blob is not None:
        from runfold.events.nats.blobs import Blobs
        from runfold.workers.payload import unpickled

        found = unpickled(await Blobs(started.client.connection).get(f"sha256:{state.return_blob[-64:]}"))
        return msgspec.convert(found, list[int])
    return msgspec.convert(unpack(state.return_value), list[int])


async def fact_to_decision(
    started: Bench, worker: Connection, floor: Callable[[], Awaitable[float]]
) -> tuple[list[float], list[float]]:
    """From a fact's publication until the entry that folds it is durable, in seconds each; and the floor in between.

    We are the supervisor of a pool of our own, and say again and again how a run waits.
    """
    wanted = job("empty", pool=BENCH_POOL)
    run_id, source = str(wanted.id), f"pool-{BENCH_POOL}"
    names = started.client.names
    entries: asyncio.Queue[float] = asyncio.Queue()
    joined = asyncio.Event()

    def hear(message: Delivered) -> None:
        if any(isinstance(item, Queued) for item in decode_entry(message.data).inputs):
            entries.put_nowait(time.perf_counter())

    def assigned(message: Delivered) -> None:
        if any(given.source == source for given in msgspec.json.decode(message.data, type=Assignment).joined):
            joined.set()

    await started.client.submit(wanted)
    async with (
        started.client.following(names.log, [names.subjects.log(run_id)], hear),
        started.client.following(names.assignments, [names.subjects.assignment(run_id)], assigned),
    ):
        await _publish(worker, names.subjects.request(run_id, "join"), Join(id="b", source=source, boot="b"))
        await within(RUN_TIMEOUT_S, joined.wait())
        took: list[float] = []
        least: list[float] = []
        for number in range(1, FACTS_COUNT + 1):
            queued = Queued(source=source, incarnation=1, number=number, attempt=1, ahead=number, free=0, needed=2)
            began = time.perf_counter()
            await _publish(worker, names.subjects.fact(run_id, 1, source), FactMessage(run=run_id, facts=(queued,)))
            took.append(await within(RUN_TIMEOUT_S, entries.get()) - began)
            least.append(await floor())
    return took, least


async def _publish(worker: Connection, subject: str, document: msgspec.Struct) -> None:
    answer = await publish_acked(worker, subject, msgspec.json.encode(document), timeout_s=RUN_TIMEOUT_S)
    if not isinstance(answer, Acked):
        raise RuntimeError(f"the broker refused: {answer}")
