"""What stands where a validation holds something of a cluster: an actor that does it, and outlives the supervisor.

The validation is a process of its own, forked as on any machine, with no word of the broker. What is secret comes by a
call of the actor, as it does for runners (see `actor`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Final

import msgspec

from runfold.workers.aside import Aside
from runfold.workers.logs import log_to_stderr
from runfold.workers.nursery import Nursery
from runfold.workers.outside import VALIDATE, Order, Question, Said, unanswered
from runfold.workers.pools.ray import library
from runfold.workers.pools.ray.actor import LONELY_AFTER_S, LOOK_EVERY_S
from runfold.workers.pools.ray.printed import Printed

_LOG: Final = logging.getLogger("runfold.workers")


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done. `own_dir`: `working_dir` is relative to where the actor is."""

    key: str
    resources: dict[str, float]
    order: Order
    question: Question
    working_dir: str | None = None
    own_dir: bool = False
    adopt_within_s: float = 0.0


class TaskStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What an heir is told: as what it holds what, and in which placement group."""

    key: str
    group: str
    resources: dict[str, float]


class Over(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it, and what it has printed since that was last fetched."""

    said: Said
    printed: bytes = b""


class Validator:
    """The actor. All that it is told and tells is bytes, so that nothing of ours is pickled."""

    def __init__(self) -> None:
        log_to_stderr("%(asctime)s validation's actor: %(message)s")
        # What it forks dies with it, as it does with this actor.
        self._nursery = Nursery()
        self._begun: Begin | None = None
        self._doing: asyncio.Task[Said] | None = None
        self._printed = Printed()
        self._over: bytes | None = None
        self._heard_s = time.monotonic()
        self._adopt_within_s = 0.0
        self._watch = asyncio.create_task(self._watch_over(), name="watch over the supervisor")

    async def start(self, told: bytes) -> None:
        """Begin the validation."""
        begun = self._begun = msgspec.msgpack.decode(told, type=Begin)
        self._adopt_within_s, self._heard_s = begun.adopt_within_s, time.monotonic()
        self._doing = asyncio.create_task(self._done(begun), name=begun.key)

    async def said(self) -> bytes:
        """Wait until it is over; return what came of it. Asked again, it says the same."""
        if self._doing is None:
            return msgspec.msgpack.encode(Over(said=unanswered("NotStarted", "it was never started")))
        await asyncio.wait({self._doing})
        if self._doing.cancelled():
            said = unanswered("Cancelled", "it was ended")
        elif (error := self._doing.exception()) is not None:
            said = unanswered(type(error).__name__, str(error))
        else:
            said = self._doing.result()
        if self._over is None:
            # Kept: the first answer may be lost on its way, and with it what was printed last.
            self._over = msgspec.msgpack.encode(Over(said=said, printed=self._printed.take()))
        return self._over

    async def heed(self, adopt_within_s: float) -> bytes:
        """Hear that a supervisor is there, and how long its heir would have; return what was printed since."""
        self._heard_s, self._adopt_within_s = time.monotonic(), adopt_within_s
        return self._printed.take()

    async def standing(self) -> bytes:
        """Return what it is, for an heir; empty when it was never started."""
        begun = self._begun
        if begun is None:
            return b""
        group = library.own_group() or ""
        return msgspec.msgpack.encode(TaskStanding(key=begun.key, group=group, resources=begun.resources))

    async def end(self) -> None:
        """End it, and wait until no process of it is left."""
        if self._doing is not None:
            self._doing.cancel()
            await asyncio.wait({self._doing})
        await self._nursery.close()

    async def _done(self, begun: Begin) -> Said:
        order = begun.order
        if begun.own_dir:
            order = msgspec.structs.replace(order, working_dir=str(Path.cwd() / (begun.working_dir or ".")))
        try:
            process = await Aside.start(self._nursery, VALIDATE, order, self._printed.fd)
        finally:
            self._printed.given()
        try:
            return await process.ask(begun.question)
        finally:
            await process.end()

    async def _watch_over(self) -> None:
        """Without a supervisor for too long end it, then give its place back, and with it this actor."""
        while True:
            left_s = self._heard_s + LONELY_AFTER_S + self._adopt_within_s - time.monotonic()
            if left_s <= 0:
                break
            await asyncio.sleep(min(left_s, LOOK_EVERY_S))
        _LOG.warning("the supervisor is gone, and no other came within adopt_within_s: its place is given back")
        await self.end()
        if (group := library.own_group()) is not None:
            await asyncio.to_thread(library.remove_group, group)
        os._exit(0)
