"""Runs held in a state for as long as a test needs it, and the processes of theirs that it kills."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import psutil

from runfold.events.transitions import StateChanged
from runfold.replay.errors import ReplayError
from runfold.replay.source import load
from runfold.workers.places import PLACES_FOLDER, Place
from support.commands import COMMAND_TIMEOUT_S, ENDS
from support.processes import name_of, under
from support.waiting import until_seen

if TYPE_CHECKING:
    from collections.abc import Callable

    from runfold.events.entry import Entry
    from support.commands import Commands

HELD = """
import os, pathlib, signal, time
import runfold
NAME = os.environ["HOLD"]
def wait_while(what):
    while pathlib.Path(f"{what}-{NAME}").exists():
        time.sleep(0.02)
wait_while("load")
def train():
    context = runfold.get_context()
    if context.get_world_rank() == 0 and pathlib.Path(f"stubborn-{NAME}").exists():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    runfold.report({"attempt": context.get_attempt()})
    if context.get_world_rank() == 3:
        wait_while("far")
    runfold.barrier()
    if context.get_world_rank() == 1 and context.get_attempt() == 1 and pathlib.Path(f"fail-{NAME}").exists():
        raise RuntimeError("once")
    wait_while("train")
    runfold.barrier()
    return context.get_attempt()
"""


class Held:
    """A run that waits for the test: `holds` are the files that it waits for, or behaves by."""

    def __init__(
        self, runfold: Commands, name: str, *holds: str, workers: int = 2, settings: dict[str, object] | None = None
    ) -> None:
        self.runfold = runfold
        self.name = name
        for hold in holds:
            (runfold.folder / f"{hold}-{name}").touch()
        options = {"env.HOLD": name, "failure.max_failures": 1, **(settings or {})}
        words = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
        runfold.write("held.py", HELD)
        self.run = runfold.submit("held.py:train", "--workers", str(workers), *words)

    @property
    def status(self) -> dict[str, object]:
        """What its log says of it."""
        return self.runfold.status(self.run)

    def reaches(self, state: str) -> None:
        """Wait for a state."""
        self.runfold.reaches(self.run, state)

    def waits_until(self, condition: Callable[[], object]) -> None:
        """Wait until something is true of it; a run that has ended meanwhile is shown."""

        def holds() -> bool:
            ended = (status := self.status)["state"] in ENDS
            found = bool(condition())
            assert found or not ended, status
            return found

        until_seen(holds, COMMAND_TIMEOUT_S)

    def lets(self, *holds: str) -> None:
        """Let it go on."""
        for hold in holds:
            (self.runfold.folder / f"{hold}-{self.name}").unlink(missing_ok=True)

    def runners(self) -> list[psutil.Process]:
        """Its runners."""
        return [process for process, _ in placed(self.runfold, self.run)]

    def family(self) -> list[psutil.Process]:
        """Its runners, and all that they have started."""
        return [one for runner in self.runners() for one in under(runner)]

    def rank(self, number: int) -> psutil.Process:
        """The process of a rank, once there is one."""
        found: list[psutil.Process] = []

        def there() -> bool:
            found.extend(one for one in self.family() if name_of(one) == f"rank-{number}")
            return bool(found)

        until_seen(there, COMMAND_TIMEOUT_S)
        return found[0]

    def ends(self) -> dict[str, object]:
        """Wait for its end, and return what its log says of it."""
        self.lets("load", "train", "stubborn", "fail", "far")
        return self.runfold.ended(self.run)

    def entries(self) -> list[Entry]:
        """Its log, from the archive, once that holds the end."""
        entries: list[Entry] = []

        def whole() -> bool:
            try:
                entries[:] = load(self.run, data_dir=self.runfold.data).entries
            except ReplayError:
                return False
            last = entries[-1].transitions if entries else ()
            return any(isinstance(one, StateChanged) and one.to_state in ENDS for one in last)

        until_seen(whole, COMMAND_TIMEOUT_S)
        return entries

    @property
    def spent(self) -> dict[str, int]:
        """What is spent of each budget."""
        return spent_of(self.status)


def spent_of(status: dict[str, object]) -> dict[str, int]:
    """What is spent of each budget, by a status."""
    budgets = status["budgets"]
    assert isinstance(budgets, dict)
    return {name: one["spent"] for name, one in budgets.items() if one["spent"]}


def placed(runfold: Commands, run: str) -> list[tuple[psutil.Process, str]]:
    """The runners of a run that live, each with its node.

    Only looked at: the lock of a place is the runner's, and its supervisor's to try.
    """
    found: list[tuple[psutil.Process, str]] = []
    for path in sorted((runfold.data / PLACES_FOLDER / "local").glob("*.json")):
        with suppress(FileNotFoundError, msgspec.DecodeError, psutil.NoSuchProcess):
            place = msgspec.json.decode(path.read_bytes(), type=Place)
            process = psutil.Process(place.pid)
            if place.run == run and name_of(process) == "runfold-runner":
                found.append((process, place.node))
    return found


def supervisor(runfold: Commands) -> psutil.Process:
    """The supervisor of the service."""
    return psutil.Process(pid_of(runfold, "supervisor"))


def pid_of(runfold: Commands, role: str) -> int:
    """The process that has a role in the service."""
    pid = json.loads((runfold.data / "connection.json").read_text())["pids"][role]
    assert isinstance(pid, int)
    return pid


def kill_role(runfold: Commands, role: str) -> None:
    """Kill a process of the service, and wait until the next one is at work."""
    before = pid_of(runfold, role)
    psutil.Process(before).kill()
    until_seen(lambda: pid_of(runfold, role) != before, COMMAND_TIMEOUT_S)


def kill_supervisor(runfold: Commands) -> None:
    """Kill the supervisor, and wait until the next one is at work."""
    kill_role(runfold, "supervisor")
