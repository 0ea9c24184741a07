"""Last values on a real broker: compare and set, deletion, expiry, following."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runfold.events.nats.cells import (
    Cell,
    Clash,
    Written,
    assignment_cells,
    lease_cells,
    owner_cells,
    status_cells,
)
from runfold.events.nats.errors import ApiRefused
from runfold.events.nats.names import Role
from support.broker import ANSWER_TIMEOUT_S
from support.waiting import until

if TYPE_CHECKING:
    from support.broker import BrokerForTest

LONG_S = 600
"""Longer than any test lasts."""


async def test_an_owner_is_set_once(broker: BrokerForTest) -> None:
    owners = owner_cells(await broker.connect(Role.CONTROLLER))
    first = await owners.put("r", b"ctl-a", expected=0)
    assert isinstance(first, Written)
    assert isinstance(await owners.put("r", b"ctl-b", expected=0), Clash)
    cell = await owners.get("r")
    assert cell is not None
    assert (cell.data, cell.sequence) == (b"ctl-a", first.sequence)
    second = await owners.put("r", b"ctl-b", expected=first.sequence)
    assert isinstance(second, Written)
    assert isinstance(await owners.delete("r", expected=first.sequence), Clash)
    assert isinstance(await owners.delete("r", expected=second.sequence), Written)
    gone = await owners.get("r")
    assert gone is not None
    assert gone.data is None
    assert isinstance(await owners.put("r", b"ctl-c", expected=gone.sequence), Written)
    assert await owners.get("nobody") is None


async def test_all_values_are_read(broker: BrokerForTest) -> None:
    owners = owner_cells(await broker.connect(Role.CONTROLLER))
    assert await owners.read_all() == {}
    for number in range(20):
        await owners.put(f"run-{number}", b"ctl-a", expected=0)
    await owners.put("storage.abc", b"run-1", expected=0)
    found = await owners.read_all()
    assert len(found) == 20  # keys of several parts are read by their own filter
    assert found["run-7"].data == b"ctl-a"


async def test_a_lease_expires_by_itself(broker: BrokerForTest) -> None:
    leases = lease_cells(await broker.connect(Role.CONTROLLER))
    first = await leases.put("ctl-a", b"", expected=0, ttl_s=LONG_S)
    assert isinstance(first, Written)
    renewed = await leases.put("ctl-a", b"", expected=first.sequence, ttl_s=LONG_S)
    assert isinstance(renewed, Written)
    assert isinstance(await leases.put("ctl-a", b"", expected=first.sequence, ttl_s=1), Clash)
    assert isinstance(await leases.put("ctl-a", b"", expected=renewed.sequence, ttl_s=1), Written)

    async def expired() -> bool:
        return await leases.get("ctl-a") is None

    await until(expired)
    assert isinstance(await leases.put("ctl-a", b"", expected=0, ttl_s=1), Written)


async def test_an_old_assignment_never_becomes_the_current_one(broker: BrokerForTest) -> None:
    assignments = assignment_cells(await broker.connect(Role.CONTROLLER))
    first = await assignments.put("r", b"n=0", expected=0)
    assert isinstance(first, Written)
    assert isinstance(await assignments.put("r", b"n=1", expected=first.sequence), Written)
    assert isinstance(await assignments.put("r", b"woken late", expected=first.sequence), Clash)
    cell = await assignments.get("r")
    assert cell is not None
    assert cell.data == b"n=1"


async def test_followers_see_the_last_value_of_each_then_every_change(broker: BrokerForTest) -> None:
    writer = assignment_cells(await broker.connect(Role.CONTROLLER))
    reader = assignment_cells(await broker.connect(Role.WORKER))
    sequences = dict.fromkeys(("a", "b"), 0)
    for run in ("a", "b", "a"):
        outcome = await writer.put(run, f"{run}{sequences[run]}".encode(), expected=sequences[run])
        assert isinstance(outcome, Written)
        sequences[run] = outcome.sequence
    seen: list[tuple[str, bytes | None]] = []
    one: list[Cell] = []
    followers = [
        reader.follow(lambda cell: seen.append((cell.key, cell.data))),
        reader.follow(one.append, key="b"),
    ]
    for follower in followers:
        assert await follower.wait_caught_up(ANSWER_TIMEOUT_S)
    assert sorted(seen) == [("a", b"a1"), ("b", b"b0")]
    await writer.put("b", b"new", expected=sequences["b"])
    await until(lambda: len(seen) == 3 and len(one) == 2)
    assert seen[-1] == ("b", b"new")
    assert [cell.data for cell in one] == [b"b0", b"new"]
    for follower in followers:
        await follower.close()


async def test_no_right_to_write_and_too_large_are_errors(broker: BrokerForTest) -> None:
    statuses = status_cells(await broker.connect(Role.CONTROLLER))
    with pytest.raises(ApiRefused, match="message size exceeds"):
        await statuses.put("r", b"x" * 900_000, expected=0)
