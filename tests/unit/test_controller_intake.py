"""Jobs become runs, each once; what cannot is refused; redelivery is safe at every step."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence

import msgspec
import pytest

from runfold.controller.decide import decide
from runfold.controller.decision import Decision
from runfold.controller.intake import read_wanted, warnings_of
from runfold.events.entry import AnyInput
from runfold.events.job import decode_job, encode_job
from runfold.events.refusal import JobRefused
from runfold.events.state import AnyState
from runfold.events.strict import Refused
from support.hosting import Group, hosting, job, status, taken
from support.memory_ports import MemoryWorld
from support.virtual import run_virtual
from support.waiting import until


def run(story: Coroutine[None, None, None]) -> None:
    run_virtual(story)


def refusal(world: MemoryWorld, sequence: int) -> JobRefused:
    return msgspec.json.decode(world.jobs.refusals[sequence], type=JobRefused)


def test_a_refused_job_is_recorded_then_terminated() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            bad = world.jobs.publish(
                b'{"id": "mine", "entrypoint": "a:b", "colour": "\x1b[31m"}'.replace(b"\x1b", b"?")
            )
            await until(lambda: world.jobs.termed == [bad])
        record = refusal(world, bad)
        assert (record.run, record.path, record.sequence) == ("mine", "$.colour", bad)
        assert not world.owners.values

    run(story())


def test_a_refusal_that_cannot_be_kept_is_terminated_all_the_same() -> None:
    async def story() -> None:
        world = MemoryWorld()
        world.jobs.refusals_full = True
        async with hosting(world):
            bad = world.jobs.publish(b"{")
            await until(lambda: world.jobs.termed == [bad])
            await taken(world, job())

    run(story())


def test_a_job_that_comes_again_is_acknowledged_again_and_begins_nothing() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            sequence = world.jobs.publish(encode_job(job()), ack_lost=True)
            one = world.of("digits-1")
            await until(lambda: one.status.data is not None)
            assert world.jobs.acked == []
            world.jobs.publish(encode_job(job()), again=sequence)
            await until(lambda: world.jobs.acked == [sequence])
            assert len(one.log.entries) == 1

    run(story())


def test_a_job_that_comes_again_after_its_run_is_over_is_the_same_run() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            await group.finishes()
            await until(lambda: not world.owners.values)
            count = len(one.log.entries)
            again = world.jobs.publish(encode_job(job()))
            other = world.jobs.publish(encode_job(job(workers=3)))
            await until(lambda: world.jobs.answered == [1, again, other])
            assert world.jobs.termed == [other]
            assert "exists already" in refusal(world, other).reason
            assert len(one.log.entries) == count
            assert not world.owners.values
            assert status(one).terminal

    run(story())


def test_a_run_held_by_another_controller_is_left_in_the_queue() -> None:
    async def story() -> None:
        world = MemoryWorld()
        world.owners.values["digits-1"] = "ctl-9"
        async with hosting(world):
            world.jobs.publish(encode_job(job()))
            await taken(world, job("digits-2"))
            assert world.jobs.answered == [2]
            assert world.of("digits-1").log.log.messages == []

    run(story())


def test_a_run_claimed_by_a_former_life_is_begun_at_once() -> None:
    """The OWNERS key stands, entry 0 does not: take-over finds nothing, while the job is there again."""

    async def story() -> None:
        world = MemoryWorld()
        world.owners.values["digits-1"] = "ctl-0"
        world.jobs.publish(encode_job(job()))
        async with hosting(world):
            await until(lambda: world.jobs.acked == [1])
            assert len(world.of("digits-1").log.entries) == 1

    run(story())


def test_a_job_that_trips_a_bug_is_refused_and_the_next_one_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: bytes) -> object:
        if b"boom" in data:
            raise RuntimeError("a bug\nforged")
        return decode_job(data)

    monkeypatch.setattr("runfold.controller.intake.decode_job", broken)

    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            bad = world.jobs.publish(b"boom")
            await taken(world, job())
            assert world.jobs.termed == [bad]
            assert "an error in the controller: RuntimeError" in refusal(world, bad).reason

    run(story())


def test_a_run_that_cannot_be_begun_is_refused_and_its_id_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    once = [RuntimeError("a bug")]

    def broken(state: AnyState, inputs: Sequence[AnyInput], t: float) -> Decision:
        if once:
            raise once.pop()
        return decide(state, inputs, t)

    monkeypatch.setattr("runfold.controller.compose.decide", broken)

    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            first = world.jobs.publish(encode_job(job()))
            await until(lambda: world.jobs.termed == [first])
            assert "could not be begun" in refusal(world, first).reason
            assert not world.owners.values
            one = await taken(world, job())
            assert status(one).state == "scheduling"

    run(story())


def test_the_broker_may_be_away_at_every_step() -> None:
    async def story() -> None:
        world = MemoryWorld()
        world.owners.away = 3
        async with hosting(world):
            world.owners.away = 5
            one = world.of("digits-1")
            one.log.plan = {0: "mute", 1: "deaf", 2: "full"}
            one.status.away = one.assignment.away = 4
            await taken(world, job())
            assert len(one.log.entries) == 1

    run(story())


def test_a_job_is_not_acknowledged_before_its_entry_stands() -> None:
    async def story() -> None:
        world = MemoryWorld()
        one = world.of("digits-1")
        one.log.plan = dict.fromkeys(range(10), "full")
        async with hosting(world):
            world.jobs.publish(encode_job(job()))
            await until(lambda: len(one.log.tried) >= 10)
            assert world.jobs.acked == []
            await until(lambda: world.jobs.acked == [1])
            assert len(one.log.entries) == 1

    run(story())


def test_a_raw_job_is_named_by_its_sequence() -> None:
    wanted = read_wanted(b'{"entrypoint": "pack.mod:train_it"}', 41)
    assert (wanted.run, wanted.job.id, wanted.job.name) == ("job-41", "job-41", "train_it")


def test_what_is_no_job_is_refused() -> None:
    with pytest.raises(Refused, match="not JSON"):
        read_wanted(b"\xff", 1)


def test_variables_of_the_peer_are_named_with_their_place() -> None:
    asked = msgspec.structs.replace(job(), env={"RAY_TRAIN_A": "1", "PATH": "/bin"})
    warnings = warnings_of(asked, ("RAY_TRAIN_B",))
    assert [warning.split(":")[0] for warning in warnings] == [
        "RAY_TRAIN_A is set in the job's env",
        "RAY_TRAIN_B is set in the service's environment",
    ]


def test_many_runs_at_once_are_all_served() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            groups = [Group(await taken(world, job(f"run-{k}"))) for k in range(20)]
            await asyncio.gather(*[group.trains() for group in groups])
            for group in groups:
                group.reports(50)
            await asyncio.gather(*[group.finishes() for group in groups])
            await until(lambda: not world.owners.values)
        assert all(status(group.run).state == "finished" for group in groups)

    run(story())
