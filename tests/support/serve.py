"""A supervisor as a process of its own, configured by the first line of its standard input."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from runfold.workers.main import SupervisorConfig, serve_supervisor


def main() -> None:
    """Serve until a signal."""
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=SupervisorConfig)
    asyncio.run(serve_supervisor(config))
