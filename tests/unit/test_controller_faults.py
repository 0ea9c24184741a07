"""The n-th call to the broker goes wrong, for every n, once and for ever: the run ends as it should, its log is clean.

A call is an append, a publish, a read or write of a key, a read of the log, a pull or an acknowledgement of a job. It
does not arrive (`mute`), or it is done and the answer is lost (`deaf`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from runfold.events.facts import Released
from runfold.events.fold import fold_all
from runfold.events.job import encode_job
from runfold.events.limits import JOBS_ACK_WAIT_S
from runfold.events.transitions import AttemptStarted, RunAccepted
from runfold.replay.audit import audit
from runfold.replay.source import read_log
from runfold.replay.verify import verify
from support.hosting import Group, Hosted, assignment, chained, heads_acknowledged, hosting, job, status
from support.memory_ports import MemoryRun, MemoryWorld
from support.virtual import run_virtual
from support.waiting import until
from support.wire import Fault, Wire

STRIDE = 4
"""Each test looks at every fourth call, so that they share the work."""

Story = Callable[[int], Awaitable[bool]]


async def lives(one: MemoryRun) -> None:
    """Train, fail once, train again, end."""
    group = Group(one)
    await until(lambda: one.assignment.data is not None)
    await group.trains()
    group.reports(2)
    group.fails()
    await group.starts(2)
    group.reports(3, attempt=2)
    await group.finishes(2)


async def ended_well(world: MemoryWorld, one: MemoryRun, sequence: int) -> None:
    """Everything happened, once, and nothing was shown before it stood."""
    await until(lambda: not world.owners.values)
    await until(lambda: world.jobs.answered == [sequence])
    heads_acknowledged(one.happened)
    history = await read_log(one.log.log, "digits-1")
    report = audit(history)
    assert report.clean, report.findings
    assert verify(history).outcome == "agrees"
    transitions = [item for entry in chained(one) for item in entry.transitions]
    assert len([item for item in transitions if isinstance(item, RunAccepted)]) == 1
    assert len([item for item in transitions if isinstance(item, AttemptStarted)]) == 2
    state = fold_all(one.log.entries)
    assert (state.reports, state.budgets["worker"].spent) == (5, 1)
    assert not [item for entry in one.log.entries for item in entry.inputs if isinstance(item, Released)][1:]
    assert (assignment(one).want, status(one).state) == ("gone", "finished")


def for_every_call(story: Callable[[int], Awaitable[bool]], first: int, least: int) -> None:
    """Tell a story for each call, until one in which nothing went wrong."""

    async def told(call: int) -> bool:
        return await story(call)

    call = first
    while run_virtual(told(call)):
        call += STRIDE
    assert call >= least


@pytest.mark.parametrize("first", range(STRIDE))
@pytest.mark.parametrize("kind", ["mute", "deaf"])
def test_once_in_the_life_of_a_run(kind: Fault, first: int) -> None:
    async def story(call: int) -> bool:
        world = MemoryWorld()
        world.jobs.ack_wait_s = JOBS_ACK_WAIT_S
        one = world.of("digits-1")
        wire = Wire(world)
        wire.fault = lambda number, _: kind if number == call else None
        async with hosting(wire):
            sequence = world.jobs.publish(encode_job(job()))
            await lives(one)
            await ended_well(world, one, sequence)
        return len(wire.calls) > call

    for_every_call(story, first, 40)


@pytest.mark.parametrize("first", range(STRIDE))
@pytest.mark.parametrize("kind", ["mute", "deaf"])
def test_once_while_a_run_is_taken_over(kind: Fault, first: int) -> None:
    async def story(call: int) -> bool:
        world = MemoryWorld()
        one = world.of("digits-1")
        async with hosting(world, "ctl-0") as former:
            sequence = world.jobs.publish(encode_job(job()))
            life = asyncio.create_task(lives(one))
            await until(lambda: one.status.data is not None and status(one).state == "running")
            await former.die()
        wire = Wire(world)
        wire.fault = lambda number, _: kind if number == call else None
        async with hosting(wire, "ctl-1"):
            await life
            await ended_well(world, one, sequence)
        return len(wire.calls) > call

    for_every_call(story, first, 40)


@pytest.mark.parametrize("first", range(STRIDE))
@pytest.mark.parametrize("kind", ["mute", "deaf"])
def test_for_ever(kind: Fault, first: int) -> None:
    """From the n-th call on nothing goes through; another controller is there, and has the run to its end.

    One that is deaf goes on giving signs of life: it is killed.
    """

    async def story(call: int) -> bool:
        world = MemoryWorld()
        world.jobs.ack_wait_s = JOBS_ACK_WAIT_S
        one = world.of("digits-1")
        wire = Wire(world)
        wire.fault = lambda number, _: kind if number >= call else None
        cut_off = Hosted(wire, "ctl-0")
        sequence = world.jobs.publish(encode_job(job()))
        life = asyncio.create_task(lives(one))
        await until(lambda: len(wire.calls) > call or life.done())
        fine = life.done()
        if kind == "deaf" and not fine:
            await cut_off.die()
        async with hosting(world, "ctl-1"):
            await life
            await ended_well(world, one, sequence)
            if not cut_off.task.done():
                await cut_off.stop()
        return not fine

    for_every_call(story, first, 40)
