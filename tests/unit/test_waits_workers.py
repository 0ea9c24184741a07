"""A pool waits so long and no longer: for brokers, ranks, supervisors and fork servers that say nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from runfold.events.nats.blobs import Blobs
from runfold.events.stacks import RankSeen
from runfold.workers import aside, life, lighthouse, limits, lookout, outlet, pipe, places, rank, stacks, ties
from runfold.workers import facts as facts_of
from runfold.workers.aside import Aside
from runfold.workers.errors import LinkError, SpawnError
from runfold.workers.facts import Facts
from runfold.workers.frames import frame
from runfold.workers.life import RankLife
from runfold.workers.lighthouse import Lighthouse
from runfold.workers.link import Returned
from runfold.workers.lookout import Lookout
from runfold.workers.nest import Nest
from runfold.workers.outlet import Outlet
from runfold.workers.output import OutputCut
from runfold.workers.outside import Question
from runfold.workers.pipe import RunnerSpec, SupervisorPipe
from runfold.workers.places import Place, PlaceLock, PlaceTakenError
from runfold.workers.processes import Exit
from runfold.workers.spawner import Child, Spawner
from runfold.workers.ties import Ties
from runfold.workers.warm import Warmth
from runfold.workers.zygote import COMMAND_MAX_BYTES, Ready
from support.silent import NO_MESSAGE, SilentConnection, passed
from support.virtual import run_virtual

SOON_S = 0.02
NO_BLOB = {"STREAM.MSG.GET": NO_MESSAGE}


# --- a broker that does not answer


def test_a_fact_that_is_not_acknowledged_is_to_be_said_again() -> None:
    async def story(c: SilentConnection) -> bool:
        return await Facts(c, run="digits-1", source="node-a", boot="b", flush_s=0.5)._send("fact", b"{}")

    outcome, after_s = passed(story)
    assert outcome is False
    assert after_s == pytest.approx(facts_of.PUBLISH_TIMEOUT_S)


def test_the_last_output_is_given_up_after_its_time(caplog: pytest.LogCaptureFixture) -> None:
    async def story(c: SilentConnection) -> None:
        one = Outlet(c, OutputCut("digits-1", 1, 0, "node-a"))
        one.feed("stdout", b"bye\n")
        one.end()
        await one.drained()

    outcome, after_s = passed(story)
    assert outcome is None
    assert after_s == pytest.approx(outlet.DRAIN_TIMEOUT_S)
    assert caplog.messages == ["the broker did not take a rank's last output within 5 s; it is not kept"]


def test_stacks_that_cannot_be_kept_are_said_to_be_so() -> None:
    seen = RankSeen(rank=0, life=1, doing="busy")
    outcome, after_s = passed(lambda c: Lookout(list, Blobs(c))._kept(seen, "stacks"), NO_BLOB)
    assert isinstance(outcome, RankSeen)
    assert outcome.trouble is not None
    assert "its stacks could not be kept" in outcome.trouble
    assert after_s == pytest.approx(lookout.KEEP_TIMEOUT_S)


def test_a_return_value_that_cannot_be_kept_fails_its_rank() -> None:
    failed: list[tuple[str, ...]] = []

    async def story(c: SilentConnection) -> None:
        one = SimpleNamespace(_blobs=Blobs(c), _fail=lambda *words: failed.append(words))
        returned = Returned(clock_s=0.0, reports=0, value=None, blob=b"pickled")
        await RankLife._return_blob(cast("RankLife", one), returned, b"pickled")

    outcome, after_s = passed(story, NO_BLOB)
    assert outcome is None
    assert after_s == pytest.approx(life.VALUE_PUT_TIMEOUT_S)
    ((kind, name, words),) = failed
    assert (kind, name) == ("user", "ReturnValueNotKept")
    assert "not stored within 30 s" in words


# --- processes that say nothing


def test_a_rank_that_writes_no_stacks_is_looked_at_for_so_long() -> None:
    async def asked() -> bool:
        return True

    async def story() -> tuple[stacks.Look, float]:
        file = stacks.StacksFile()
        with closing(os.fdopen(os.dup(file.fd))):
            seen = await stacks.look(os.getpid(), asked, file)
        return seen, asyncio.get_running_loop().time()

    seen, after_s = run_virtual(story())
    assert seen.trouble == "it wrote no stacks within 2 s"
    assert stacks.LOOK_MAX_S <= after_s <= stacks.LOOK_MAX_S + stacks.SAMPLE_EVERY_S + 0.001


class Endless:
    """A process of which nobody learns that it ended."""

    pid = 4711
    ended: Exit | None = None
    killed = False

    async def wait(self) -> Exit:
        await asyncio.Event().wait()
        raise AssertionError

    async def kill(self, number: int = signal.SIGKILL, *, group: bool = True) -> bool:
        self.killed = True
        return True


async def test_a_process_that_closed_its_link_and_lives_on_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "END_TIMEOUT_S", SOON_S)
    near, far = socket.socketpair()
    process = Endless()
    one = Aside(cast("Child", process), *await asyncio.open_connection(sock=near))
    far.close()
    async with asyncio.timeout(30):
        said = await one.ask(Question(hook="after_report"))
    assert said.error is not None
    assert said.error.message == "its process ended unseen, without an answer"
    assert process.killed


async def test_a_lighthouse_that_does_not_light_up_is_put_out_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lighthouse, "START_TIMEOUT_S", SOON_S)
    process, links = Endless(), list[int]()

    class Forks:
        async def spawn(self, spec: bytes, fds: dict[str, int]) -> Child:
            links.append(os.dup(fds["link"]))
            return cast("Child", process)

    one = Lighthouse(cast("Spawner", Forks()), "127.0.0.1", lambda _: None)
    with pytest.raises(LinkError, match=r"it did not say within 0\.02 s that it listens"):
        async with asyncio.timeout(30):
            await one._shine({})
    assert process.killed
    await one.close()
    os.close(links[0])


async def test_why_a_lighthouse_is_out_is_told_to_ranks_for_as_long_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lighthouse, "AGAIN_AFTER_S", 0.0)
    told, often = list[str](), asyncio.Event()

    class Refuses:
        async def spawn(self, spec: bytes, fds: dict[str, int]) -> Child:
            raise SpawnError("there is no process to be had")

    def say(text: str) -> None:
        told.append(text)
        if len(told) == 3:
            often.set()

    one = Lighthouse(cast("Spawner", Refuses()), "127.0.0.1", say)
    where = one.address
    with caplog.at_level(logging.WARNING):
        keeping = asyncio.ensure_future(one._keep({}))
        async with asyncio.timeout(30):
            await often.wait()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    await one.close()
    trouble = f"the lighthouse at {where} is out, and lit again and again: there is no process to be had"
    assert set(told) == {trouble}
    assert caplog.messages == [trouble], "logged once"


def test_a_rank_whose_runner_says_nothing_ends_in_words(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rank, "LINK_START_TIMEOUT_S", SOON_S)
    monkeypatch.setattr(rank, "show_stacks", lambda _: None)
    runner, mine = socket.socketpair()
    with runner:
        assert rank.main(b"", {"link": mine.detach(), "stacks": -1}) == rank.EXIT_LINK_LOST
    told = "this rank ends, as its runner cannot be reached: it did not say within 0.02 s what is to be run"
    assert told in capfd.readouterr().err


async def test_a_runner_that_is_not_told_who_it_is_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe, "SPEC_TIMEOUT_S", SOON_S)
    near, far = socket.socketpair()
    with far:
        one = await SupervisorPipe.open(near)
        async with asyncio.timeout(30):
            with pytest.raises(LinkError, match="did not say who this runner is"):
                await one.spec()
        one.close()


def test_a_tied_runner_that_lost_its_supervisor_ends_by_itself_after_a_while() -> None:
    async def gone() -> None:
        return None

    async def story() -> tuple[str, float]:
        spec = SimpleNamespace(tied=True, adopt_within_s=0.0)
        silent = SimpleNamespace(receive=gone, close=lambda: None)
        one = Ties(cast("RunnerSpec", spec), cast("SupervisorPipe", silent), None, None)
        await one.listen()
        assert one.stop is not None
        return one.stop.reason, asyncio.get_running_loop().time()

    assert run_virtual(story()) == ("the supervisor is gone", ties.TIED_PATIENCE_S)


def test_a_place_that_stays_held_is_waited_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(run="r", pool="p", node="n", source="n", attempt=1, pid=os.getpid(), started=None, slots=1)
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    lock = PlaceLock.take(tmp_path, place)
    monkeypatch.setattr(places, "time", clock)
    with pytest.raises(PlaceTakenError, match="is at work for r on n; this one ends"):
        PlaceLock.take(tmp_path, place)
    lock.release()
    assert places.LOCK_PATIENCE_S <= sum(slept) < places.LOCK_PATIENCE_S + 0.1


# --- fork servers that do not answer


@contextmanager
def mute_server() -> Iterator[tuple[Spawner, socket.socket, subprocess.Popen[bytes]]]:
    """A fork server that hears nothing, not even that its command socket was closed."""
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen(["sleep", "600"]) as program:
        try:
            yield Spawner(ours, program.pid, program), theirs, program
        finally:
            program.kill()


def test_a_fork_server_that_is_not_ready_is_killed() -> None:
    async def story(one: Spawner) -> float:
        with pytest.raises(SpawnError, match="was not ready within 30 s"):
            await one.start()
        return asyncio.get_running_loop().time()

    with mute_server() as (one, _, program):
        after_s = run_virtual(story(one))
        assert program.wait(30) == -signal.SIGKILL
    lasts_s = limits.SPAWNER_START_TIMEOUT_S + limits.SPAWNER_CLOSE_TIMEOUT_S
    assert lasts_s <= after_s <= lasts_s + 2.1, "to be ready, to close, and to be gone"


def test_a_fork_server_that_does_not_fork_is_said() -> None:
    async def story(one: Spawner) -> float:
        await one.start()
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(SpawnError, match="did not answer within 10 s"):
            await one.spawn(b"", {})
        after_s = asyncio.get_running_loop().time() - began_s
        await one.close()
        return after_s

    with mute_server() as (one, theirs, _):
        theirs.sendall(frame(msgspec.msgpack.encode(Ready()), COMMAND_MAX_BYTES))
        assert run_virtual(story(one)) == pytest.approx(limits.SPAWN_TIMEOUT_S)


def test_a_warm_process_that_never_has_its_imports_is_killed() -> None:
    with mute_server() as (_, __, program):
        commands: list[int] = []

        class Cold:
            async def spawn(self, spec: bytes, fds: dict[str, int]) -> object:
                commands.append(os.dup(fds["command"]))
                return SimpleNamespace(pid=program.pid)

        async def story() -> float:
            warmth = Warmth(modules=[], env={}, working_dir=None, program="")
            nest = Nest(warmth, cast("Spawner", Cold()), waited_for=False)
            with pytest.raises(SpawnError, match="was not ready within 300 s"):
                await nest.starting
            return asyncio.get_running_loop().time()

        after_s = run_virtual(story())
        os.close(commands[0])
    assert after_s >= limits.WARM_START_TIMEOUT_S
