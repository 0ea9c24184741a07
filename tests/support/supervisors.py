"""Supervisors as processes of their own, one after another on one machine: what a test kills."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from runfold.events.nats.names import Role
from runfold.workers.main import SupervisorConfig
from runfold.workers.places import find_places
from support.processes import alive, all_gone
from support.scripted import Asking
from support.waiting import within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from support.broker import BrokerForTest

STOP_PATIENCE_S = 60.0


class Machine(Asking):
    """A machine on which supervisors follow each other. Whatever they leave is ended after the test."""

    def __init__(self, broker: BrokerForTest, folder: Path) -> None:
        super().__init__(broker, folder)
        self.places = folder / "places"
        self._started: list[asyncio.subprocess.Process] = []
        self._seen: dict[int, psutil.Process] = {}

    async def supervisor(self, *, adopt: bool = True, **nodes: int) -> asyncio.subprocess.Process:
        """Start a supervisor."""
        config = SupervisorConfig(
            url=self.broker.running.url(Role.WORKER),
            slots=2,
            base_dir=str(self.folder),
            places_dir=str(self.places),
            adopt=adopt,
            more_nodes=nodes,
        )
        code = "from support.serve import main; main()"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            code,
            stdin=asyncio.subprocess.PIPE,
            env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(config) + b"\n")
        self._started.append(process)
        return process

    def runner(self, node: str = "local") -> psutil.Process:
        """The runner that holds a place on a node."""
        return next(self._process(place.pid) for _, place in find_places(self.places) if place.node == node)

    def below(self, process: psutil.Process) -> list[psutil.Process]:
        """A process and all that it has started."""
        found = [process, *process.children(recursive=True)]
        self._seen.update((one.pid, one) for one in found)
        return found

    async def kill(self, supervisor: asyncio.subprocess.Process) -> None:
        """End a supervisor as a crash would."""
        self.below(psutil.Process(supervisor.pid))
        supervisor.send_signal(signal.SIGKILL)
        await supervisor.wait()

    async def stop(self, supervisor: asyncio.subprocess.Process) -> None:
        """Stop a supervisor in order."""
        assert supervisor.stdin is not None
        supervisor.stdin.write(b"stop\n")
        await within(STOP_PATIENCE_S, supervisor.wait())

    async def close(self) -> None:
        """Stop what is left; kill what does not stop."""
        try:
            for supervisor in self._started:
                if supervisor.returncode is None:
                    with suppress(psutil.NoSuchProcess):
                        self.below(psutil.Process(supervisor.pid))
                    await self.stop(supervisor)
        finally:
            for run in self.runs:
                await run.close()
            left = [process for process in self._seen.values() if alive(process)]
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            await all_gone(left)

    def _process(self, pid: int) -> psutil.Process:
        process = psutil.Process(pid)
        self._seen[pid] = process
        return process


@pytest.fixture
async def machine(broker: BrokerForTest, tmp_path: Path) -> AsyncIterator[Machine]:
    """A machine of the test's own."""
    made = Machine(broker, tmp_path)
    try:
        yield made
    finally:
        await made.close()
