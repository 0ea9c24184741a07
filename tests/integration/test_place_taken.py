"""A runner that finds another one of its run in its place ends by itself, and is told from one that failed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from runfold.workers.hatchery import Hatchery, RunnerProcess, launch_zygote
from runfold.workers.pipe import EXIT_TAKEN, RunnerSpec
from runfold.workers.places import Place, PlaceLock
from support.waiting import within

if TYPE_CHECKING:
    from pathlib import Path

NOWHERE = "nats://127.0.0.1:9"
PATIENCE_S = 60.0


async def test_it_is_seen_why_it_ended(tmp_path: Path) -> None:
    run, pool, node = "digits-1", "local", "local"
    holder = Place(run=run, pool=pool, node=node, source=node, attempt=1, pid=os.getpid(), started=None, slots=1)
    spec = RunnerSpec(
        url=NOWHERE,
        namespace="runfold",
        run=run,
        attempt=1,
        pool=pool,
        node=node,
        source=node,
        secret=b"s" * 32,
        base_dir="/",
        slots=1,
        places_dir=str(tmp_path),
    )
    lock = PlaceLock.take(tmp_path, holder)
    hatchery = Hatchery(launch_zygote())
    runner = RunnerProcess(spec, hatchery, lambda: None)
    try:
        await within(PATIENCE_S, runner.wait())
        assert (runner.here.code, runner.here.place_taken) == (EXIT_TAKEN, True)
        assert "another runner of the run was still at work on this node" in runner.here.reason
    finally:
        runner.stop("the test is over", 0.0)
        await runner.wait()
        await hatchery.close()
        lock.release()
