"""A supervisor as a process of its own, configured by the first line of its standard input; a further one stops it."""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec

from runfold.workers.main import SupervisorConfig, serve_supervisor


def main() -> None:
    """Serve until a word or the end of the input."""
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as pipe:
        config = msgspec.json.decode(pipe.readline(), type=SupervisorConfig)
    asyncio.run(_serve(config))


async def _serve(config: SupervisorConfig) -> None:
    stop, orphaned = asyncio.Event(), asyncio.Event()
    loop, pipe = asyncio.get_running_loop(), sys.stdin.fileno()

    def hear() -> None:
        if os.read(pipe, 64):
            stop.set()
        else:
            loop.remove_reader(pipe)
            orphaned.set()

    loop.add_reader(pipe, hear)
    await serve_supervisor(config, stop=stop, orphaned=orphaned)
