"""The figures of checkpoints: what a report with one costs, how soon it counts, and many of them one after another."""

import hashlib
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
from measures import FUNCTIONS, Bench, within

from runfold.events.config import CheckpointConfig, ScalingConfig
from runfold.events.entry import decode_entry
from runfold.events.facts import RankReturned
from runfold.events.job import Job
from runfold.events.nats.consume import Delivered
from runfold.events.state import RunState
from runfold.events.transitions import CheckpointCommitted
from runfold.events.values import unpack
from runfold.follow import follow_run
from runfold.ids import new_run_id

SIZE_BYTES = 1_000_000
SAVES_COUNT = 30
MANY_COUNT = 1000
KEPT_COUNT = 3
MANY_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Saved:
    """A run that saved: when each report was done and how long it took, by rank; when each checkpoint counted."""

    took: list[float]
    done: list[list[float]]
    committed: list[float]
    state: RunState
    whole_s: float


async def save(
    started: Bench,
    *,
    count: int = SAVES_COUNT,
    size_bytes: int = SIZE_BYTES,
    asynchronous: bool = False,
    workers: int = 1,
    keep: int | None = None,
) -> Saved:
    """Run the function that saves, to its end."""
    config = {"count": count, "size_bytes": size_bytes, "asynchronous": asynchronous, "together": workers > 1}
    wanted = Job(
        id=new_run_id("bench"),
        entrypoint=f"{FUNCTIONS}:save_many",
        config=dict(config),
        scaling=ScalingConfig(num_workers=workers),
        checkpoint=CheckpointConfig(num_to_keep=keep),
    )
    seen: list[Delivered] = []
    names = started.client.names
    began = time.monotonic()
    async with started.client.following(names.log, [names.subjects.log(str(wanted.id))], seen.append):
        async with follow_run(started.client, str(wanted.id)) as following:
            await started.client.submit(wanted)
            state = await within(MANY_TIMEOUT_S, following.wait_ended())
    whole_s = time.monotonic() - began
    offset = time.time() - time.monotonic()
    done: dict[int, list[float]] = {}
    took: list[float] = []
    committed: list[float] = []
    for message in seen:
        entry = decode_entry(message.data)
        for item in entry.inputs:
            if isinstance(item, RankReturned) and item.value is not None:
                value = msgspec.convert(unpack(item.value), dict[str, list[float]])
                done[item.rank] = value["done"]
                took += value["took"]
        committed += [
            message.stored_at_s - offset for said in entry.transitions if isinstance(said, CheckpointCommitted)
        ]
    return Saved(took, [done[rank] for rank in sorted(done)], committed, state, whole_s)


def commit_latencies(saved: Saved) -> list[float]:
    """From the last rank's report until the entry that commits the checkpoint is durable, in seconds each."""
    last = [max(moments) for moments in zip(*saved.done, strict=True)]
    return [at - reported for at, reported in zip(saved.committed, last, strict=True)]


def copies() -> list[float]:
    """The floor: how long reading, digesting and writing a file of that size to the disk takes, in seconds each."""
    took: list[float] = []
    with tempfile.TemporaryDirectory(prefix="runfold-bench-") as name:
        source = Path(name, "source")
        source.write_bytes(b"w" * SIZE_BYTES)
        for number in range(SAVES_COUNT):
            began = time.monotonic()
            with source.open("rb") as reading, Path(name, str(number)).open("wb") as writing:
                data = reading.read()
                hashlib.sha256(data).hexdigest()
                writing.write(data)
                writing.flush()
                os.fsync(writing.fileno())
            took.append(time.monotonic() - began)
    return took


def median(values: list[float]) -> float:
    """The value in the middle."""
    return statistics.median(values)
