"""What a rank finds around it: its function, its environment, its directory; and what it does not find."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import cloudpickle
import msgspec
import psutil

from runfold.events.facts import RankFailed, RankReturned, RankStarted, Reported
from runfold.events.nats.blobs import Blobs
from runfold.events.nats.names import Role
from runfold.events.nats.output import read_output
from runfold.events.output import OutputBatch, records

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from support.pool import PoolForTest


async def test_environment_and_directory(pool: PoolForTest, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = pool.folder / "inside"
    inside.mkdir()
    run = await pool.run(
        "digits-1",
        """
        import os
        def train():
            return {"cwd": os.getcwd(), **{k: v for k, v in os.environ.items() if k.startswith(("RUNFOLD_", "MINE"))}}
        """,
        env={"MINE": "given"},
    )
    (inside / "job.py").write_text((pool.folder / "job.py").read_text())
    run.work = msgspec.structs.replace(run.work, working_dir="inside")
    run.train()
    await run.heard(RankReturned, count=2)
    for rank in (0, 1):
        value = run.of(RankReturned, rank=rank)[0].value
        assert value == {
            "cwd": str(inside),
            "MINE": "given",
            "RUNFOLD_RUN": "digits-1",
            "RUNFOLD_ATTEMPT": "1",
            "RUNFOLD_RANK": str(rank),
            "RUNFOLD_WORLD_SIZE": "2",
            "RUNFOLD_LOCAL_RANK": str(rank),
            "RUNFOLD_LOCAL_WORLD_SIZE": "2",
            "RUNFOLD_NODE_RANK": "0",
            "RUNFOLD_NODE": "local",
        }


async def test_a_secret_that_is_not_set_here_fails_by_name(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", "def train(): pass", num_workers=1, secret_env=("RUNFOLD_TEST_NO_SUCH",))
    run.train()
    error = (await run.heard(RankFailed)).error
    assert error.kind == "load"
    assert "RUNFOLD_TEST_NO_SUCH" in error.message


async def test_a_rank_holds_no_credentials(pool: PoolForTest) -> None:
    run = await pool.run(
        "digits-1",
        """
        import os, time
        def train():
            fds = {int(fd): os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                   if os.path.exists(f"/proc/self/fd/{fd}") or os.path.lexists(f"/proc/self/fd/{fd}")}
            runfold.report({"fds": [f"{fd} {target}" for fd, target in sorted(fds.items())]})
            time.sleep(600)
        """,
        num_workers=1,
    )
    run.train()
    reported = await run.heard(Reported)
    assert reported.metrics is not None
    fds = reported.metrics["fds"]
    assert isinstance(fds, list)
    sockets = [fd for fd in fds if "socket" in str(fd)]
    assert len(sockets) == 1, "the link to its runner, and no other"
    pid = run.of(RankStarted)[0].pid
    password = pool.broker.running.settings.password(Role.WORKER)
    process = psutil.Process(pid)
    assert password not in str(process.environ())
    assert password not in str(process.cmdline())
    assert not process.net_connections()


async def test_a_pickled_function_is_fetched_and_checked(pool: PoolForTest) -> None:
    blobs = Blobs(await pool.broker.connect(Role.CLIENT))
    digest = await blobs.put(cloudpickle.dumps(lambda config: config["x"] + 1))
    run = await pool.run("digits-1", "", entrypoint=f"blob:{digest}", config={"x": 41})
    run.train()
    returned = await run.heard(RankReturned, count=2)
    assert returned.value == 42
    assert run.of(RankStarted)[0].digest == digest


async def test_a_pickled_function_that_is_not_there_is_a_failed_fetch(pool: PoolForTest) -> None:
    digest = hashlib.sha256(b"nobody has this").hexdigest()
    run = await pool.run("digits-1", "", entrypoint=f"blob:sha256:{digest}", num_workers=1)
    run.train()
    error = (await run.heard(RankFailed)).error
    assert (error.kind, error.type) == ("fetch", "BlobMissing")
    assert digest in error.message


async def test_a_large_configuration_comes_whole(pool: PoolForTest) -> None:
    run = await pool.run(
        "digits-1",
        "def train(config): return [len(config['text']), config['nan'] != config['nan']]",
        num_workers=1,
        config={"text": "x" * 200_000, "nan": {"float": "nan"}},
    )
    run.train()
    assert (await run.heard(RankReturned)).value == [200_000, True]


async def test_a_large_return_value_is_kept_as_a_blob(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", "def train(): return 'x' * 1_000_000", num_workers=1)
    run.train()
    returned = await run.heard(RankReturned)
    assert returned.value is None
    assert returned.blob is not None
    data = await Blobs(await pool.broker.connect(Role.CLIENT)).get(returned.blob)
    assert len(data) >= 1_000_000
    (ended,) = await run.ended(1)
    assert ended.returned
    assert ended.number > returned.number


async def test_output_is_kept_by_rank_stream_and_attempt(pool: PoolForTest, tmp_path: Path) -> None:
    run = await pool.run(
        "digits-1",
        """
        import logging, sys
        def train():
            rank = runfold.get_context().get_world_rank()
            print("hello from", rank)
            logging.warning("logged by %d", rank)
            print("to stderr", file=sys.stderr)
        """,
    )
    run.train()
    await run.ended(2)
    run.stop()
    await pool.gone("runfold-runner")
    connection = await pool.broker.connect(Role.CLIENT)
    for rank in (0, 1):
        batches = [
            msgspec.json.decode(kept.data, type=OutputBatch)
            async for kept in read_output(connection, "digits-1", attempt=1, rank=rank)
        ]
        assert [batch.number for batch in batches] == list(range(1, len(batches) + 1))
        assert batches[-1].last
        lines = [record for batch in batches for record in records(batch)]
        assert {(line.attempt, line.rank, line.node) for line in lines} == {(1, rank, "local")}
        assert [line.text for line in lines if line.source == "stdout"] == [f"hello from {rank}"]
        assert [line.text for line in lines if line.source == "stderr"] == [
            f"WARNING:root:logged by {rank}",
            "to stderr",
        ]
