"""Leases on a real broker: held by one, gone by themselves, handed over, made anew when the broker forgot them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runfold.events import limits
from runfold.events.nats import leases
from runfold.events.nats.connection import PENDING_NONE
from runfold.events.nats.errors import BrokerError
from runfold.events.nats.leases import Lease
from runfold.events.nats.names import Role
from support.broker import ANSWER_TIMEOUT_S
from support.waiting import until

if TYPE_CHECKING:
    from support.broker import BrokerForTest


LONG_S = 600
"""Longer than any test lasts."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers have as long as they take: a lease is as short as it is for another reason."""
    monkeypatch.setattr(limits, "LEASE_TTL_S", ANSWER_TIMEOUT_S)


@pytest.fixture
def long(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease outlives the test: nothing of it is about how it lapses."""
    monkeypatch.setattr(leases, "TTL_S", LONG_S)


async def lease(broker: BrokerForTest, holder: str = "ctl-0", boot: str = "b1") -> Lease:
    return Lease(await broker.connect(Role.CONTROLLER, pending_max_bytes=PENDING_NONE), holder, boot)


@pytest.mark.usefixtures("patient")
async def test_a_lease_that_is_renewed_stays_and_one_that_is_not_goes(broker: BrokerForTest) -> None:
    one, other = await lease(broker), await lease(broker, "ctl-1")
    assert await one.renew() == "gained"
    assert await other.renew() == "gained"

    async def both() -> bool:
        for each in (one, other):
            assert await each.renew() in ("kept", "gained")
        return await one.living() == {"ctl-0", "ctl-1"}

    await until(both)

    async def alone() -> bool:
        assert await one.renew() in ("kept", "gained")  # a machine that stands still for a second loses it, too
        return await one.living() == {"ctl-0"}

    await until(alone)
    assert await other.renew() == "gained"


@pytest.mark.usefixtures("long")
async def test_a_lease_is_handed_over_at_once(broker: BrokerForTest) -> None:
    one, other = await lease(broker), await lease(broker, "ctl-1")
    await one.renew()
    await other.renew()
    await one.release()
    assert await other.living() == {"ctl-1"}
    await one.release()
    assert await one.renew() == "gained"


@pytest.mark.usefixtures("long")
async def test_the_newest_life_under_a_name_holds_its_lease(broker: BrokerForTest) -> None:
    former, present = await lease(broker, boot="b1"), await lease(broker, boot="b2")
    assert await former.renew() == "gained"
    assert await present.renew() == "gained"
    assert await former.renew() == "taken"
    assert await present.renew() == "kept"
    await former.release()
    assert await present.living() == {"ctl-0"}
    await present.release()
    assert await former.renew() == "gained"


@pytest.mark.usefixtures("long")
async def test_leases_are_made_anew_after_the_broker_forgot_them(broker: BrokerForTest) -> None:
    one = await lease(broker)
    assert await one.renew() == "gained"
    broker.kill()
    with pytest.raises(BrokerError):
        await one.renew()
    broker.restart()

    async def forgotten() -> bool:
        try:
            await one.living()
        except BrokerError as error:
            return "lost its leases" in str(error)  # until then nobody answers
        pytest.fail("it has kept them")

    await until(forgotten)
    assert await one.renew() == "gained"
    assert await one.living() == {"ctl-0"}
