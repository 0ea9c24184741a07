"""What `report({"loss": x})` costs a training function, beside the floor: a bare encode and socket write.

`measure(calls)` runs a real rank, whose runner reads along in this process, and returns microseconds.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runfold.workers import session
from runfold.workers.handle import RankHandle
from runfold.workers.link import FromRank, Go, Loaded, Report, Returned, Start
from runfold.workers.spawner import Spawner
from runfold.workers.zygote import Role

if TYPE_CHECKING:
    from collections.abc import Callable

WARM_UP_COUNT = 200
HERE = Path(__file__).resolve()


class Cost(msgspec.Struct):
    """Microseconds of one call."""

    p50: float
    p99: float


class ReportCost(msgspec.Struct):
    """A report, and the floor below it."""

    report: Cost
    floor: Cost


def _timed(call: Callable[[int], object], calls: int) -> Cost:
    spent: list[float] = []
    for i in range(calls + WARM_UP_COUNT):
        began = time.perf_counter_ns()
        call(i)
        spent.append((time.perf_counter_ns() - began) / 1000)
        # A step of training, so that it is the call that is measured and not a full socket.
        time.sleep(0.0002)
    cuts = statistics.quantiles(spent[WARM_UP_COUNT:], n=100)
    return Cost(round(cuts[49], 2), round(cuts[98], 2))


def _floor(calls: int) -> Cost:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        while theirs.recv(65536):
            pass
        os._exit(0)
    theirs.close()
    encode = msgspec.msgpack.Encoder().encode
    try:
        return _timed(lambda i: ours.sendall(encode({"loss": 1.0 / (i + 1)})), calls)
    finally:
        ours.close()
        os.waitpid(pid, 0)


def train(config: dict[str, int]) -> object:
    """The training function of the rank that is measured."""
    calls = config["calls"]
    report = _timed(lambda i: session.report({"loss": 1.0 / (i + 1)}), calls)
    # Last: a process forked from a rank has no session.
    return msgspec.to_builtins(ReportCost(report, _floor(calls)))


async def _measure(calls: int) -> ReportCost:
    spawner = Spawner.launch("runfold.workers.rank:main", Role.RANKS)
    await spawner.start()
    handles: list[RankHandle] = []
    seen = 0

    def on_message(message: FromRank) -> None:
        nonlocal seen
        seen += isinstance(message, Report)
        if isinstance(message, Loaded):
            handles[0].send(Go())

    start = Start(
        run="report-cost",
        name="report-cost",
        attempt=1,
        rank=0,
        life=1,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        entrypoint=f"{HERE.name}:train",
        config={"calls": calls},
        working_dir=str(HERE.parent),
    )
    try:
        handle = await RankHandle.start(
            spawner, start, on_message=on_message, on_output=lambda _, data: print(data.decode(), end="")
        )
        handles.append(handle)
        end = await handle.wait()
    finally:
        await spawner.close()
    if not isinstance(end.result, Returned) or seen != calls + WARM_UP_COUNT:
        raise RuntimeError(f"the rank that was to be measured ended with {end}")
    return msgspec.convert(end.result.value, ReportCost)


def measure(calls: int = 5000) -> ReportCost:
    """Return the cost of a report and its floor, each over so many calls."""
    return asyncio.run(_measure(calls))


if __name__ == "__main__":
    print(measure())
