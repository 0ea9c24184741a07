"""`python -m runfold._serve controller|supervisor`: a child of `up` or `run`, told what to do on its standard input.

Loads everything before it reads its configuration, so that it is ready when the broker is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from runfold.config import read_settings
from runfold.errors import RunfoldError
from runfold.events.nats.errors import BrokerError
from runfold.serving import ControllerPlan, SupervisorPlan
from runfold.workers.logs import log_to_stderr

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_PLAN = TypeVar("_PLAN", ControllerPlan, SupervisorPlan)
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
READ_MAX_BYTES: Final = 4096


def main(arguments: list[str]) -> int:
    """Be the child of this role until told to stop; return the exit code."""
    log_to_stderr("%(asctime)s %(levelname)s %(name)s: %(message)s")
    roles = {"controller": _controller, "supervisor": _supervisor}
    if len(arguments) != 1 or arguments[0] not in roles:
        print(f"usage: python -m runfold._serve {'|'.join(roles)}", file=sys.stderr)  # noqa: T201  # nobody reads a log yet
        return EXIT_USAGE
    try:
        return roles[arguments[0]]()
    except (RunfoldError, BrokerError) as error:
        # What went wrong around us, and our parent shows the end of this log: no traceback makes it clearer.
        logging.getLogger("runfold").critical("the %s ends: %s", arguments[0], error)
        return EXIT_FAILED


def _controller() -> int:
    from runfold.controller.config import ControllerConfig
    from runfold.controller.main import serve

    plan = _read_plan(ControllerPlan)
    if plan is None:
        return 0
    config = ControllerConfig(
        data_dir=Path(plan.data_dir),
        url=plan.url,
        namespace=plan.namespace,
        host=plan.host,
        peer_variables=read_settings().peer_variables,
    )
    return asyncio.run(_until_told(lambda told: serve(config, stop=told.done)))


def _supervisor() -> int:
    from runfold.workers.hatchery import launch_zygote

    # First of all: it imports in a process of its own while this one does.
    zygote = launch_zygote()
    from runfold.workers.main import SupervisorConfig, serve_supervisor
    from runfold.workers.places import PLACES_FOLDER

    plan = _read_plan(SupervisorPlan)
    if plan is None:
        asyncio.run(zygote.close())
        return 0
    config = SupervisorConfig(
        url=plan.url,
        namespace=plan.namespace,
        pool=plan.pool,
        node=plan.node,
        slots=plan.slots,
        base_dir=str(Path.cwd()),
        storage_dir=plan.storage_dir,
        more_nodes=plan.more_nodes,
        labels=plan.labels,
        places_dir=str(Path(plan.data_dir) / PLACES_FOLDER / plan.pool),
        adopt=not plan.once,
        ray=plan.ray,
    )
    return asyncio.run(
        _until_told(lambda told: serve_supervisor(config, zygote=zygote, stop=told.stop, orphaned=told.orphaned))
    )


def _read_plan(kind: type[_PLAN]) -> _PLAN | None:
    """Return what the first line of standard input says; None when our parent is gone before it said anything."""
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as pipe:  # a descriptor, not a path
        # Unbuffered: what comes after the line is read by whoever waits for it.
        line = pipe.readline()
    return msgspec.json.decode(line, type=kind) if line.endswith(b"\n") else None


class _Told:
    """What our parent says: to stop, or nothing any more, since it has died. `done` is set by both."""

    def __init__(self) -> None:
        self.stop, self.orphaned, self.done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def hear(self, data: bytes) -> None:
        (self.stop if data else self.orphaned).set()
        self.done.set()


async def _until_told(serve: Callable[[_Told], Awaitable[None]]) -> int:
    """Serve until a signal (which the parts see to themselves), the word to stop, or the end of our parent."""
    told = _Told()
    loop = asyncio.get_running_loop()
    pipe = sys.stdin.fileno()

    def readable() -> None:
        data = os.read(pipe, READ_MAX_BYTES)
        if not data:
            loop.remove_reader(pipe)
        told.hear(data)

    loop.add_reader(pipe, readable)
    try:
        await serve(told)
    finally:
        loop.remove_reader(pipe)
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    logging.shutdown()
    # Everything was closed in order; to take the interpreter down piece by piece would only take time.
    os._exit(code)
