"""Real ranks under a runner of a few lines: what the tests of the process layer stand on."""

from __future__ import annotations

import asyncio
import textwrap
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from runfold.workers import processes
from runfold.workers.collective import START, CollectiveHub
from runfold.workers.handle import RankEnd, RankHandle, RankSource
from runfold.workers.link import Collect, Collected, Failed, FromRank, Go, Loaded, Refused, Report, Returned, Start
from runfold.workers.spawner import Spawner
from runfold.workers.zygote import Role
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PATIENCE_S = 60.0


@pytest.fixture
async def spawner() -> AsyncIterator[Spawner]:
    made = Spawner.launch("runfold.workers.rank:main", Role.RANKS)
    await made.start()
    mine = psutil.Process(made.pid)
    yield made
    left = mine.children(recursive=True)
    await made.close()
    assert not [process for process in left if process.is_running()]
    assert not mine.is_running()


def failed(result: object) -> Failed:
    assert isinstance(result, Failed)
    return result


def start_of(folder: Path, entrypoint: str = "job.py:train", **changes: object) -> Start:
    """Rank 0 of a group of one that runs in `folder`."""
    start = Start(
        run="digits-7k2",
        name="digits",
        attempt=1,
        rank=0,
        life=1,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        entrypoint=entrypoint,
        working_dir=str(folder),
    )
    return msgspec.structs.replace(start, **changes)


def write_job(folder: Path, body: str) -> None:
    """Write the user's file, `runfold` being the session's functions."""
    text = "import runfold.workers.session as runfold\n" + textwrap.dedent(body)
    (folder / "job.py").write_text(text, encoding="utf-8")


class Group:
    """Ranks of one attempt and the hub of their collectives, as a runner would hold them."""

    def __init__(self, spawner: Spawner | RankSource, start: Start, world_size: int = 1) -> None:
        self.messages: list[list[FromRank]] = [[] for _ in range(world_size)]
        self.output = ["" for _ in range(world_size)]
        self.handles: list[RankHandle] = []
        self.hold = False
        self._spawner = spawner
        self._start = start
        self._hub = CollectiveHub(world_size, self._deliver)
        self._world_size = world_size

    async def start(self) -> Group:
        """Fork all ranks."""
        for rank in range(self._world_size):
            start = msgspec.structs.replace(
                self._start,
                rank=rank,
                world_size=self._world_size,
                local_rank=rank,
                local_world_size=self._world_size,
            )
            handle = await RankHandle.start(
                self._spawner,
                start,
                on_message=partial(self._take, rank),
                on_output=partial(self._print, rank),
            )
            self.handles.append(handle)
        return self

    def _print(self, rank: int, _stream: str, data: bytes) -> None:
        self.output[rank] += data.decode()

    def _take(self, rank: int, message: FromRank) -> None:
        self.messages[rank].append(message)
        match message:
            case Loaded():
                self._hub.arrive(rank, START)
            case Collect():
                self._hub.arrive(rank, message)
            case Returned():
                self._hub.leave(rank, "has returned")
            case Failed():
                self._hub.leave(rank, "has failed")
            case _:
                pass

    def _deliver(self, rank: int, answer: Collected | Refused) -> None:
        if answer.number != 0:
            self.handles[rank].send(answer)
        elif isinstance(answer, Collected) and not self.hold:
            self.handles[rank].send(Go())

    def reports(self, rank: int = 0) -> list[Report]:
        """What the rank has reported."""
        return [message for message in self.messages[rank] if isinstance(message, Report)]

    async def wait(self) -> list[RankEnd]:
        """Wait for all ranks; a rank that ends without a word leaves the collectives as a runner would have it."""

        async def one(rank: int) -> RankEnd:
            end = await self.handles[rank].wait()
            if end.result is None:
                self._hub.leave(rank, end.exit.describe())
            return end

        async with asyncio.timeout(PATIENCE_S):
            ends = await asyncio.gather(*(one(rank) for rank in range(self._world_size)))
        await self._hub.close()
        return list(ends)

    async def until(self, kind: type[FromRank], rank: int = 0) -> None:
        """Wait until the rank has sent such a message."""
        await until(lambda: any(isinstance(message, kind) for message in self.messages[rank]))


async def run_one(spawner: Spawner | RankSource, start: Start) -> tuple[RankEnd, Group]:
    """Run a single rank to its end."""
    group = await Group(spawner, start).start()
    (end,) = await group.wait()
    return end, group


def alive(pid: int, started: float | None) -> bool:
    """Whether this very process still runs (a zombie does not)."""
    try:
        return processes.start_time(pid) == started and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def until_gone(pid: int, started: float | None) -> None:
    """Wait until this very process has ended."""
    await until(lambda: not alive(pid, started))
