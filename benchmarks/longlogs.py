"""Long logs: how much sooner a snapshot lets a run be taken over, and its state at a moment be told."""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import logs
import takeovers
from msgspec.structs import replace

from runfold.client import Client, open_client
from runfold.events.base import Json
from runfold.events.entry import Entry, Head, decode_entry, encode_entry, hash_entry
from runfold.events.facts import Reported
from runfold.events.fold import fold
from runfold.events.nats.api import Api
from runfold.events.nats.broker import Broker, find_nats_server, start_broker
from runfold.events.nats.cells import owner_cells
from runfold.events.nats.connection import Connection, connect
from runfold.events.nats.names import Role
from runfold.events.nats.publish import Rejected, publish_acked
from runfold.events.nats.snapshots import RunSnapshots
from runfold.events.nats.streams import provision
from runfold.events.snapshot import StateSnapshot, encode_snapshot, fold_version, snapshot_keys
from runfold.events.state import RunState
from runfold.locate import Address

NAMES = takeovers.NAMES
SHORT, LONG = "short", "long"
ACKED_EVERY_COUNT = 500
ACK_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 30.0
TIMES_COUNT = 3


@dataclass(frozen=True)
class Measured:
    """From a controller that works to the entry by which it has the run, and from a command to its last line."""

    short_s: float
    long_s: float
    at_s: float


def entries_of(run: str, count: int) -> Iterator[bytes]:
    """The entries of a run of two ranks that reports for ever, so many of them."""
    lines = [line.replace(b'"bench"', f'"{run}"'.encode()) for line in logs.busy(1, 2)[:-2]]
    first = [decode_entry(line) for line in lines]
    prev, number, index = first[0].prev, 0, 0
    for entry in first:
        said = [item for item in entry.inputs if isinstance(item, Reported)]
        number, index = (said[-1].number, said[-1].index) if said else (number, index)
        data = encode_entry(_linked(entry, prev))
        prev = hash_entry(data)
        yield data
    last = first[-1]
    for n in range(len(first), count):
        number, index = number + 1, index + 1
        metrics: dict[str, Json] = {"loss": 1.0 / index, "accuracy": 0.5}
        report = Reported(
            source="local", incarnation=1, number=number, attempt=1, rank=0, life=1, index=index, metrics=metrics
        )
        made = Entry(
            v=1, run=run, n=n, t=last.t + 0.5 * (n - last.n), at=last.at, by="ctl", epoch=1, cursor=("inbox", n),
            inputs=(report,), transitions=(), prev=prev,
        )  # fmt: skip
        data = encode_entry(made)
        prev = hash_entry(data)
        yield data


def _linked(entry: Entry, prev: str) -> Entry:
    return replace(entry, prev=prev)


async def load(admin: Connection, run: str, count: int) -> None:
    """Write a log, and the snapshots that a controller would have kept of it."""
    info = await Api(admin).stream_info(NAMES.log)
    sequence = info.state.last_seq if info is not None else 0
    subject, kept = NAMES.subjects.log(run), RunSnapshots(admin, run)
    version_of_fold = fold_version(version("runfold"))
    state: RunState | None = None
    for n, data in enumerate(entries_of(run, count)):
        sequence += 1
        if n % ACKED_EVERY_COUNT == 0 or n == count - 1:
            answer = await publish_acked(admin, subject, data, timeout_s=ACK_TIMEOUT_S)
            if isinstance(answer, Rejected) or answer.sequence != sequence:
                raise RuntimeError(f"entry {n} of {run} is not where it should be: {answer}")
        else:
            await admin.publish(subject, data)
        state = fold(state, decode_entry(data))
        for key in snapshot_keys(n):
            head = Head(n=n, hash=hash_entry(data))
            snapshot = encode_snapshot(
                StateSnapshot(fold=version_of_fold, run=run, sequence=sequence, head=head, state=state)
            )
            await kept.put(key, snapshot or b"")


async def load_fast(folder: Path, count: int) -> None:
    """Write both logs with a broker that does not wait for the disk."""
    broker = start_broker(folder, die_with_parent=True)
    url = broker.url(Role.ADMIN)
    admin = await connect(url, role=Role.ADMIN, name="bench admin", names=NAMES)
    await provision(Api(admin), NAMES, storage_max_bytes=broker.storage_max_bytes)
    await admin.close()
    broker.stop()
    config = folder / "broker" / "nats-server.conf"
    fast = config.with_name("fast.conf")
    fast.write_text(config.read_text().replace("sync_interval: always", 'sync_interval: "2m"'))
    server = await asyncio.create_subprocess_exec(
        find_nats_server(), "-c", fast, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        admin = await connect(
            url, role=Role.ADMIN, name="bench admin", names=NAMES, connect_timeout_s=CONNECT_TIMEOUT_S
        )
        await load(admin, SHORT, 1000)
        await load(admin, LONG, count)
        await admin.close()
    finally:
        server.terminate()
        await server.wait()


async def take_over(started: Broker, client: Client, run: str, epoch: int) -> float:
    """From a controller that works to the entry by which it has a run that is its own, in seconds."""
    seen = takeovers.Seen()
    async with client.following(NAMES.log, [NAMES.subjects.log(run)], seen.take) as follower:
        await follower.wait_caught_up(takeovers.WAIT_MAX_S)
        async with takeovers.controllers(started, 1):
            works = time.monotonic()
            await seen.until(1, epoch)
            return max(seen.holders[run][2] - works, 0.0)


async def measure(count: int) -> Measured:
    """Measure on a log of 1,000 entries and on one of so many."""
    with tempfile.TemporaryDirectory(prefix="runfold-bench-") as name:
        folder = Path(name)
        await load_fast(folder, count)
        started = start_broker(folder, die_with_parent=True)
        try:
            address = Address(started.url(Role.CLIENT), NAMES.namespace, local=True)
            admin = await connect(started.url(Role.ADMIN), role=Role.ADMIN, name="bench admin", names=NAMES)
            owners = owner_cells(admin)
            took: dict[str, list[float]] = {SHORT: [], LONG: []}
            async with open_client(address) as client:
                for run in (SHORT, LONG):
                    await owners.put(run, b"bench-0", expected=0)
                    for k in range(TIMES_COUNT):
                        took[run].append(await take_over(started, client, run, 2 + k))
                    cell = await owners.get(run)
                    await owners.delete(run, expected=cell.sequence if cell is not None else 0)
            await admin.close()
            told = [_told(folder, count // 2 + 4321 * k) for k in range(TIMES_COUNT)]
        finally:
            started.stop()
    return Measured(*(statistics.median(values) for values in (took[SHORT], took[LONG], told)))


def _told(folder: Path, n: int) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-P", "-m", "runfold", "replay", LONG, "--at", str(n), "--data", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    if f"after entry {n}" not in done.stdout:
        raise RuntimeError(done.stdout + done.stderr)
    return time.perf_counter() - began
