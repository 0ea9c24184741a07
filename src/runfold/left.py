"""What a service leaves when it is stopped: runs that go on when it is started again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from runfold.client import open_client
from runfold.errors import RunfoldError
from runfold.events.nats.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from runfold.events.status import Status
    from runfold.locate import Address

ASKING_MAX_S: Final = 5.0
_NOT_AT_WORK: Final = ("initializing", "scheduling", "rescheduling")


async def say_what_is_left(address: Address, say: Callable[[str], None]) -> None:
    """Say how many runs have not ended, if any; a broker that does not answer has nothing said of them."""
    try:
        async with asyncio.timeout(ASKING_MAX_S), open_client(address) as client:
            left = left_text(await client.statuses())
    except (RunfoldError, BrokerError, TimeoutError):
        return
    if left:
        say(left)


def left_text(statuses: Iterable[Status]) -> str:
    """Return how many runs go on when the service is started again; nothing when none does."""
    states = [status.state for status in statuses if not status.terminal]
    waiting = sum(state in _NOT_AT_WORK for state in states)
    at_work = len(states) - waiting
    parts = [f"{number} {what}" for number, what in ((at_work, "running"), (waiting, "waiting")) if number]
    runs = "run goes" if len(states) == 1 else "runs go"
    # Whoever waits for the end of the service sees for what.
    saving = "; what is at work may save first: a second Ctrl-C does not wait for that" if at_work else ""
    return f"{' and '.join(parts)} {runs} on when the service is started again{saving}" if parts else ""
