"""Bring every failure of the catalogue about, with real processes on one service."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from runfold.client import Client, open_client
from runfold.events.requests import AbortRun
from runfold.ids import new_request_id
from runfold.jobs import job_from
from runfold.locate import Address
from support.breaking import BROKEN, IMPORTS
from support.catalogue import BY_NAME, CASES, QUICK, SPREAD
from support.commands import Commands, Up
from support.waiting import until

if TYPE_CHECKING:
    from runfold.events.status import Status

RUN_TIMEOUT_S = 240.0
OUTAGE_S = 4.0
RESUMED = "corrupt-checkpoint-on-resume"
DISK_FULL = "disk-full-at-checkpoint"
DISTURBED = ("broker-outage", "controller-crash")
"""What these do is done to the whole service: one after the other, when all else is over.

So are those that are spread over the nodes: each of these must have room for them.
"""


class Producer:
    """Produces the failures on a running service, in a folder that holds the user's code."""

    def __init__(self, commands: Commands, up: Up, client: Client) -> None:
        self.folder = commands.folder
        self.data = commands.data
        self.up = up
        self.client = client

    async def produce(self, names: set[str]) -> None:
        """Bring these about, and wait until their archives are closed."""
        alone = [*(case.name for case in CASES if SPREAD in case.settings), *DISTURBED]
        await asyncio.gather(*[self._produce(case.name) for case in CASES if case.name in names.difference(alone)])
        for name in alone:
            if name in names:
                await self._produce(name)

    async def _produce(self, name: str) -> None:
        case = BY_NAME[name]
        if name == RESUMED:
            await self._resume()
        else:
            await self._submit(name)
        if case.driven:
            await getattr(self, f"_{name.replace('-', '_')}")(name)
        await self._ended(name)

    async def _submit(self, name: str, case_name: str = "") -> None:
        case = BY_NAME[case_name or name]
        settings = (f"id={name}", "working_dir=.", "requested_by=demo", f"config.case={name}", *QUICK, *case.settings)
        await self.client.submit(job_from(case.entrypoint, workers=case.workers, settings=settings))

    async def _ended(self, name: str) -> None:
        await until((self.data / "archive" / name / "last.json").exists, RUN_TIMEOUT_S)

    async def _status(self, name: str) -> Status:
        found = await self.client.status(name)
        assert found is not None
        return found

    async def _at_work(self, name: str, rank: int) -> psutil.Process:
        """Wait until a rank is at work, and return its process."""
        told = self.folder / f"{name}-{rank}"
        await until(told.exists, RUN_TIMEOUT_S)

        async def reported() -> bool:
            now = await self.client.status(name)
            return now is not None and len(now.ranks) > rank and now.ranks[rank].index >= 0

        await until(reported, RUN_TIMEOUT_S)
        return psutil.Process(int(told.read_text(encoding="utf-8")))

    def _enough(self, name: str) -> None:
        (self.folder / f"{name}-enough").touch()

    # --- what is done from outside

    async def _killed_from_outside(self, name: str) -> None:
        (await self._at_work(name, 1)).kill()

    async def _runner_crash(self, name: str) -> None:
        runner_of(await self._at_work(name, 1)).kill()

    async def _preemption(self, name: str) -> None:
        """A notice first, and a second later the node is gone."""
        runner = runner_of(await self._at_work(name, 1))
        runner.terminate()

        async def preempting() -> bool:
            return (await self._status(name)).state == "preempting"

        await until(preempting, RUN_TIMEOUT_S)
        runner.kill()

    async def _user_abort(self, name: str) -> None:
        await self._at_work(name, 1)
        await self.client.request(name, AbortRun(id=new_request_id(), by="demo", reason="the learning rate was wrong"))

    async def _slow_storage(self, name: str) -> None:
        """The storage takes what it is given once it was said whom it lets wait."""

        async def warned() -> bool:
            now = await self.client.status(name)
            return now is not None and bool(now.warnings)

        await until(warned, RUN_TIMEOUT_S)
        self._enough(name)

    async def _victim_before_cause(self, name: str) -> None:
        """The node of the rank that fails first stands still until its victim's error has been decided on."""
        process = await self._at_work(name, 1)
        runner = runner_of(process)
        runner.suspend()
        self._enough(name)

        async def decided() -> bool:
            return (await self._status(name)).state not in ("scheduling", "running")

        try:
            await until(decided, RUN_TIMEOUT_S)
        finally:
            runner.resume()

    async def _controller_crash(self, name: str) -> None:
        await self._at_work(name, 1)
        psutil.Process(self.up.pids["controller"]).kill()

        async def taken_over() -> bool:
            return (await self._status(name)).epoch > 1

        await until(taken_over, RUN_TIMEOUT_S)
        self._enough(name)

    async def _broker_outage(self, name: str) -> None:
        await self._at_work(name, 1)
        broker = psutil.Process(self.up.pids["broker"])
        broker.suspend()
        await asyncio.sleep(OUTAGE_S)
        broker.send_signal(signal.SIGKILL)
        self._enough(name)

    async def _resume(self) -> None:
        """Let a run save a checkpoint, spoil a byte of it, and begin another run from it."""
        first = "checkpoint-to-corrupt"
        await self._submit(first, RESUMED)
        await self._ended(first)
        file = next((self.folder / "checkpoints" / "first").glob("checkpoint_*/state-0"))
        file.write_bytes(b"?" + file.read_bytes()[1:])
        await self._submit(RESUMED)


def runner_of(process: psutil.Process) -> psutil.Process:
    """Return the runner of a rank."""
    return next(one for one in process.parents() if one.name() == "runfold-runner")


@contextmanager
def small_disk(place: Path) -> Iterator[bool]:
    """Put a file system of 64 KiB there; False where that is not allowed."""
    place.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    allowed = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield allowed
    finally:
        if allowed:
            subprocess.run(["umount", "--lazy", place], check=True)


def lay_out(folder: Path) -> None:
    """Write the user's code to where it runs; only one node has the driver."""
    (folder / "broken.py").write_text(BROKEN, encoding="utf-8")
    (folder / "imports.py").write_text(IMPORTS, encoding="utf-8")
    (folder / "node-0").mkdir()
    (folder / "node-0" / "driver_of_this_node.py").write_text("VERSION = 2\n", encoding="utf-8")
    (folder / "node-1").mkdir()


@asynccontextmanager
async def producer(commands: Commands, up: Up) -> AsyncIterator[Producer]:
    """A producer on a service."""
    connection = json.loads((commands.data / "connection.json").read_text(encoding="utf-8"))
    async with open_client(Address(connection["url"], connection["namespace"], local=True)) as client:
        yield Producer(commands, up, client)


def produce_all(commands: Commands, wanted: set[str] | None = None) -> set[str]:
    """Bring about all of the catalogue, or what is wanted of it, as far as this machine allows; return the names."""
    lay_out(commands.folder)
    names = set(wanted or BY_NAME)
    with small_disk(commands.data / "storage" / DISK_FULL) as allowed:
        if not allowed:
            names.discard(DISK_FULL)

        async def produce(up: Up) -> None:
            async with producer(commands, up) as one:
                await one.produce(names)

        with commands.service("--nodes", "2", "--slots", "16") as up:
            asyncio.run(produce(up))
    return names
