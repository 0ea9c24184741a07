"""The contract of the log (promise 3, one writer), kept by every implementation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from runfold.events.entry import hash_entry
from runfold.events.log import Appended, AppendResult, Damaged, Fenced, Log, LogFull, LogUnavailable
from support.log_rig import Chain, JetStreamRig, LogRig
from support.memory_rig import MemoryRig

if TYPE_CHECKING:
    from support.broker import BrokerForTest

OURS, RIVAL = Chain(by="ctl-a"), Chain(by="ctl-b")


@pytest_asyncio.fixture
async def jetstream(broker: BrokerForTest) -> LogRig:
    """The log on a real broker."""
    return await JetStreamRig.make(broker)


@pytest.fixture(params=["memory", "jetstream"])
def rig(request: pytest.FixtureRequest) -> LogRig:
    """The implementation under test."""
    if request.param == "memory":
        return MemoryRig()
    made: LogRig = request.getfixturevalue("jetstream")
    return made


async def append(log: Log, n: int, entry: tuple[bytes, str], last_sequence: int) -> AppendResult:
    """Append entry `n`, given with its `prev`."""
    data, prev = entry
    return await log.append(data, n=n, digest=hash_entry(data), prev=prev, last_sequence=last_sequence)


async def written(log: Log, entries: list[tuple[bytes, str]]) -> int:
    """Append entries; return the last sequence."""
    sequence = 0
    for n, entry in enumerate(entries):
        outcome = await append(log, n, entry, sequence)
        assert isinstance(outcome, Appended)
        sequence = outcome.sequence
    return sequence


async def stored(log: Log, after: int = 0) -> list[bytes]:
    """Return the bytes of all messages after a sequence."""
    return [message.data async for message in log.read(after)]


async def test_entries_come_back_byte_for_byte_in_order(rig: LogRig) -> None:
    log, entries = rig.log(), OURS.entries(5)
    assert await log.last_sequence() == 0
    assert await stored(log) == []
    last = await written(log, entries)
    assert await rig.log().last_sequence() == last
    assert await stored(rig.log()) == [data for data, _ in entries]
    messages = [message async for message in log.read()]
    assert [message.sequence for message in messages] == sorted({message.sequence for message in messages})
    assert messages[-1].sequence == last
    assert all(message.stored_at_s > 0 for message in messages)
    assert await stored(log, messages[2].sequence) == [data for data, _ in entries[3:]]


async def test_long_logs_are_read_whole(rig: LogRig) -> None:
    for number in range(600):
        await rig.stray(b"%d" % number)
    assert await stored(rig.log()) == [b"%d" % number for number in range(600)]


async def test_runs_have_their_own_logs(rig: LogRig) -> None:
    await written(rig.log("r"), Chain("r").entries(3))
    await written(rig.log("s"), Chain("s").entries(2))
    assert len(await stored(rig.log("r"))) == 3
    assert len(await stored(rig.log("s"))) == 2
    assert await stored(rig.log("nobody")) == []


async def test_an_append_whose_answer_was_lost_is_found_again(rig: LogRig) -> None:
    log, entries = rig.deaf(), OURS.entries(2)
    with pytest.raises(LogUnavailable):
        await append(log, 0, entries[0], 0)
    outcome = await append(log, 0, entries[0], 0)
    assert isinstance(outcome, Appended)
    assert outcome.sequence == await log.last_sequence()
    assert isinstance(await append(log, 1, entries[1], outcome.sequence), Appended)
    assert await stored(log) == [data for data, _ in entries]


async def test_an_append_that_never_arrived_is_made_again(rig: LogRig) -> None:
    log, entries = rig.mute(), OURS.entries(1)
    with pytest.raises(LogUnavailable):
        await append(log, 0, entries[0], 0)
    assert isinstance(await append(log, 0, entries[0], 0), Appended)
    assert await stored(log) == [entries[0][0]]


async def test_a_rivals_entry_in_our_place_fences_us(rig: LogRig) -> None:
    (first, second) = OURS.entries(2)
    last = await written(rig.log(), [first])
    rival = RIVAL.entry(1, second[1])
    there = await rig.log().append(rival, n=1, digest=hash_entry(rival), prev=second[1], last_sequence=last)
    assert isinstance(there, Appended)
    log = rig.log()
    assert await append(log, 1, second, last) == Fenced(sequence=there.sequence, hash=hash_entry(rival))
    assert await append(log, 1, second, last) == Fenced(sequence=there.sequence, hash=hash_entry(rival))
    assert await stored(log) == [first[0], rival]


async def test_of_two_racing_writers_one_is_fenced(rig: LogRig) -> None:
    ours, theirs = OURS.entries(1)[0], RIVAL.entries(1)[0]
    outcomes = await asyncio.gather(append(rig.log(), 0, ours, 0), append(rig.log(), 0, theirs, 0))
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Appended", "Fenced"]
    assert len(await stored(rig.log())) == 1


@pytest.mark.parametrize(
    "stray",
    [
        b"",
        b"hello",
        b"\xff\xfe",
        b"[]",
        b'{"n": 1}',
        b'{"run": "r", "n": 1, "prev": 7}',
        OURS.entry(1, "0" * 63 + "1"),  # the right number, linked to another entry
        OURS.entries(3)[2][0],  # a link, but not the next one
        Chain("other").entry(1, OURS.entries(2)[1][1]),  # the next link of another run
    ],
)
async def test_a_stray_is_stepped_over_and_kept(rig: LogRig, stray: bytes) -> None:
    entries = OURS.entries(3)
    last = await written(rig.log(), entries[:1])
    await rig.stray(stray)
    log = rig.log()
    outcome = await append(log, 1, entries[1], last)
    assert isinstance(outcome, Appended)
    assert isinstance(await append(log, 2, entries[2], outcome.sequence), Appended)
    assert await stored(log) == [entries[0][0], stray, entries[1][0], entries[2][0]]


async def test_strays_before_the_first_entry(rig: LogRig) -> None:
    entries = OURS.entries(1)
    for number in range(3):
        await rig.stray(b"stray %d" % number)
    outcome = await append(rig.log(), 0, entries[0], 0)
    assert isinstance(outcome, Appended)
    assert outcome.sequence == await rig.log().last_sequence()


async def test_behind_a_stray_the_first_valid_link_decides(rig: LogRig) -> None:
    (first, second) = OURS.entries(2)
    last = await written(rig.log(), [first])
    await rig.stray(b"stray")
    rival = RIVAL.entry(1, second[1])
    sequence = await rig.stray(rival)
    assert await append(rig.log(), 1, second, last) == Fenced(sequence=sequence, hash=hash_entry(rival))


async def test_a_stray_behind_a_lost_answer_does_not_hide_our_entry(rig: LogRig) -> None:
    log, entries = rig.deaf(), OURS.entries(1)
    with pytest.raises(LogUnavailable):
        await append(log, 0, entries[0], 0)
    at = await log.last_sequence()
    await rig.stray(b"stray")
    assert await append(log, 0, entries[0], 0) == Appended(sequence=at)
    assert await stored(log) == [entries[0][0], b"stray"]


async def test_an_entry_lost_on_the_way_is_appended_behind_a_stray_that_took_its_place(rig: LogRig) -> None:
    log, entries = rig.mute(), OURS.entries(1)
    with pytest.raises(LogUnavailable):
        await append(log, 0, entries[0], 0)
    await rig.stray(b"stray")
    assert isinstance(await append(log, 0, entries[0], 0), Appended)
    assert await stored(log) == [b"stray", entries[0][0]]


async def test_a_log_shorter_than_acknowledged_is_damage_and_no_rival(rig: LogRig) -> None:
    entries = OURS.entries(6)
    last = await written(rig.log(), entries[:5])
    await rig.cut(keep=3)
    found = await rig.log().last_sequence()
    assert found < last
    assert await append(rig.log(), 5, entries[5], last) == Damaged(expected_sequence=last, found_sequence=found)
    assert len(await stored(rig.log())) == 3


async def test_an_empty_log_where_entries_were_acknowledged_is_damage(rig: LogRig) -> None:
    entries = OURS.entries(2)
    last = await written(rig.log(), entries[:1])
    await rig.cut(keep=0)
    assert await append(rig.log(), 1, entries[1], last) == Damaged(expected_sequence=last, found_sequence=0)


async def test_a_full_log_refuses_and_stores_nothing(rig: LogRig) -> None:
    await rig.fill()
    with pytest.raises(LogFull):
        await append(rig.log(), 0, OURS.entries(1)[0], 0)
    assert await stored(rig.log()) == []
