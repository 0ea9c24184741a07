"""Collectives of real rank processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runfold.workers.link import Returned
from runfold.workers.spawner import Spawner
from support.ranks import Group, failed, start_of, write_job

if TYPE_CHECKING:
    from pathlib import Path


async def test_collectives_of_four_ranks(spawner: Spawner, tmp_path: Path) -> None:
    write_job(
        tmp_path,
        """
        def train():
            rank = runfold.get_context().get_world_rank()
            runfold.barrier()
            word = runfold.broadcast_from_rank_zero({"word": "hello"} if rank == 0 else None)
            parts = runfold.all_gather((rank, bytes(100_000)))
            return [word["word"], [r for r, _ in parts], sum(len(b) for _, b in parts)]
        """,
    )
    group = await Group(spawner, start_of(tmp_path), world_size=4).start()
    ends = await group.wait()
    assert [end.result.value for end in ends if isinstance(end.result, Returned)] == [
        ["hello", [0, 1, 2, 3], 400_000]
    ] * 4


async def test_a_timeout_names_the_missing_ranks_and_the_others_stay_in_step(spawner: Spawner, tmp_path: Path) -> None:
    write_job(
        tmp_path,
        """
        import pathlib, time
        def train():
            rank = runfold.get_context().get_world_rank()
            while rank == 2 and not all(pathlib.Path(f"told-{other}").exists() for other in (0, 1)):
                time.sleep(0.01)
            try:
                runfold.barrier(timeout_s=5)
            except TimeoutError as error:
                pathlib.Path(f"told-{rank}").touch()
                told = [type(error).__name__, list(error.missing_ranks), str(error)]
            runfold.barrier(timeout_s=60)
            return told
        """,
    )
    group = await Group(spawner, start_of(tmp_path), world_size=3).start()
    ends = await group.wait()
    values = [end.result.value for end in ends if isinstance(end.result, Returned)]
    assert len(values) == 3, ends
    for value in values:
        assert isinstance(value, list)
        assert value[:2] == ["CollectiveTimeoutError", [2]]
        assert "rank 2 did not arrive" in str(value[2])


async def test_different_collectives_are_an_error_that_names_both(spawner: Spawner, tmp_path: Path) -> None:
    write_job(
        tmp_path,
        """
        def train():
            if runfold.get_context().get_world_rank() == 0:
                runfold.barrier()
            else:
                runfold.all_gather(1)
        """,
    )
    group = await Group(spawner, start_of(tmp_path), world_size=2).start()
    for end in await group.wait():
        error = failed(end.result).error
        assert (error.type, error.kind) == ("CollectiveMismatchError", "peer")
        assert "barrier #1" in error.message
        assert "all_gather #1" in error.message


@pytest.mark.parametrize(
    ("ending", "says"),
    [
        ("return", "rank 1 has returned"),
        ("raise ValueError('x')", "rank 1 has failed"),
        ("__import__('os')._exit(3)", "rank 1 exited with code 3"),
    ],
)
async def test_a_rank_that_is_gone_is_named_to_those_that_wait_for_it(
    spawner: Spawner, tmp_path: Path, ending: str, says: str
) -> None:
    write_job(
        tmp_path,
        f"""
        def train():
            if runfold.get_context().get_world_rank() == 1:
                {ending}
            runfold.barrier()
        """,
    )
    group = await Group(spawner, start_of(tmp_path), world_size=2).start()
    ends = await group.wait()
    error = failed(ends[0].result).error
    assert (error.type, error.kind) == ("CollectivePeerError", "peer")
    assert says in error.message
