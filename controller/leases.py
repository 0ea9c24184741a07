"""This controller's sign of life, and what becomes of runs whose controller gives none any more.

Leases are for liveness only. Two controllers that both believe to have a run are told apart by its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from runfold.controller.host import Host
from runfold.controller.ports import Lease, Unavailable
from runfold.controller.safe import shown
from runfold.events.limits import LEASE_TTL_S

RENEW_EVERY_S: Final = LEASE_TTL_S / 3
LOOK_EVERY_S: Final = LEASE_TTL_S / 5
"""How often it is looked who holds a lease."""

SETTLED_AFTER_S: Final = 2 * LEASE_TTL_S
"""How long this controller's own lease must have stood before another's absence means anything: after an outage of the
broker nobody holds one."""

OWNERS_EVERY_S: Final = 2.0
"""How often it is looked who owns which run even when nobody came or went."""

RELEASE_TIMEOUT_S: Final = 2.0

_log = logging.getLogger(__name__)


class NameTaken(Exception):
    """Another process has taken this controller's name since."""


class Keeper:
    """Renews this controller's lease for as long as it works. `held` is set once it was held for the first time."""

    def __init__(self, lease: Lease, controller: str, monotonic: Callable[[], float]) -> None:
        self.held = asyncio.Event()
        self.taken = False
        self.lapses_count = 0
        self._lease, self._controller, self._monotonic = lease, controller, monotonic
        self._since: float | None = None
        self._silent = False

    @property
    def settled(self) -> bool:
        """Whether the lease has stood for so long, without a lapse, that who has none is gone."""
        return self._since is not None and self._monotonic() - self._since >= SETTLED_AFTER_S

    async def serve(self, stop: asyncio.Event) -> None:
        """Renew until cancelled. Another process under this name sets `stop`: its runs are that one's now."""
        while True:
            began = self._monotonic()
            try:
                self._renewed(await self._lease.renew(), began, stop)
            except Unavailable as error:
                self._since = None
                if not self._silent:
                    _log.warning("controller %s cannot renew its lease: %s", self._controller, shown(error))
                self._silent = True
            await asyncio.sleep(max(RENEW_EVERY_S - (self._monotonic() - began), 0.0))

    def _renewed(self, renewal: str, began: float, stop: asyncio.Event) -> None:
        now = self._monotonic()
        self._silent = False
        if renewal == "taken":
            self._since = None
            if not self.taken:
                _log.error(
                    "another controller works under the name %s: this one stops. Controllers of one broker need a data "
                    "directory in common, or host names that differ",
                    self._controller,
                )
            self.taken = True
            stop.set()
            return
        if renewal == "gained" and self.held.is_set():
            self.lapses_count += 1
            _log.warning("controller %s had lost its lease, and holds it again", self._controller)
        # An answer that was slow in coming may have come from a broker that stood still, and forgot others meanwhile.
        if self._since is None or renewal == "gained" or now - began > RENEW_EVERY_S:
            self._since = now
        self.held.set()

    async def release(self) -> None:
        """Let others have this controller's runs at once."""
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await self._lease.release()
        except (TimeoutError, Unavailable):
            _log.warning("controller %s: its lease could not be given up and lapses by itself", self._controller)


class Heir:
    """Looks who owns what: takes over the runs of controllers that are gone, lets go of those that others took."""

    def __init__(self, host: Host, lease: Lease, keeper: Keeper, monotonic: Callable[[], float]) -> None:
        self._host, self._owners, self._lease, self._keeper = host, host.owners, lease, keeper
        self._monotonic = monotonic
        self._known: frozenset[str] = frozenset()
        self._lapses_count = 0
        self._look_at = 0.0
        self._heals = True

    async def serve(self) -> None:
        """Look until cancelled."""
        await self._host.ready.wait()
        while True:
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._host.unsure.wait()
            except TimeoutError:
                pass
            try:
                await self._look()
            except Unavailable:
                # The keeper says so already; nothing is concluded from what nobody answers.
                await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self) -> None:
        living = await self._lease.living()
        lapsed = self._keeper.lapses_count != self._lapses_count
        due = living != self._known or lapsed or self._host.unsure.is_set() or self._monotonic() >= self._look_at
        if not due or not self._keeper.held.is_set():
            return
        self._host.unsure.clear()
        self._lapses_count = self._keeper.lapses_count
        self._heals = self._heals or lapsed
        hosted = self._host.standing()
        holders = await self._owners.holders()
        # Asked again, and only now: whoever had taken a run by then had a lease before.
        living = await self._lease.living()
        self._judge(holders, living)
        for run in hosted - holders.keys():
            self._host.drop(run, "its key is gone, it may have ended elsewhere")
        if self._keeper.settled:
            self._known = living
        await self._host.recheck()
        if self._heals and self._keeper.settled:
            await self._heal()
            self._heals = False
        self._look_at = self._monotonic() + OWNERS_EVERY_S

    async def _heal(self) -> None:
        """See that every run's status says what its log does: a broker that died may have lost the last of them.

        A run that has ended has nobody to say it again: it is taken up once more, by whoever claims it first.
        """
        self._host.show_again()
        unsettled = await self._host.unsettled()
        # Asked for after them: who is at a run had its key by then.
        for run in sorted(unsettled - (await self._owners.holders()).keys()):
            if await self._owners.claim(run) == self._owners.controller:
                _log.warning("run %s: its status tells of no end, and no controller has it: it is looked after", run)
                self._host.resume(run)

    def _judge(self, holders: dict[str, str], living: frozenset[str]) -> None:
        me = self._owners.controller
        conclusive = self._keeper.settled and me in living
        for run, holder in holders.items():
            if holder == me:
                self._host.resume(run)
            elif self._host.find(run) is not None:
                self._host.drop(run, f"controller {holder} took it over")
            elif conclusive and holder not in living:
                self._host.inherit(run, holder)
