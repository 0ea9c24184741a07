"""A runner of a few lines, forked from a fork server as the real one is: two ranks, until its pipe closes."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from runfold.workers import processes, rank
from runfold.workers.link import Entered
from runfold.workers.spawner import Spawner
from support.ranks import Group, start_of


def main(spec: bytes, fds: dict[str, int]) -> int:
    """Run as the child of a fork server; `spec` is the folder of the user's file."""
    # Before the event loop, while this process has one thread.
    spawner = Spawner.fork(rank.main)
    return asyncio.run(_run(spawner, Path(spec.decode()), fds["pipe"]))


async def _run(spawner: Spawner, folder: Path, pipe: int) -> int:
    await spawner.start()
    group = await Group(spawner, start_of(folder), world_size=2).start()
    for number in range(2):
        await group.until(Entered, number)
    pids = [spawner.pid, *(handle.pid for handle in group.handles)]
    told = [(pid, processes.start_time(pid)) for pid in pids]
    sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
    await asyncio.get_running_loop().run_in_executor(None, os.read, pipe, 1)
    await spawner.close()
    return 5
