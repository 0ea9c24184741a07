"""The room that streams have left, and when it is used up."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from runfold.events.nats.api import StreamConfig, StreamInfo, StreamState
from runfold.space import GIB, room_of

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def info(used: float, first: str) -> StreamInfo:
    config = StreamConfig(name="RUNFOLD_LOG", max_bytes=int(4 * GIB))
    return StreamInfo(config=config, state=StreamState(bytes=int(used), first_ts=first), created="")


@pytest.mark.parametrize(
    ("used", "first", "shown", "tight"),
    [
        (
            GIB,
            "2026-11-20T00:00:00.123456789Z",
            "1.0 GiB of 4.0 GiB, 3.0 GiB left, full in 30 days at this rate",
            False,
        ),
        (GIB, "2026-11-29T00:00:00Z", "1.0 GiB of 4.0 GiB, 3.0 GiB left, full in 3 days at this rate", True),
        (2 * GIB, "2026-11-29T12:00:00Z", "2.0 GiB of 4.0 GiB, 2.0 GiB left, full in 12 hours at this rate", True),
        (3.5 * GIB, "2025-11-30T00:00:00Z", "3.5 GiB of 4.0 GiB, 512.0 MiB left, full in 52 days at this rate", True),
        (1024**2, "2026-11-29T23:59:00Z", "1.0 MiB of 4.0 GiB, 4.0 GiB left", False),
        (0, "0001-01-01T00:00:00Z", "0.0 MiB of 4.0 GiB, 4.0 GiB left", False),
        (5, "", "0.0 MiB of 4.0 GiB, 4.0 GiB left", False),
    ],
)
def test_room(used: float, first: str, shown: str, tight: bool) -> None:
    room = room_of(info(used, first), NOW)
    assert str(room) == f"RUNFOLD_LOG: {shown}"
    assert room.is_tight == tight
