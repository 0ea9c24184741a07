"""Logs that are not as they were acknowledged: nothing is appended, other runs go on, a restored one is taken up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine

import msgspec
import pytest

from runfold.controller.compose import draft
from runfold.events.conclusions import LogCopied
from runfold.events.entry import Head, hash_entry
from runfold.events.facts import Reported
from runfold.events.fold import fold_all
from runfold.events.limits import METRICS_LINGER_S, SNAPSHOT_TAIL_EVERY_COUNT
from runfold.events.log import Stored
from runfold.events.memory import MemoryLog, MemoryStore
from runfold.events.snapshot import TAIL, StateSnapshot, fold_version
from runfold.events.state import RunState
from runfold.events.transitions import ControllerChanged, LogRestored
from support.hosting import Group, assignment, hosting, job, shown, status, taken
from support.memory_ports import MemoryRun, MemoryWorld, WatchedLog
from support.virtual import run_virtual
from support.waiting import until


def run(story: Coroutine[None, None, None]) -> None:
    run_virtual(story)


async def trained(world: MemoryWorld, reports: int = 3) -> tuple[MemoryRun, Group]:
    """A run at work whose controller has died."""
    async with hosting(world) as first:
        one = await taken(world, job())
        group = Group(one)
        await group.trains()
        for k in range(reports):
            report(group, k)
            await shown(one, lambda now, k=k: now.ranks[0].index == k)  # type: ignore[misc]  # bound here
        await first.die()
    return one, group


def snapshot_of(one: MemoryRun, state: RunState, **changes: object) -> StateSnapshot:
    """This state as it is kept after the newest entry of a run's log."""
    head = Head(n=state.n, hash=hash_entry(one.log.log.messages[-1]))
    kept = StateSnapshot(fold=fold_version("0"), run="digits-1", sequence=len(one.log.entries), head=head, state=state)
    return msgspec.structs.replace(kept, **changes)


def report(group: Group, index: int) -> None:
    group.runner.say(group.runner.fact(Reported, rank=0, life=1, index=index, metrics={"index": index}))


def flip(data: bytes) -> bytes:
    """Change one bit of a reason in the middle."""
    place = len(data) // 2
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def changed(data: bytes) -> bytes:
    """Another entry in its place, well formed, with a hash of its own."""
    return data.replace(b'"by":"ctl-0"', b'"by":"ctl-9"')


Damage = Callable[[MemoryRun, MemoryWorld], None]


def cut(one: MemoryRun, world: MemoryWorld) -> None:
    world.store.cut(4)


def flipped(one: MemoryRun, world: MemoryWorld) -> None:
    world.store.rewrite(4, flip(one.log.log.messages[3]))


def rewritten(one: MemoryRun, world: MemoryWorld) -> None:
    world.store.rewrite(4, changed(one.log.log.messages[3]))


def swapped(one: MemoryRun, world: MemoryWorld) -> None:
    third, fourth = one.log.log.messages[2:4]
    world.store.rewrite(3, fourth)
    world.store.rewrite(4, third)


def last_rewritten(one: MemoryRun, world: MemoryWorld) -> None:
    messages = one.log.log.messages
    world.store.rewrite(len(messages), changed(messages[-1]))


@pytest.mark.parametrize("damage", [cut, flipped, rewritten, swapped, last_rewritten])
def test_a_damaged_log_is_quarantined_and_others_go_on(damage: Damage) -> None:
    async def story() -> None:
        world = MemoryWorld()
        one, group = await trained(world)
        damage(one, world)
        before, messages = one.assignment.data, list(one.log.log.messages)
        async with hosting(world):
            marked = await shown(one, lambda now: now.quarantined is not None)
            assert marked.state == "running"
            report(group, 3)
            other = await taken(world, job("digits-2"))
            others = Group(other)
            await others.trains()
            await others.finishes()
        assert one.assignment.data == before
        assert one.log.log.messages == messages
        assert one.inbox.stored  # the facts wait

    run(story())


def test_damage_found_by_an_append_is_quarantined() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            world.store.cut(2)
            report(group, 0)
            marked = await shown(one, lambda now: now.quarantined is not None)
            assert "acknowledged" in (marked.quarantined or "")
            assert len(one.log.log.messages) == 2

    run(story())


def restore(one: MemoryRun, world: MemoryWorld, messages: list[bytes]) -> None:
    """Copy verified entries into the next generation, as the command does."""
    log = MemoryLog("digits-1", MemoryStore())
    log.store.now_s = asyncio.get_running_loop().time()
    for data in messages:
        log.store.put("digits-1", data)
    state = fold_all(WatchedLog(log, one.happened).entries)
    epoch = max(state.epoch, assignment(one).epoch, status(one).epoch) + 1
    copied = LogCopied(generation=one.generation + 1, source="memory://archive", epoch=epoch, by="restore")
    head = Head(n=state.n, hash=hash_entry(messages[-1]))
    written = draft(state, head, (copied,), t=state.t, at="", by="restore", cursor=state.cursor)
    log.store.put("digits-1", written.data)
    one.log = WatchedLog(log, one.happened)
    one.generation += 1


