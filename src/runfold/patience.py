"""A broker that is away while its service runs is being started again: how long its clients wait, and what they say."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Final

from runfold.events.nats.connection import connect
from runfold.events.nats.errors import BrokerAway, BrokerUnreachable
from runfold.locate import listens
from runfold.servicelock import is_kept_running
from runfold.unheard import print_lasting

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from runfold.events.nats.connection import Connection
    from runfold.events.nats.names import Names, Role

BROKER_AWAITED_S: Final = 60.0
"""How long a client waits for the broker of a service that runs; each answer begins it anew."""

LOOK_EVERY_S: Final = 0.2


def say_waiting(text: str) -> None:
    """Tell a person what is waited for, beside a command's own output."""
    print_lasting(text, sys.stderr)


async def connected(url: str, role: Role, name: str, names: Names, patience: Patience | None) -> Connection:
    """Connect to a broker; with patience one that is away is waited for.

    Raises:
        BrokerAway: it was waited for in vain.
        BrokerUnreachable: there is none, or it does not take us.
    """
    since_s = asyncio.get_running_loop().time()
    while True:
        if patience is not None:
            await patience.listening(lambda: listens(url), since_s)
        try:
            return await connect(url, role=role, name=name, names=names)
        except BrokerUnreachable:
            # One that can be connected to has refused us, or is silent: it is not away.
            if patience is None or listens(url) or not await patience.waits(since_s):
                raise


class Patience:
    """The patience of one client with the broker of a data directory; `say` hears once each time that it is away."""

    def __init__(self, data_dir: Path, say: Callable[[str], None] = say_waiting) -> None:
        self._data_dir = data_dir
        self._say = say
        self._said = False

    async def again(self, connection: Connection, since_s: float) -> bool:
        """Return once the broker can be heard: ask it again. False: nobody keeps it running.

        `since_s` is when it was first away, or asked in vain.

        Raises:
            BrokerAway: it has been waited for long enough.
        """
        while await self.waits(since_s):
            if connection.is_up:
                self._said = False
                return True
            if connection.is_closed:
                return False
            self.say_away()
            await connection.wait_up(LOOK_EVERY_S)
        return False

    async def listening(self, listens: Callable[[], bool], since_s: float) -> None:
        """Return once the broker can be connected to, or nobody keeps it running.

        Raises:
            BrokerAway: it has been waited for long enough.
        """
        while not listens() and await self.waits(since_s):
            self.say_away()
            await asyncio.sleep(LOOK_EVERY_S)
        self._said = False

    async def watch(self, connection: Connection) -> None:
        """Say each time that the broker is away; until cancelled. A service that was stopped is waited for silently.

        Raises:
            BrokerAway: its service runs, and it was waited for long enough.
        """
        changed = asyncio.Event()
        forget = connection.on_change(changed.set)
        try:
            while True:
                changed.clear()
                if connection.is_up:
                    await changed.wait()
                elif not await self.again(connection, asyncio.get_running_loop().time()):
                    await connection.wait_up(LOOK_EVERY_S)
        finally:
            forget()

    async def waits(self, since_s: float) -> bool:
        """Return whether there is somebody to wait for; raise `BrokerAway` when the time is over."""
        if not is_kept_running(self._data_dir):
            return False
        if asyncio.get_running_loop().time() - since_s >= BROKER_AWAITED_S:
            raise BrokerAway(
                f"the service of {self._data_dir} is running, but its broker does not answer: "
                f"it was waited for {BROKER_AWAITED_S:g} s\nWhat `runfold up` says there tells why it is not back."
            )
        return True

    def say_away(self) -> None:
        """Say that the broker is waited for, unless that was said."""
        if not self._said:
            self._said = True
            self._say(f"the service of {self._data_dir} is starting its broker again: waiting")
