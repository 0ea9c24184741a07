"""What a broker says of its own health on its monitoring port: above all, that it can write no more."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from typing import Final

import msgspec

HEALTH_TIMEOUT_S: Final = 2.0
ANSWER_MAX_BYTES: Final = 64 * 1024


class _Health(msgspec.Struct):
    status: str = ""
    error: str = ""


async def broker_trouble(monitor_url: str) -> str | None:
    """Return what the broker says is wrong with it; None when it is well, or nobody answers there."""
    return await asyncio.to_thread(_ask, monitor_url) if monitor_url else None


def _ask(monitor_url: str) -> str | None:
    try:
        with urllib.request.urlopen(f"{monitor_url}/healthz", timeout=HEALTH_TIMEOUT_S):  # noqa: S310 - our own broker's
            return None
    except urllib.error.HTTPError as refusal:
        try:
            health = msgspec.json.decode(refusal.read(ANSWER_MAX_BYTES), type=_Health)
        except (msgspec.DecodeError, OSError):
            return f"it says of itself: {refusal.code}"
        finally:
            refusal.close()
        return health.error or f"it says of itself: {health.status or refusal.code}"
    except (OSError, ValueError):
        return None
