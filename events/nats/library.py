"""nats-py, imported once and without its websockets: for them it loads aiohttp wherever that is installed.

That costs a tenth of a second in each of our processes, and nothing of ours speaks over websockets.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from types import ModuleType

_UNUSED = "aiohttp"
_held_back = _UNUSED not in sys.modules and "nats" not in sys.modules
if _held_back:
    # The way to say that a module cannot be imported; nats-py then does without it.
    sys.modules[_UNUSED] = cast("ModuleType", None)
try:
    from nats.aio.client import Client
    from nats.errors import ConnectionClosedError, OutboundBufferLimitError, SlowConsumerError
    from nats.errors import Error as NatsError
finally:
    if _held_back:
        del sys.modules[_UNUSED]

__all__ = ["Client", "ConnectionClosedError", "NatsError", "OutboundBufferLimitError", "SlowConsumerError"]
