"""A runner that is told to stop before it has heard of its last tasks: the two words come on two links."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from runfold.events.assignment import PlaceWanted
from runfold.events.facts import RunnerReady, TaskEnded
from runfold.events.nats.names import Role
from runfold.events.tasks import DELETE, Task
from runfold.workers.hatchery import Hatchery, RunnerProcess, launch_zygote
from runfold.workers.pipe import RunnerSpec
from support.scripted import Scripted, work
from support.waiting import within

if TYPE_CHECKING:
    from pathlib import Path

    from runfold.events.base import Json
    from support.broker import BrokerForTest

NODE = "local"
LAST = 100
"""The entry whose assignment stops the run, and orders the last task."""
BEHIND_S = 0.5
"""How much later that assignment comes: a runner that leaves at once has left by then."""
PATIENCE_S = 60.0


async def test_what_the_last_commit_orders_is_done_by_a_runner_that_is_told_to_stop_first(
    broker: BrokerForTest, tmp_path: Path
) -> None:
    doomed = tmp_path / "storage" / "digits-1" / "checkpoint_000000_1"
    doomed.mkdir(parents=True)
    (doomed / "state-0").write_bytes(b"weights")
    spec = RunnerSpec(
        url=broker.running.url(Role.WORKER),
        namespace="runfold",
        run="digits-1",
        attempt=1,
        pool="local",
        node=NODE,
        source=NODE,
        secret=b"s" * 32,
        base_dir=str(tmp_path),
        storage_dir=str(tmp_path / "storage"),
        slots=1,
    )
    asked = work("job.py:train", str(tmp_path))
    run = Scripted(await broker.connect(Role.CONTROLLER), "digits-1", asked, num_workers=1)
    hatchery = Hatchery(launch_zygote())
    runner = RunnerProcess(spec, hatchery, lambda: None)
    try:
        run.want("train", places=(PlaceWanted(node=NODE, slots=1, source=NODE),))
        await run.heard(RunnerReady)
        runner.stop("the run ends", PATIENCE_S, (1, LAST, 0))
        await asyncio.sleep(BEHIND_S)
        arguments: dict[str, Json] = {"names": [doomed.name], "sealed": True}
        run.skip_to(LAST)
        run.want("stop", tasks=(Task(id="delete:1", kind=DELETE, source=NODE, arguments=arguments),))
        ended = await run.heard(TaskEnded, task="delete:1")
        assert (ended.outcome, ended.error, doomed.exists()) == ("done", None, False)
        await within(PATIENCE_S, runner.wait())
        assert runner.here.code == 0
    finally:
        runner.stop("the test is over", 0.0)
        await runner.wait()
        await hatchery.close()
        await run.close()
