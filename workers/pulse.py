"""Signs of life, once a second, over core NATS: nobody waits for them and nobody keeps them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from runfold.events.beats import RunnerBeat
from runfold.events.nats.connection import Connection
from runfold.events.nats.errors import BrokerClosed, Unanswered
from runfold.workers.facts import Facts
from runfold.workers.group import RankGroup
from runfold.workers.pipe import RunnerSpec

BEAT_EVERY_S: Final = 1.0
BEAT_EVERY_MIN_S: Final = 0.1


async def beat(
    connection: Connection,
    spec: RunnerSpec,
    facts: Facts,
    group: RankGroup,
    every_s: Callable[[], float] = lambda: BEAT_EVERY_S,
) -> None:
    """Beat for a runner until cancelled, as often as its job says."""
    while True:
        now = time.monotonic()
        unsaid_s = facts.unsaid_s(now)
        # Who cannot even ask for an incarnation says so: it is waited for.
        if connection.is_up and (facts.spool.incarnation is not None or unsaid_s):
            attempt = group.attempt or spec.attempt
            said = RunnerBeat(
                run=spec.run,
                source=spec.source,
                incarnation=facts.spool.incarnation or 0,
                attempt=attempt,
                number=facts.spool.number,
                clock_s=now,
                ranks=group.beats(now),
                unsaid_s=unsaid_s,
            )
            await say(connection, connection.names.subjects.beat(spec.run, attempt, spec.source), said)
        await asyncio.sleep(every_s())


async def say(connection: Connection, subject: str, document: msgspec.Struct) -> None:
    """Publish once; what nobody can hear now is not said later."""
    try:
        await connection.publish(subject, msgspec.json.encode(document))
    except (Unanswered, BrokerClosed):
        return
