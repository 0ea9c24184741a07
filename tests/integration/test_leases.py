"""Leases on a real broker: held by one, gone by themselves, handed over, made anew when the broker forgot them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runfold.events.nats.errors import BrokerError
from runfold.events.nats.leases import Lease
from runfold.events.nats.names import Role
from support.waiting import until

if TYPE_CHECKING:
    from support.broker import BrokerForTest


async def lease(broker: BrokerForTest, holder: str = "ctl-0", boot: str = "b1") -> Lease:
    return Lease(await broker.connect(Role.CONTROLLER), holder, boot)


async def test_a_lease_that_is_renewed_stays_and_one_that_is_not_goes(broker: BrokerForTest) -> None:
    one, other = await lease(broker), await lease(broker, "ctl-1")
    assert await one.renew() == "gained"
    assert await other.renew() == "gained"
    assert await one.living() == {"ctl-0", "ctl-1"}

    async def alone() -> bool:
        assert await one.renew() in ("kept", "gained")  # a machine that stands still for a second loses it, too
        return await one.living() == {"ctl-0"}

    await until(alone)
    assert await other.renew() == "gained"


async def test_a_lease_is_handed_over_at_once(broker: BrokerForTest) -> None:
    one, other = await lease(broker), await lease(broker, "ctl-1")
    await one.renew()
    await other.renew()
    await one.release()
    assert await other.living() == {"ctl-1"}
    await one.release()
    assert await one.renew() == "gained"


async def test_the_newest_life_under_a_name_holds_its_lease(broker: BrokerForTest) -> None:
    former, present = await lease(broker, boot="b1"), await lease(broker, boot="b2")
    assert await former.renew() == "gained"
    assert await present.renew() == "gained"
    assert await former.renew() == "taken"
    assert await present.renew() in ("kept", "gained")
    await former.release()
    assert await present.living() == {"ctl-0"}
    await present.release()
    assert await former.renew() == "gained"


async def test_leases_are_made_anew_after_the_broker_forgot_them(broker: BrokerForTest) -> None:
    one = await lease(broker)
    assert await one.renew() == "gained"
    broker.kill()
    with pytest.raises(BrokerError):
        await one.renew()
    broker.restart()
    found: list[str] = []

    async def again() -> bool:
        try:
            with pytest.raises(BrokerError, match="lost its leases"):
                await one.living()
            found.append(await one.renew())
        except BrokerError:
            return False
        return True

    await until(again)
    assert found == ["gained"]
    assert await one.living() == {"ctl-0"}
