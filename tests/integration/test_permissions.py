"""Each right and each refusal of the broker's users, asked of the real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runfold.events.nats.connection import Connection, connect
from runfold.events.nats.errors import BrokerUnreachable
from runfold.events.nats.names import Role
from support.broker import ANSWER_TIMEOUT_S

if TYPE_CHECKING:
    from support.broker import BrokerForTest

CONTROLLER, WORKER, CLIENT = Role.CONTROLLER, Role.WORKER, Role.CLIENT

# What is said, and by whom it may be said. Admin may say everything.
PUBLISH: dict[str, set[Role]] = {
    "runfold.jobs.submit": {CLIENT},
    "runfold.jobs.refused.7": {CONTROLLER},
    "runfold.run.r.request.abort": {CLIENT},
    "runfold.run.r.request.join": {WORKER},
    "runfold.run.r.fact.1.node-a": {WORKER},
    "runfold.run.r.beat.1.node-a": {WORKER},
    "runfold.run.r.out.1.0": {WORKER},
    "runfold.pool.local.beat": {WORKER},
    "runfold.run.r.folded": {CONTROLLER},
    "runfold.run.r.log.1": {CONTROLLER},
    "runfold.run.r.assignment": {CONTROLLER},
    "$KV.RUNFOLD_STATUS.r": {CONTROLLER},
    "$KV.RUNFOLD_LEASES.ctl": {CONTROLLER},
    "$KV.RUNFOLD_OWNERS.r": {CONTROLLER},
    "$KV.RUNFOLD_SNAPSHOTS.r.1": {CONTROLLER},
    "$O.RUNFOLD_BLOBS.C.x": {WORKER, CLIENT},
    "$O.RUNFOLD_BLOBS.M.x": {WORKER, CLIENT},
    "runfold.elsewhere": set(),
    "elsewhere": set(),
    "_INBOX_controller.x": set(),
    "_INBOX_worker.x": set(),
    # The API. An empty body is answered with an error where the right is there, and changes nothing.
    "$JS.API.STREAM.CREATE.KV_RUNFOLD_LEASES": {CONTROLLER},
    "$JS.API.STREAM.CREATE.RUNFOLD_LOG": set(),
    "$JS.API.STREAM.UPDATE.RUNFOLD_LOG": set(),
    "$JS.API.STREAM.UPDATE.KV_RUNFOLD_LEASES": set(),
    "$JS.API.STREAM.DELETE.RUNFOLD_LOG": set(),
    "$JS.API.STREAM.DELETE.KV_RUNFOLD_LEASES": set(),
    "$JS.API.STREAM.PURGE.RUNFOLD_LOG": set(),
    "$JS.API.STREAM.PURGE.RUNFOLD_JOBS": set(),
    "$JS.API.STREAM.PURGE.KV_RUNFOLD_LEASES": {CONTROLLER},
    "$JS.API.STREAM.PURGE.KV_RUNFOLD_OWNERS": set(),
    "$JS.API.STREAM.MSG.DELETE.RUNFOLD_LOG": set(),
    "$JS.API.STREAM.MSG.DELETE.RUNFOLD_INBOX": set(),
    "$JS.API.STREAM.SNAPSHOT.RUNFOLD_LOG": set(),
    "$JS.API.STREAM.RESTORE.RUNFOLD_LOG": set(),
    "$JS.API.CONSUMER.MSG.NEXT.RUNFOLD_JOBS.controllers": {CONTROLLER},
    "$JS.API.CONSUMER.CREATE.RUNFOLD_JOBS.mine": set(),
    "$JS.API.CONSUMER.DELETE.RUNFOLD_JOBS.controllers": set(),
    "$JS.ACK.RUNFOLD_JOBS.controllers.1.1.1.1.0": {CONTROLLER},
    "$JS.API.STREAM.INFO.RUNFOLD_LOG": {CONTROLLER, CLIENT},
    "$JS.API.STREAM.MSG.GET.RUNFOLD_LOG": {CONTROLLER, CLIENT},
    "$JS.API.CONSUMER.CREATE.RUNFOLD_LOG.x": {CONTROLLER, CLIENT},
    "$JS.API.CONSUMER.CREATE.RUNFOLD_INBOX.x": {CONTROLLER, CLIENT},
    "$JS.API.CONSUMER.CREATE.RUNFOLD_ASSIGNMENTS.x": {CONTROLLER, WORKER, CLIENT},
    "$JS.API.STREAM.MSG.GET.KV_RUNFOLD_STATUS": {CONTROLLER, WORKER, CLIENT},
    "$JS.API.STREAM.MSG.GET.OBJ_RUNFOLD_BLOBS": {CONTROLLER, WORKER, CLIENT},
    "$JS.API.DIRECT.GET.RUNFOLD_OUTPUT": {CLIENT},
}
PURGE = "$JS.API.STREAM.PURGE.RUNFOLD_INBOX"

SUBSCRIBE: dict[str, set[Role]] = {
    "runfold.run.*.beat.>": {CONTROLLER, CLIENT},
    "runfold.pool.*.beat": {CONTROLLER, CLIENT},
    "runfold.run.*.folded": {WORKER, CLIENT},
    "runfold.>": {CLIENT},
    "runfold.run.r.fact.>": {CLIENT},
    "_INBOX.>": {CLIENT},
    "_INBOX_controller.>": {CONTROLLER},
    "_INBOX_worker.>": {WORKER},
    "_INBOX_admin.>": set(),
    "$KV.>": set(),
    "$JS.>": set(),
    ">": set(),
}


async def refused_publish(connection: Connection, subject: str) -> bool:
    """Say something; the server tells of a missing right before it answers the PING that follows."""
    connection.last_error = None
    await connection.publish(subject, b"")
    await connection.ready(ANSWER_TIMEOUT_S)
    return "permissions violation for publish" in str(connection.last_error).lower()


async def refused_subscribe(connection: Connection, subject: str) -> bool:
    """Listen to something, in the same way."""
    connection.last_error = None

    async def ignore(_: object) -> None:
        pass

    subscription = await connection.subscribe(subject, ignore)
    await connection.ready(ANSWER_TIMEOUT_S)
    await connection.unsubscribe(subscription)
    return "permissions violation for subscription" in str(connection.last_error).lower()


@pytest.mark.parametrize("role", [CONTROLLER, WORKER, CLIENT])
async def test_what_each_user_may_say(broker: BrokerForTest, role: Role) -> None:
    connection = await broker.connect(role)
    refused = {subject for subject in PUBLISH if await refused_publish(connection, subject)}
    assert refused == {subject for subject, allowed in PUBLISH.items() if role not in allowed}


@pytest.mark.parametrize("role", [CONTROLLER, WORKER, CLIENT])
async def test_what_each_user_may_hear(broker: BrokerForTest, role: Role) -> None:
    connection = await broker.connect(role)
    refused = {subject for subject in SUBSCRIBE if await refused_subscribe(connection, subject)}
    assert refused == {subject for subject, allowed in SUBSCRIBE.items() if role not in allowed}


async def test_admin_may_say_and_hear_everything(broker: BrokerForTest) -> None:
    admin = await broker.connect(Role.ADMIN)
    assert not await refused_publish(admin, "anything")
    assert not await refused_subscribe(admin, ">")


async def test_only_a_controller_purges_the_inbox(broker: BrokerForTest) -> None:
    assert not await refused_publish(await broker.connect(CONTROLLER), PURGE)
    assert await refused_publish(await broker.connect(WORKER), PURGE)
    assert await refused_publish(await broker.connect(CLIENT), PURGE)


async def test_without_credentials_nothing_is_possible(broker: BrokerForTest) -> None:
    with pytest.raises(BrokerUnreachable, match="refuses the credentials"):
        await connect(broker.running.server, role=Role.CLIENT, name="rank", connect_timeout_s=ANSWER_TIMEOUT_S)
