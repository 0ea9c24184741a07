"""The loop of a run, in memory and virtual time: write-ahead, one writer, batching, isolation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

import msgspec
import pytest

from runfold.controller import liveness
from runfold.controller.decide import decide
from runfold.controller.decision import Decision
from runfold.controller.liveness import Conclusions, Heard, Watch
from runfold.events.entry import AnyInput, Head, decode_entry, hash_entry
from runfold.events.facts import Placed, Reported
from runfold.events.fold import fold_all
from runfold.events.job import encode_job
from runfold.events.memory import FaultKind
from runfold.events.state import AnyState, RunState
from support.hosting import Group, assignment, chained, heads_acknowledged, hosting, job, shown, status, taken
from support.memory_ports import MemoryWorld
from support.virtual import run_virtual
from support.waiting import until


def run(story: Coroutine[None, None, None]) -> None:
    run_virtual(story)


def test_a_run_from_its_job_to_its_end() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            group.reports(3)
            await group.finishes()
            final = await shown(one, lambda now: now.terminal)
            assert final.state == "finished"
            await until(lambda: not world.owners.values)
        assert world.jobs.acked == [1]
        assert final.head == Head(n=chained(one)[-1].n, hash=hash_entry(one.log.log.messages[-1]))
        assert one.inbox.purged_up_to == one.inbox.last_sequence
        heads_acknowledged(one.happened)

    run(story())


def test_nothing_is_shown_before_its_entry_is_acknowledged() -> None:
    async def story() -> None:
        world = MemoryWorld()
        one = world.of("digits-1")
        one.log.gate.clear()
        async with hosting(world):
            world.jobs.publish(encode_job(job()))
            await until(lambda: bool(one.log.log.messages))
            await asyncio.sleep(60)
            assert one.happened.told == []
            assert world.jobs.acked == []
            one.log.gate.set()
            await until(lambda: one.assignment.data is not None)
            await until(lambda: world.jobs.acked == [1])
        heads_acknowledged(one.happened)

    run(story())


@pytest.mark.parametrize("fault", ["mute", "deaf", "full"])
def test_an_append_without_an_answer_is_repeated_byte_for_byte(fault: FaultKind) -> None:
    async def story() -> None:
        world = MemoryWorld()
        one = world.of("digits-1")
        one.log.plan = dict.fromkeys(range(5), fault)
        async with hosting(world):
            await taken(world, job())
        assert len(set(one.log.tried[:6])) == 1
        assert len(chained(one)) == 1
        heads_acknowledged(one.happened)

    run(story())


def test_nothing_is_decided_while_an_append_is_open_and_nothing_is_lost() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            tried = len(one.log.tried)
            one.log.plan = dict.fromkeys(range(tried, tried + 20), "mute")
            group.reports(2)
            group.fails()
            await until(lambda: len(one.log.tried) >= tried + 20)
            assert len(set(one.log.tried[tried : tried + 20])) == 1
            await group.starts(2)
            assert status(one).budgets["worker"].spent == 1
        assert fold_all(chained(one)).reports == 2

    run(story())


def test_a_controller_that_is_fenced_drops_the_run_in_the_same_turn() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world) as hosted:
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            entries = chained(one)
            rival = msgspec.structs.replace(
                entries[-1], n=entries[-1].n + 1, prev=hash_entry(one.log.log.messages[-1]), by="ctl-9", inputs=()
            )
            world.store.put("digits-1", msgspec.json.encode(msgspec.structs.replace(rival, transitions=())))
            world.owners.values["digits-1"] = "ctl-9"
            told = len(one.happened.told)
            group.fails()
            await until(lambda: not any(task.get_name() == "run digits-1" for task in asyncio.all_tasks()))
            assert len(one.happened.told) == told
            assert one.log.entries[-1].by == "ctl-9"
            assert world.owners.values == {"digits-1": "ctl-9"}
            other = await taken(world, job("digits-2"))
            assert assignment(other).want == "place"
            assert not hosted.task.done()

    run(story())


def test_a_stray_message_on_the_log_is_stepped_over() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            world.store.put("digits-1", b"stray \x1b[31m")
            await Group(one).trains()
        world.store.put("digits-1", b"{}")
        async with hosting(world):
            await shown(one, lambda now: now.epoch == 2)
        entries = [decode_entry(data) for data in one.log.log.messages if data.startswith(b'{"v"')]
        assert [entry.n for entry in entries] == list(range(len(entries)))

    run(story())


def test_a_log_shorter_than_acknowledged_is_quarantined_and_keeps_its_assignment() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            before = one.assignment.data
            world.store.cut(2)
            group.fails()
            marked = await shown(one, lambda now: now.quarantined is not None)
            assert marked.state == "running"
            assert "the log ends at sequence 2" in (marked.quarantined or "")
            assert one.assignment.data == before
            assert len(one.log.log.messages) == 2
            assert (await taken(world, job("digits-2"))).assignment.data is not None

    run(story())


def test_an_error_in_one_runs_loop_is_shown_and_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(state: AnyState, inputs: Sequence[AnyInput], t: float) -> Decision:
        if any(isinstance(item, Reported) and item.index == 1 for item in inputs):
            raise RuntimeError("a bug\nforged line")
        return decide(state, inputs, t)

    monkeypatch.setattr("runfold.controller.compose.decide", broken)

    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            ill, well = Group(await taken(world, job("ill"))), Group(await taken(world, job("well")))
            await ill.trains()
            await well.trains()
            ill.reports(2)
            marked = await shown(ill.run, lambda now: now.quarantined is not None)
            assert "RuntimeError: a bug\\nforged line" in (marked.quarantined or "")
            assert assignment(ill.run).want == "train"
            well.reports(1)
            await well.finishes()
            assert world.owners.values == {"ill": "ctl-0"}

    run(story())


def test_an_error_in_what_one_run_concludes_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(watch: Watch, state: RunState, heard: Heard, tick_s: float) -> tuple[Watch, Conclusions]:
        if state.run == "ill":
            raise KeyError("a bug")
        return sound(watch, state, heard, tick_s)

    sound = liveness.tick

    async def story() -> None:
        world, ears = MemoryWorld(), {name: StillEar() for name in ("ill", "well")}
        for name, ear in ears.items():
            world.of(name).ear = ear
        async with hosting(world):
            ill, well = Group(await taken(world, job("ill"))), Group(await taken(world, job("well")))
            await ill.trains()
            await well.trains()
            with monkeypatch.context() as patched:
                patched.setattr(liveness, "tick", broken)
                for ear in ears.values():
                    ear.on_tick(Heard(), 0.5)
            marked = await shown(ill.run, lambda now: now.quarantined is not None)
            assert "KeyError: 'a bug'" in (marked.quarantined or "")
            assert assignment(ill.run).want == "train"
            await well.finishes()
            assert world.owners.values == {"ill": "ctl-0"}

    run(story())


def test_a_timer_waits_for_words_that_the_broker_does_not_take() -> None:
    """A disk that is full while a group starts: who is ready cannot say so, which is no failure to start."""

    async def story() -> None:
        world, ear = MemoryWorld(), StillEar()
        world.of("digits-1").ear = ear
        async with hosting(world):
            group = Group(await taken(world, job()))
            await group.pool.join("p1")
            group.pool.say(group.pool.fact(Placed, places=[{"node": "local", "slots": 2}]))
            await shown(group.run, lambda now: "start_timeout_s" in now.timeouts)
            for _ in range(600):
                ear.on_tick(Heard(unsaid_s=30.0), 0.5)
                await asyncio.sleep(0.5)
            assert (status(group.run).state, status(group.run).attempt) == ("scheduling", 1)
            ear.on_tick(Heard(), 10.0)
            await asyncio.sleep(50.0)
            assert status(group.run).attempt == 1, "the time in which nobody could say anything does not count"
            await asyncio.sleep(20.0)
            await shown(group.run, lambda now: now.budgets["startup"].spent == 1)

    run(story())


class StillEar:
    """An ear that hears what the test says."""

    def __init__(self) -> None:
        self.on_tick: Callable[[Heard, float], None] = lambda heard, tick_s: None

    async def open(self, pool: str, on_tick: Callable[[Heard, float], None]) -> None:
        self.on_tick = on_tick

    async def close(self) -> None:
        self.on_tick = lambda heard, tick_s: None


def test_an_assignment_is_published_only_when_it_changed() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            writes = one.assignment.writes_count
            for _ in range(5):
                group.reports(10)
                await asyncio.sleep(2)
            assert one.assignment.writes_count == writes
            assert one.status.writes_count > 5

    run(story())


def test_a_woken_controller_does_not_replace_a_newer_assignment() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            newer = msgspec.structs.replace(assignment(one), epoch=9)
            one.assignment.put(msgspec.json.encode(newer))
            group = Group(one)
            one.inbox.publish("request.join", b'{"id": "p", "source": "pool-local", "boot": "p"}')
            await shown(one, lambda now: now.head.n == 1)
            await asyncio.sleep(5)
            assert assignment(group.run).epoch == 9

    run(story())


def test_a_broker_that_is_away_delays_what_is_shown() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            one.assignment.away, one.status.away = 7, 9
            group = Group(one)
            await group.trains()
            await group.finishes()
            await shown(one, lambda now: now.terminal)
        heads_acknowledged(one.happened)

    run(story())
