"""The broker of a service that runs is away for a while: everybody waits for it, and nobody says what is not so."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from runfold import patience
from runfold.cli.watch import watch_run
from runfold.errors import EXIT_UNREACHABLE, BrokerAwayError, exit_code_of
from runfold.events.nats.files import read_connection
from runfold.locate import Where, find, listens
from runfold.runs import find_status, list_runs
from runfold.sources import open_history
from support.commands import COMMAND_TIMEOUT_S, Commands
from support.waiting import until_seen

TRAINING = """
import time
from pathlib import Path

import runfold


def waits(config):
    print("at work", flush=True)
    enough, rounds = Path(config["enough"]), 0
    while not enough.exists():
        found = len(list(enough.parent.glob("round-*")))
        if found > rounds:
            rounds = found
            print(f"round={rounds}", flush=True)
        runfold.report({"round": rounds})
        time.sleep(0.05)
    return 7


def ok():
    return 5
"""
WAITING = "is starting its broker again: waiting"
LIES = ("not running", "knows no run", "no service answers", "had not ended")


@contextmanager
def broker_away(runfold: Commands) -> Iterator[None]:
    """Nothing listens for as long as the block lasts: the broker is killed, and cannot be started again."""
    config = runfold.data / "broker" / "nats-server.conf"
    config.unlink()
    config.mkdir()
    file = read_connection(runfold.data)
    assert file is not None
    killed = file.pids["broker"]
    os.kill(killed, signal.SIGKILL)
    until_seen(lambda: not listens(file.server), COMMAND_TIMEOUT_S)
    try:
        yield
    finally:
        config.rmdir()
    # It takes clients before it is written down: who is told of the one that was killed cannot kill the next.
    until_seen(lambda: broker_of(runfold) not in (None, killed), COMMAND_TIMEOUT_S)


def broker_of(runfold: Commands) -> int | None:
    """The broker's process, as the service has written it down."""
    file = read_connection(runfold.data)
    return None if file is None else file.pids["broker"]


def waits(process: subprocess.Popen[str]) -> None:
    """Return once a command has said that it waits."""
    assert process.stderr is not None
    said: list[str] = []
    while WAITING not in (line := process.stderr.readline()):
        said.append(line)
        assert line, f"{process.args!r} ended with {process.wait()}: {said}"


def shown(process: subprocess.Popen[str], word: str, *, by: IO[str] | None = None) -> subprocess.Popen[str]:
    """Return a command once it has printed something, on its standard output or `by` another stream."""
    stream = by or process.stdout
    assert stream is not None
    while word not in (line := stream.readline()):
        assert line, f"{process.args!r} ended with {process.wait()}"
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return how a command ends, and what it says then."""
    _, err = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert not [lie for lie in LIES if lie in err], err
    return process.returncode, err


def submit(runfold: Commands, run: str) -> tuple[str, ...]:
    return ("submit", "jobs.py:waits", "--set", f"config.enough={runfold.folder / 'enough'}", "--set", f"id={run}")


def at_work(runfold: Commands, *runs: str) -> None:
    for run in runs:
        runfold.ok(*submit(runfold, run))
        runfold.until_known(run)
        watching = shown(runfold.start("watch", run), " running ")
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=COMMAND_TIMEOUT_S)


def test_who_asks_waits_for_the_broker_of_a_service_that_runs(runfold: Commands) -> None:
    runfold.write("jobs.py", TRAINING)
    with runfold.service("--slots", "2") as up:
        at_work(runfold, "seen", "stopped")
        with broker_away(runfold):
            other = runfold("up")
            assert (other.code, "is in use" in other.err) == (1, True), other.err
            asking = [
                runfold.start(*words)
                for words in [
                    ("get", "seen", "-o", "json"),
                    ("ls",),
                    ("replay", "seen"),
                    ("logs", "seen"),
                    ("capacity",),
                    ("gc", "--older-than", "30d"),
                    ("abort", "stopped", "--reason", "seen enough"),
                    ("submit", "jobs.py:ok", "--set", "id=new"),
                ]
            ]
            nobody = runfold.start("get", "nobody")
            for process in (*asking, nobody):
                waits(process)
        for process in asking:
            assert ended(process)[0] == 0, process.args
        code, err = ended(nobody)
        assert (code, "there is no run" in err) == (4, True)
        (runfold.folder / "enough").touch()
        runfold.until_known("new")
        for run, code in (("seen", 0), ("stopped", 3), ("new", 0)):
            assert runfold("watch", run).code == code
        assert "the broker ended unexpectedly" in up.stop()
    gone = runfold("get", "nobody")
    assert (gone.code, "not running" in gone.err, WAITING in gone.err) == (4, True, False)


def test_who_follows_a_run_goes_on_when_the_broker_is_back(runfold: Commands) -> None:
    runfold.write("jobs.py", TRAINING)
    with runfold.service("--slots", "3"):
        at_work(runfold, "seen")
        following = [
            shown(runfold.start("watch", "seen"), " running "),
            shown(runfold.start("logs", "-f", "seen"), "at work"),
            shown(runfold.start("replay", "seen", "--follow"), "seen"),
            shown(runfold.start("run", *submit(runfold, "run")[1:]), " running "),
        ]
        submitted = shown(runfold.start(*submit(runfold, "followed"), "--follow"), "followed")
        following.append(submitted)
        for count in (1, 2):
            with broker_away(runfold):
                for process in following:
                    waits(process)
                beginning = runfold.start("watch", "seen")
                waits(beginning)
                following.append(beginning)
            assert runfold.ok("get", "seen", "-o", "json").document["state"] == "running"
            (runfold.folder / f"round-{count}").touch()
            for process in following:
                # Who has not come back yet would take the next absence for the same one.
                shown(process, f"round={count}", by=process.stderr if process is submitted else None)
        (runfold.folder / "enough").touch()
        for process in following:
            assert ended(process)[0] == 0, process.args


ASKING: dict[str, Callable[[Where], Coroutine[None, None, object]]] = {
    "a status": lambda where: find_status(where, "seen"),
    "the list": list_runs,
    "the story": lambda where: open_history(where, "seen"),
    "the end": lambda where: watch_run(where, "seen", stream=io.StringIO()),
}


async def test_who_waited_in_vain_is_told_that_the_broker_of_a_running_service_does_not_answer(
    runfold: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runfold.write("jobs.py", TRAINING)
    with runfold.service("--slots", "1"):
        await asyncio.to_thread(at_work, runfold, "seen")
        where = find(str(runfold.data))
        monkeypatch.setattr(patience, "BROKER_AWAITED_S", 5.0)
        with broker_away(runfold):
            for what, ask in ASKING.items():
                with pytest.raises(BrokerAwayError, match="is running, but its broker does not answer") as told:
                    await ask(where)
                assert exit_code_of(told.value) == EXIT_UNREACHABLE, what
                assert WAITING in capsys.readouterr().err
            assert not where.stopped
