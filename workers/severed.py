"""Errors of other libraries' collectives that say a peer is gone: effects of another rank's end, not causes."""

from __future__ import annotations

import re
from typing import Final

_SAID_BY: Final = re.compile(r"gloo|\bnccl|NCCL|ProcessGroup", re.ASCII)
"""Whose words they are: user code may speak of connections too, and means others."""
_GONE: Final = re.compile(
    r"connection (?:closed|reset) by peer|broken pipe|timed out waiting \d+ms for (?:recv|send) operation|"
    r"remote process exited|remote error|communicator was aborted|"
    r"some rank\(s\) may have failed|watchdog caught collective operation timeout",
    re.ASCII | re.IGNORECASE,
)
SEVERED_READ_MAX_CHARS: Final = 4096
"""Of an error's message: what a library says stands at its beginning, and it may be of any length."""


def is_peer_gone(error: BaseException, message: str) -> bool:
    """Whether a collective of torch broke since another rank ended or did not come; `message` is the error's own.

    By the words of gloo (`gloo/transport`) and NCCL (`ncclRemoteError`), as torch 2.4 to 2.13 raises them: as a
    `RuntimeError` or one of its own kinds of it, without a number that would tell.
    """
    if not isinstance(error, RuntimeError):
        return False
    read = message[:SEVERED_READ_MAX_CHARS]
    return _SAID_BY.search(read) is not None and _GONE.search(read) is not None
