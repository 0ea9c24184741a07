"""A controller's lease: a value that expires by itself, renewed by its holder alone, and whoever else holds one.

Leases are for liveness only: what protects a log is the expected sequence of its appends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from runfold.events import limits
from runfold.events.nats.api import Api
from runfold.events.nats.cells import Cell, Written, lease_cells
from runfold.events.nats.errors import Unanswered
from runfold.events.nats.streams import ensure_leases

if TYPE_CHECKING:
    from runfold.events.nats.connection import Connection

Renewal = Literal["kept", "gained", "taken"]
"""What became of a renewal: it never lapsed; it is held anew, since it had lapsed or a former life held it; another
process has taken it since, under the same name."""

TTL_S: Final = int(limits.LEASE_TTL_S)
"""In whole seconds, as the broker takes it."""

TRIES_MAX: Final = 4


class Lease:
    """The lease of one holder, for one life of it (`boot`). `connection` should carry nothing else."""

    def __init__(self, connection: Connection, holder: str, boot: str) -> None:
        self.holder = holder
        self._boot = boot.encode()
        self._connection = connection
        self._cells = lease_cells(connection)
        self._api = Api(connection, limits.LEASE_TTL_S)
        self._stream = connection.names.stream_of(connection.names.leases_bucket)
        self._sequence = 0
        self._held = False

    async def renew(self) -> Renewal:
        """Hold the lease for another `LEASE_TTL_S`; the bucket is made anew when the broker lost it with its memory.

        Raises:
            BrokerError: the broker does not answer; nobody knows whether it is held.
        """
        for _ in range(TRIES_MAX):
            try:
                outcome = await self._cells.put(
                    self.holder, self._boot, expected=self._sequence, ttl_s=TTL_S, timeout_s=limits.LEASE_TTL_S
                )
            except Unanswered:
                if not await self._make_room():
                    raise
                continue
            if isinstance(outcome, Written):
                renewal: Renewal = "kept" if self._held else "gained"
                self._sequence, self._held = outcome.sequence, True
                return renewal
            standing = await self._cells.get(self.holder)
            if self._is_anothers(standing):
                return "taken"
            # Ours, by a try whose answer was lost; or lapsed; or a former life's, which is over by now.
            self._held = standing is not None and standing.data == self._boot
            self._sequence = standing.sequence if standing is not None else 0
        raise Unanswered(self._cells.subject(self.holder), f"it was in the way {TRIES_MAX} times")

    async def release(self) -> None:
        """Let go at once. What another process holds under the name stays."""
        if self._sequence:
            await self._api.purge(self._stream, self._cells.subject(self.holder), self._sequence)
            self._sequence, self._held = 0, False

    async def living(self) -> frozenset[str]:
        """Return everybody who holds a lease now, as the broker knows it."""
        subjects = await self._api.subjects(self._stream, self._cells.subject("*"))
        if subjects is None:
            raise Unanswered(self._stream, "the broker lost its leases and nobody has made room for new ones yet")
        return frozenset(self._cells.key(subject) for subject in subjects)

    def _is_anothers(self, standing: Cell | None) -> bool:
        """Whether somebody came after us: at our own start whoever stands there is a former life of ours."""
        return standing is not None and standing.data is not None and standing.data != self._boot and self._sequence > 0

    async def _make_room(self) -> bool:
        """Make the bucket anew if it is not there; whether it was not."""
        if await self._api.stream_info(self._stream) is not None:
            return False
        self._sequence, self._held = 0, False
        await ensure_leases(self._api, self._connection.names)
        return True