@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_restored_log_is_taken_up_and_what_was_lost_is_folded_again(lost: int, restarted: bool) -> None:
    """The archive may lack the newest entries: the inbox still has what they folded."""

    async def story() -> None:
        world = MemoryWorld()
        one, group = await trained(world)
        whole = list(one.log.log.messages)
        world.store.cut(4)
        async with hosting(world) as second:
            await shown(one, lambda now: now.quarantined is not None)
            if restarted:
                await second.stop()
            restore(one, world, whole[: len(whole) - lost])
            if restarted:
                async with hosting(world):
                    await lifted(one, group)
            else:
                await lifted(one, group)
        state = fold_all(one.log.entries)
        assert (state.terminal, state.reports) == (True, 4)
        assert state.restored is not None
        assert state.restored.generation == 2
        transitions = [item for entry in one.log.entries for item in entry.transitions]
        epochs = [item.epoch for item in transitions if isinstance(item, ControllerChanged | LogRestored)]
        assert epochs == sorted(set(epochs))

    run(story())


async def lifted(one: MemoryRun, group: Group) -> None:
    await shown(one, lambda now: now.quarantined is None and now.ranks[0].index == 2)
    report(group, 3)
    await group.finishes()


def test_a_long_log_is_taken_over_from_its_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = MemoryWorld()
        one = await long_log(world)
        reads: list[int] = []
        original = one.log.read

        def read(after_sequence: int = 0) -> AsyncIterator[Stored]:
            reads.append(after_sequence)
            return original(after_sequence)

        monkeypatch.setattr(one.log, "read", read)
        snapshot = msgspec.json.decode(one.snapshots.kept[TAIL], type=StateSnapshot)
        assert snapshot.head.n == SNAPSHOT_TAIL_EVERY_COUNT
        async with hosting(world):
            now = await shown(one, lambda now: now.epoch == 2)
            assert now.ranks[0].index == SNAPSHOT_TAIL_EVERY_COUNT - 1
            assert len(one.log.entries) > SNAPSHOT_TAIL_EVERY_COUNT
            assert reads[:2] == [snapshot.sequence - 1, snapshot.sequence]
            await until(lambda: 0 in reads)
        assert fold_all(one.log.entries).reports == SNAPSHOT_TAIL_EVERY_COUNT

    run(story())


async def long_log(world: MemoryWorld) -> MemoryRun:
    """A run whose log has grown beyond its first snapshot."""
    async with hosting(world) as first:
        one = await taken(world, job())
        group = Group(one)
        await group.trains()
        for index in range(SNAPSHOT_TAIL_EVERY_COUNT):
            report(group, index)
            await asyncio.sleep(METRICS_LINGER_S + 0.1)
        await first.die()
    return one


@pytest.mark.parametrize("kind", ["unreadable", "other run", "other fold", "other entry"])
def test_a_snapshot_that_is_not_what_it_should_be_is_ignored(kind: str) -> None:
    async def story() -> None:
        world = MemoryWorld()
        one, _ = await trained(world)
        state = fold_all(one.log.entries)
        changes: dict[str, dict[str, object]] = {
            "other fold": {"fold": "0/abc"},
            "other run": {"run": "digits-2"},
            "other entry": {"head": Head(n=state.n, hash="0" * 64)},
        }
        snapshot = snapshot_of(one, with_index(state, 77), **changes.get(kind, {}))
        one.snapshots.kept[TAIL] = b"{" if kind == "unreadable" else msgspec.json.encode(snapshot)
        async with hosting(world):
            now = await shown(one, lambda now: now.epoch == 2)
            assert (now.quarantined, now.ranks[0].index) == (None, 2)

    run(story())


def test_a_snapshot_that_is_what_it_should_be_is_believed() -> None:
    async def story() -> None:
        world = MemoryWorld()
        one, _ = await trained(world)
        state = fold_all(one.log.entries)
        one.snapshots.kept[TAIL] = msgspec.json.encode(snapshot_of(one, with_index(state, 77)))
        async with hosting(world):
            now = await shown(one, lambda now: now.epoch == 2)
            assert (now.quarantined, now.ranks[0].index) == (None, 77)

    run(story())


def with_index(state: RunState, index: int) -> RunState:
    """A state that shows whether it was believed: rank 0 has reported otherwise than its log says."""
    assert state.group is not None
    first, *others = state.group.ranks
    ranks = (msgspec.structs.replace(first, index=index), *others)
    return msgspec.structs.replace(state, group=msgspec.structs.replace(state.group, ranks=ranks))


def test_damage_before_a_snapshot_is_found_while_the_run_goes_on() -> None:
    async def story() -> None:
        world = MemoryWorld()
        one, _ = await trained(world)
        state = fold_all(one.log.entries)
        one.snapshots.kept[TAIL] = msgspec.json.encode(snapshot_of(one, state))
        world.store.rewrite(3, changed(one.log.log.messages[2]))
        async with hosting(world):
            marked = await shown(one, lambda now: now.quarantined is not None)
            assert (marked.epoch, marked.quarantined) == (
                2,
                f"the chain breaks off at entry 3, before entry {state.n}, up to which it was folded once",
            )

    run(story())
