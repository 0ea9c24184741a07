"""An inbox that holds more than a controller should hold: read piece by piece, in order, nothing twice."""

from __future__ import annotations

import asyncio

from runfold.controller.wiring import AHEAD_MAX_BYTES, BrokerPorts
from runfold.events.nats.names import Role
from runfold.events.nats.publish import publish_acked
from support.broker import ANSWER_TIMEOUT_S, BrokerForTest
from support.waiting import until

SIZE_BYTES = 64 * 1024
COUNT = 4 * AHEAD_MAX_BYTES // SIZE_BYTES


async def test_a_long_inbox_is_taken_piece_by_piece(broker: BrokerForTest) -> None:
    worker = await broker.connect(Role.WORKER)
    subject = broker.names.subjects.fact("digits-1", 1, "local")
    for first in range(0, COUNT, 16):
        await asyncio.gather(
            *(
                publish_acked(worker, subject, f"{k:08d}".encode() * (SIZE_BYTES // 8), timeout_s=ANSWER_TIMEOUT_S)
                for k in range(first, first + 16)
            )
        )
    connections = [await broker.connect(Role.CONTROLLER) for _ in range(4)]
    inbox = BrokerPorts(*connections).run("digits-1").inbox
    arrived = 0

    def count() -> None:
        nonlocal arrived
        arrived += 1

    await inbox.open(None, count)
    await until(lambda: arrived * SIZE_BYTES >= AHEAD_MAX_BYTES)
    assert not inbox.caught_up
    taken: list[bytes] = []
    most = 0

    async def all_taken() -> bool:
        nonlocal most
        most = max(most, arrived - len(taken))
        while (message := inbox.take()) is not None:
            taken.append(message.data[:8])
            if len(taken) % 16 == 0:
                await asyncio.sleep(0)
                most = max(most, arrived - len(taken))
        return len(taken) == COUNT

    await until(all_taken)
    order = [int(data) for data in taken]
    assert sorted(order) == list(range(COUNT))
    assert most * SIZE_BYTES <= 2 * AHEAD_MAX_BYTES
    await until(lambda: inbox.caught_up)
    await inbox.close()
