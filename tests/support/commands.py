"""The command line as a user runs it: the installed script, its own data directory, a service if asked for."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from runfold.config import read_settings
from runfold.locate import Where
from runfold.runs import clients, find_status
from support.processes import gone, under
from support.waiting import until_seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RUNFOLD = Path(sys.executable).with_name("runfold")
COMMAND_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
ENDS = ("finished", "errored", "aborted")


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, object]:
        """What it printed, as one JSON object."""
        found = json.loads(self.out)
        assert isinstance(found, dict), self.out
        return found


class Commands:
    """Runs commands in a folder, with a data directory of its own and none of this environment's settings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._started: list[subprocess.Popen[str]] = []

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a command."""
        dropped = ("RUNFOLD_", "RAY_TRAIN_", "XDG_CONFIG_HOME")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        return {**kept, "RUNFOLD_DATA": str(self.data), "XDG_CONFIG_HOME": str(self.folder / "config"), **more}

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """Start a command; the caller ends it, and `end` whatever a failing test left running."""
        process = subprocess.Popen(
            [RUNFOLD, *words],
            cwd=self.folder,
            env=self.environment(**env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        """End every command that still runs; what it started ends with it."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait(STOP_TIMEOUT_S)

    def __call__(self, *words: str, **env: str) -> Done:
        """Run a command to its end."""
        process = self.start(*words, **env)
        try:
            out, err = process.communicate(timeout=COMMAND_TIMEOUT_S)
        finally:
            process.kill()
        return Done(process.returncode, out, err)

    def ok(self, *words: str, **env: str) -> Done:
        """Run a command that must end well."""
        done = self(*words, **env)
        assert done.code == 0, f"runfold {' '.join(words)} ended with {done.code}\n{done.out}\n{done.err}"
        return done

    def status(self, run: str) -> dict[str, object]:
        """What `runfold get` says of a run, without a process for it: who waits for something asks again and again."""
        found = json.loads(msgspec.json.encode(asyncio.run(find_status(self._where, run))))
        assert isinstance(found, dict)
        return found

    @property
    def _where(self) -> Where:
        return Where(data_dir=self.data, settings=read_settings({}), named=None)

    def until(self, run: str, holds: Callable[[dict[str, object]], object]) -> dict[str, object]:
        """Wait until one status of a run is as it should be, and return it; one that ends otherwise is shown."""
        status: dict[str, object] = {}

        def held() -> bool:
            nonlocal status
            status = self.status(run)
            found = bool(holds(status))
            assert found or status["state"] not in ENDS, status
            return found

        try:
            until_seen(held, COMMAND_TIMEOUT_S)
        except TimeoutError:
            pytest.fail(f"it never came to that: {status}")
        return status

    def reaches(self, run: str, state: str) -> dict[str, object]:
        """Wait until the status of a run has a state, and return it."""
        return self.until(run, lambda status: status["state"] == state)

    def submit(self, *words: str, **env: str) -> str:
        """Submit a job, and return its run once the service shows it: `submit` itself waits only so long."""
        run = self.ok("submit", *words, **env).out.strip()
        self.until_known(run)
        return run

    def until_known(self, run: str) -> None:
        """Wait until a controller has taken a job, and shows a status of it."""

        async def known() -> bool:
            async with clients(self._where) as each:
                return any([await client.status(run) is not None async for client in each])

        until_seen(lambda: asyncio.run(known()), COMMAND_TIMEOUT_S)

    def ended(self, run: str) -> dict[str, object]:
        """Wait for the end of a run, and return its status: the log has the end first, the status a moment later."""
        self.until_known(run)
        self("watch", run)
        self.until(run, lambda status: status["state"] in ENDS)
        return self.ok("get", run, "-o", "json").document

    def until_archived(self, run: str) -> None:
        """Wait until the archive of a run is closed: its end is in the log before."""
        until_seen((self.data / "archive" / run / "last.json").exists, COMMAND_TIMEOUT_S)

    def write(self, name: str, text: str) -> Path:
        """Write a file of the user's."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    @contextmanager
    def service(self, *options: str, **env: str) -> Iterator[Up]:
        """A service for as long as the block lasts; afterwards nothing of it may be left."""
        process = self.start("up", "-o", "json", *options, **env)
        up = Up(process)
        try:
            up.wait_ready()
            yield up
            if process.poll() is None:
                up.stop()
        finally:
            up.end()


class Up:
    """A running `runfold up`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._pids: dict[str, int] = {}
        self._roots: list[psutil.Process] = [psutil.Process(process.pid)]

    @property
    def pids(self) -> dict[str, int]:
        """Its processes by role, as it was last asked."""
        return self._pids

    @pids.setter
    def pids(self, pids: dict[str, int]) -> None:
        self._pids = pids
        # By process, not by number: that of one that has ended may be another's by the time it is looked for.
        for pid in pids.values():
            with suppress(psutil.NoSuchProcess):
                self._roots.append(psutil.Process(pid))

    def wait_ready(self) -> None:
        """Wait for the line that says that everything runs."""
        assert self.process.stdout is not None
        backstop = threading.Timer(COMMAND_TIMEOUT_S, self.process.kill)
        backstop.start()
        try:
            line = self.process.stdout.readline()
        finally:
            backstop.cancel()
        if not line:
            _, err = self.process.communicate()
            pytest.fail(f"`runfold up` did not start: {err}")
        self.pids = json.loads(line)["pids"]

    def family(self) -> list[psutil.Process]:
        """Every process under it, and those that its children started in sessions of their own."""
        return list({process.pid: process for root in self._roots for process in under(root)}.values())

    def stop(self, number: signal.Signals = signal.SIGTERM) -> str:
        """Ask it to stop, wait until it has, and return what it said."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=STOP_TIMEOUT_S)
        return err

    def end(self) -> None:
        """End whatever is left of it, so that a failing test leaves nothing behind."""
        family = self.family()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        gone(family)
        self.process.wait(STOP_TIMEOUT_S)


@pytest.fixture
def runfold(tmp_path: Path) -> Iterator[Commands]:
    """Commands in a folder of the test's own."""
    commands = Commands(tmp_path)
    try:
        yield commands
    finally:
        commands.end()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Commands beside a service that a whole module shares."""
    commands = Commands(tmp_path_factory.mktemp("served"))
    try:
        with commands.service("--slots", "4"):
            yield commands
    finally:
        commands.end()
