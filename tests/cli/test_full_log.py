"""A log without room for another entry: said to whoever submits, asks or watches; gone on with; ended in the end."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from typing import TYPE_CHECKING

import pytest

from runfold.events.nats.broker import start_broker
from runfold.events.nats.connection import connect
from runfold.events.nats.files import read_admin
from runfold.events.nats.names import Names, Role
from support.commands import COMMAND_TIMEOUT_S, Commands
from support.scripts import TRAINING

if TYPE_CHECKING:
    from pathlib import Path

LOG = "RUNFOLD_LOG"
FULL = f"{LOG} is full: "


@pytest.fixture
def user(runfold: Commands) -> Commands:
    runfold.write("jobs.py", TRAINING)
    return runfold


def give_room(data_dir: Path, spare_bytes: int) -> None:
    """Let the log hold so much more than it does."""

    async def change() -> None:
        admin = read_admin(data_dir)
        assert admin is not None
        connection = await connect(admin.url, role=Role.ADMIN, name="test admin", names=Names(admin.namespace))
        try:
            answer = await connection.request(f"$JS.API.STREAM.INFO.{LOG}", b"", timeout_s=COMMAND_TIMEOUT_S)
            info = json.loads(answer.data)
            config = {**info["config"], "max_bytes": info["state"]["bytes"] + spare_bytes}
            answer = await connection.request(
                f"$JS.API.STREAM.UPDATE.{LOG}", json.dumps(config).encode(), timeout_s=COMMAND_TIMEOUT_S
            )
            assert "error" not in json.loads(answer.data)
        finally:
            await connection.close()

    asyncio.run(change())


def test_whoever_submits_asks_or_watches_sees_why_nothing_happens_and_then_it_does(user: Commands) -> None:
    with user.service():
        user.ok("run", "jobs.py:ok")
        give_room(user.data, 0)
        submitted = user.ok("submit", "jobs.py:ok")
        assert FULL in submitted.err
        run = submitted.out.strip()
        asked = user("get", run)
        assert (asked.code, FULL in asked.err) == (4, True)
        watching = user.start("submit", "jobs.py:ok", "--follow")
        assert watching.stderr is not None
        told = ""
        while "is stored" in told or FULL not in told:  # what it says on submission is not what is meant
            told = watching.stderr.readline()
            assert told, "it ended before it said why it waits"
        give_room(user.data, 64 * 1024**2)
        out, err = watching.communicate(timeout=COMMAND_TIMEOUT_S)
        assert watching.returncode == 0, out + err
        user.until_known(run)
        assert user("watch", run).code == 0
        assert FULL not in user.ok("get", run).err


def test_a_run_in_one_shot_that_cannot_write_its_abort_ends_all_the_same(user: Commands) -> None:
    process = user.start("run", "jobs.py:wait", "--workers", "2")
    assert process.stdout is not None
    while " running " not in process.stdout.readline():
        assert process.poll() is None
    (folder,) = (user.data / "once").iterdir()
    run = folder.name
    give_room(folder, 0)
    deadline = time.monotonic() + COMMAND_TIMEOUT_S
    while FULL not in user.ok("get", run).err:
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert process.returncode == 3, err
    assert f"{run} was stopped at once" in err
    assert FULL in err
    assert f"`runfold salvage {run}` sees to that" in err, "its end could not be written either"
    assert folder.is_dir()
    broker = start_broker(folder)
    try:
        give_room(folder, 64 * 1024**2)
    finally:
        broker.stop()
    assert f"{run}: aborted" in user.ok("salvage", run).out
    assert list((user.data / "once").iterdir()) == []
