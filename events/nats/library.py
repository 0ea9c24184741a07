"""nats-py, imported once and without its websockets: for them it loads aiohttp wherever that is installed.

That costs a tenth of a second in each of our processes, and nothing of ours speaks over websockets.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from types import ModuleType

_UNUSED = "aiohttp"
_held_back = _UNUSED not in sys.modules and "nats" not in sys.modules
if _held_back:
    # The way to say that a module cannot be imported; nats-py then does without it.
    sys.modules[_UNUSED] = cast("ModuleType", None)
try:
    from nats.aio.client import Client as _Client
    from nats.errors import ConnectionClosedError, OutboundBufferLimitError, SlowConsumerError
    from nats.errors import Error as NatsError
finally:
    if _held_back:
        del sys.modules[_UNUSED]


_USUAL: Final = frozenset(
    {
        "Nats-Expected-Last-Subject-Sequence",
        "Nats-Last-Sequence",
        "Nats-Msg-Id",
        "Nats-Num-Pending",
        "Nats-Sequence",
        "Nats-Stream",
        "Nats-Subject",
        "Nats-Time-Stamp",
    }
)
"""Names as the broker writes them with each stored message: they need no look."""


class Client(_Client):
    """The client of nats-py, which reads headers in a sixth of the time: every stored message has six to eight of them.

    Half of the time of reading a long log went into looking at each letter of their names.
    """

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """Return the headers in `Name: value` lines; a line without a name, or with blanks in it, is none."""
        found: dict[str, str] = {}
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            name, colon, value = line.partition(":")
            if name not in _USUAL:
                name = name.strip()
                if not name.isascii() or len(name.split()) != 1:
                    continue
            if colon:
                found[name] = value.strip()
        return found


__all__ = ["Client", "ConnectionClosedError", "NatsError", "OutboundBufferLimitError", "SlowConsumerError"]
