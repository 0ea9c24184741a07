"""What stands on each node of a group: an actor that starts its runner, watches it, and outlives the supervisor.

The runner, and the ranks below it, are processes of their own, forked as on any machine; the actor holds the runner's
pipe. What is secret comes by a call of the actor, and stands in no name, argument or environment of a process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Final

import msgspec

from runfold.events.assignment import Mark
from runfold.workers.hatchery import RUNNER_TARGET, STOP_MARGIN_S, Hatchery, RunnerProcess
from runfold.workers.logs import log_to_stderr
from runfold.workers.pipe import RunnerSpec
from runfold.workers.places import Place
from runfold.workers.plan import ABANDONED_GRACE_S
from runfold.workers.pools.ray import library
from runfold.workers.spawner import Spawner
from runfold.workers.zygote import Role

HEED_EVERY_S: Final = 1.0
"""How often a supervisor says that it is there."""
LONELY_AFTER_S: Final = 10.0
"""Not heard for so long, it is gone: then its heir has `timeouts.adopt_within_s`."""
LOOK_EVERY_S: Final = 1.0
_LOG: Final = logging.getLogger("runfold.workers")


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What an heir is told: who the runner is, and in which placement group, held as what (see `book.Reserved`)."""

    place: Place
    group: str
    held_as: str
    lent: bool
    secret: bytes
    adopt_within_s: float


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How the runner ended, as far as it was seen."""

    code: int | None = None
    signal: int | None = None
    reason: str = ""


class Attendant:
    """The actor. All that it is told and tells is bytes, so that nothing of ours is pickled."""

    def __init__(self) -> None:
        log_to_stderr("%(asctime)s runner's actor: %(message)s")
        # It imports while the actor is being told what to start. What it forks dies with it, as it does with this
        # actor: who has lost the actor has lost the runner as well, and hears nothing of it afterwards.
        self._hatchery = Hatchery(Spawner.launch(RUNNER_TARGET, Role.RANKS))
        self._spec: RunnerSpec | None = None
        self._runner: RunnerProcess | None = None
        self._over = asyncio.Event()
        self._lent = False
        self._heard_s = time.monotonic()
        self._adopt_within_s = 0.0
        self._watch: asyncio.Task[None] | None = None

    async def start(self, spec: bytes, own_dir: bool, lent: bool) -> None:
        """Start the runner. With `own_dir` relative working directories start where the actor is."""
        given = msgspec.msgpack.decode(spec, type=RunnerSpec)
        if own_dir:
            given = msgspec.structs.replace(given, base_dir=str(Path.cwd()))
        self._spec, self._adopt_within_s, self._heard_s = given, given.adopt_within_s, time.monotonic()
        self._lent = lent
        self._runner = RunnerProcess(given, self._hatchery, self._over.set)
        self._watch = asyncio.create_task(self._watch_over(), name="watch over the supervisor")

    async def ended(self) -> bytes:
        """Wait until the runner has ended; return how."""
        await self._over.wait()
        here = self._runner.here if self._runner is not None else None
        if here is None:
            return msgspec.msgpack.encode(Ended(reason="it was never started"))
        return msgspec.msgpack.encode(Ended(code=here.code, signal=here.signal, reason=here.reason))

    async def stop(self, reason: str, grace_s: float, said_by: Mark | None = None) -> None:
        """Tell the runner to stop; it is killed when it does not in time."""
        if self._runner is None:
            self._over.set()
        else:
            self._runner.stop(reason, grace_s, said_by)

    async def heed(self, adopt_within_s: float) -> None:
        """Hear that a supervisor is there, and how long its heir would have."""
        self._heard_s, self._adopt_within_s = time.monotonic(), adopt_within_s

    async def standing(self) -> bytes:
        """Return who the runner is, for an heir; empty when there is none."""
        spec, runner = self._spec, self._runner
        if spec is None or runner is None:
            return b""
        place = Place(
            run=spec.run,
            pool=spec.pool,
            node=spec.node,
            source=spec.source,
            attempt=spec.attempt,
            pid=runner.pid or 0,
            started=None,
            slots=spec.slots,
            resources=spec.resources,
        )
        standing = Standing(
            place=place,
            group=library.own_group() or "",
            held_as=spec.held_as or spec.run,
            lent=self._lent,
            secret=spec.secret,
            adopt_within_s=self._adopt_within_s,
        )
        return msgspec.msgpack.encode(standing)

    async def _watch_over(self) -> None:
        """Without a supervisor for too long end the runner, then give the placement back, and with it this actor."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            alone_s = time.monotonic() - self._heard_s - LONELY_AFTER_S
            if alone_s < self._adopt_within_s or self._runner is None:
                continue
            if self._runner.alive:
                reason = f"the supervisor is gone, and no other came within {self._adopt_within_s:g} s (adopt_within_s)"
                self._runner.stop(reason, ABANDONED_GRACE_S)
            elif alone_s > self._adopt_within_s + ABANDONED_GRACE_S + STOP_MARGIN_S:
                # The others of the group have had their time as well.
                _LOG.warning("nobody has asked for what is left of this group: its placement is given back")
                if (group := library.own_group()) is not None:
                    await asyncio.to_thread(library.remove_group, group)
                os._exit(0)


def gpus_here() -> list[str]:
    """Return which GPUs a bundle has: run once in each, where ranks have some."""
    return library.own_gpus()
