"""How much room the broker's streams have left, and when they will be full if things go on as they did."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from runfold.events.base import Value

if TYPE_CHECKING:
    from runfold.client import Client
    from runfold.events.nats.api import StreamInfo

DAY_S: Final = 86_400.0
SEEN_MIN_S: Final = 3600.0
"""What a stream took up in less time than that says nothing about days."""

FULL_WARNING_RATIO: Final = 0.8
FULL_PROBLEM_RATIO: Final = 0.95
FULL_SOON_DAYS: Final = 7.0
MIB: Final = 1024.0**2
GIB: Final = 1024.0**3


class Room(Value, frozen=True, kw_only=True):
    """A stream that refuses when it is full: what it holds, what it may, and in how many days that is all."""

    stream: str
    used_bytes: int
    max_bytes: int
    days_left: float | None

    @property
    def used_ratio(self) -> float:
        """The share of its room that is taken."""
        return self.used_bytes / self.max_bytes if self.max_bytes > 0 else 0.0

    @property
    def is_tight(self) -> bool:
        """Whether somebody should look after it."""
        return self.used_ratio >= FULL_WARNING_RATIO or (self.days_left is not None and self.days_left < FULL_SOON_DAYS)

    def __str__(self) -> str:
        left = self.max_bytes - self.used_bytes
        when = "" if self.days_left is None else f", full in {_days(self.days_left)} at this rate"
        return f"{self.stream}: {_size(self.used_bytes)} of {_size(self.max_bytes)}, {_size(left)} left{when}"


def room_of(info: StreamInfo, now: datetime) -> Room:
    """Return a stream's room; the rate is that since its oldest message."""
    used, limit = info.state.bytes, info.config.max_bytes
    days: float | None = None
    first = _time(info.state.first_ts)
    if first is not None and used > 0 and (seen_s := (now - first).total_seconds()) >= SEEN_MIN_S:
        days = (limit - used) / (used / seen_s) / DAY_S
    return Room(stream=info.config.name, used_bytes=used, max_bytes=limit, days_left=days)


async def rooms(client: Client) -> list[Room]:
    """Return the room of the streams that runs cannot do without: those that refuse loudly when they are full."""
    names, now = client.names, datetime.now(UTC)
    streams = (names.log, names.inbox, names.jobs, names.blobs, names.assignments)
    found = [await client.api.stream_info(stream) for stream in streams]
    return [room_of(info, now) for info in found if info is not None]


def _time(stamp: str) -> datetime | None:
    """Read a time of the server's, which has nanoseconds; None for the zero time of an empty stream."""
    whole, _, fraction = stamp.removesuffix("Z").partition(".")
    try:
        at = datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}+00:00")
    except ValueError:
        return None
    return at if at.year > 1 else None


def _size(count: float) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.1f} MiB"


def _days(days: float) -> str:
    return f"{days:.0f} days" if days >= 2 else f"{days * 24:.0f} hours"
