"""What the shell needs of the world, and nothing more: in memory for tests and simulation, on NATS in production.

Every call that reaches the broker may raise `Unavailable`: no definite answer, asking again is safe.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from runfold.controller.liveness import Heard
    from runfold.events.log import Log


Renewal = Literal["kept", "gained", "taken"]
"""It never lapsed; it is held, but had lapsed or was another life's; another life of the same name holds it now."""


class Unavailable(Exception):
    """The broker gave no definite answer; what was asked may or may not have been done. Ask again."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message of the inbox. `identity` is the stream's: one made anew has another."""

    identity: str
    sequence: int
    subject: str
    data: bytes


class Inbox(Protocol):
    """One run's facts and requests, in the stream's order."""

    async def open(self, cursor: tuple[str, int] | None, arrived: Callable[[], None]) -> None:
        """Deliver everything after `cursor` (from the start when the stream has another identity).

        `arrived` is called, in the event loop, whenever `take` has something new.
        """
        ...

    def take(self) -> Delivered | None:
        """Return the next message that arrived, or None."""
        ...

    @property
    def caught_up(self) -> bool:
        """Whether everything that the stream holds for the run was taken, as far as is known."""
        ...

    async def purge(self, cursor: tuple[str, int]) -> None:
        """Remove the run's messages up to a cursor: they are folded. Nothing, when the stream is another one."""
        ...

    async def close(self) -> None:
        """Deliver nothing more."""
        ...


class Board(Protocol):
    """One last-value document: a run's assignment, or its status."""

    async def read(self) -> tuple[bytes | None, int]:
        """Return the document that stands and its sequence; (None, 0) when there is none."""
        ...

    async def write(self, data: bytes, last_sequence: int) -> int | None:
        """Replace the document of `last_sequence` (0: none) and return the new sequence; None: another came first."""
        ...


class Bucket(Protocol):
    """A bucket of small values, changed by compare-and-set."""

    async def create(self, key: str, value: str) -> bool:
        """Set a key that is free; False when it is not."""
        ...

    async def get(self, key: str) -> str | None:
        """Return a key's value, or None when it is free."""
        ...

    async def replace(self, key: str, value: str, new: str) -> bool:
        """Change a key that holds `value`; False when it does not."""
        ...

    async def delete(self, key: str, value: str) -> bool:
        """Free a key that holds `value`; False when it does not."""
        ...

    async def entries(self) -> Mapping[str, str]:
        """Return all keys that are not free."""
        ...


class Lease(Protocol):
    """A controller's sign of life: gone by itself `LEASE_TTL_S` after it was last renewed."""

    async def renew(self) -> Renewal:
        """Hold it from now on."""
        ...

    async def release(self) -> None:
        """Let go of it at once."""
        ...

    async def living(self) -> frozenset[str]:
        """Return the controllers that hold one now."""
        ...


class Ear(Protocol):
    """One run's beats and its pool's, and the seconds in which they could be heard."""

    async def open(self, pool: str, on_tick: Callable[[Heard, float], None]) -> None:
        """Call `on_tick` about each half second, with what was heard since and how much of it was observed time."""
        ...

    async def close(self) -> None:
        """Hear nothing more."""
        ...


class JobDelivery(Protocol):
    """A published job, given to this controller until it is answered or `JOBS_ACK_WAIT_S` is over."""

    @property
    def sequence(self) -> int:
        """Its number in JOBS."""
        ...

    @property
    def data(self) -> bytes:
        """What was published."""
        ...

    async def ack(self) -> None:
        """Say that it became a run: it is not given out again."""
        ...

    async def term(self) -> None:
        """Say that it was refused: it is not given out again."""
        ...


class Jobs(Protocol):
    """The queue of published jobs."""

    async def pull(self) -> JobDelivery | None:
        """Wait for one job, at most about `JOBS_PULL_EXPIRES_S`; None when there was none."""
        ...

    async def refuse(self, sequence: int, record: bytes) -> None:
        """Keep the record of a refused job."""
        ...


class Snapshots(Protocol):
    """A run's states as they were kept at some entries. None of them need be there, or be what it should be."""

    async def newest(self) -> list[bytes]:
        """Return those that save most reading, the newest first."""
        ...

    async def put(self, key: str, data: bytes) -> None:
        """Keep one, in the place of the one before under that key."""
        ...


@dataclass(frozen=True, slots=True)
class RunPorts:
    """What one run's loop speaks through. `say_folded` is core NATS: said once, and lost while nobody can hear.

    Without an `ear` nobody's silence is ever noticed.
    """

    log: Log
    inbox: Inbox
    assignment: Board
    status: Board
    snapshots: Snapshots
    say_folded: Callable[[bytes], Awaitable[None]]
    ear: Ear | None = None


class Ports(Protocol):
    """Everything a controller process speaks through."""

    @property
    def jobs(self) -> Jobs:
        """The queue of jobs."""
        ...

    @property
    def owners(self) -> Bucket:
        """Run → controller id."""
        ...

    def lease(self, controller: str) -> Lease:
        """Return a controller's lease, for this life of it."""
        ...

    async def generation(self, run: str) -> int:
        """Return which generation of a run's log is its log now; 0 when it has none."""
        ...

    async def unsettled(self) -> frozenset[str]:
        """Return the runs whose status tells of no end, or is missing."""
        ...

    def run(self, run: str) -> RunPorts:
        """Return the ports of one run; nothing is opened by this."""
        ...
