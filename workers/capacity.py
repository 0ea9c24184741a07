"""The capacity of a pool: told to the runs that want to know, changed when somebody asks, and taken where it was given.

Places that are held beyond what a node has by now are lost: the run is told some time before, if whoever asked left
any, and then its runner there is ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from runfold.events.limits import REQUEST_MAX_BYTES
from runfold.events.nats.client import RawMessage
from runfold.events.nats.connection import Connection
from runfold.events.nats.errors import Unanswered
from runfold.events.nats.files import write_private
from runfold.events.pools import SLOTS_MAX_COUNT, CapacitySet, SetCapacity
from runfold.workers.desk import Desk
from runfold.workers.placing import SEPARATOR, demand_of
from runfold.workers.pools.pool import Book, Notice
from runfold.workers.pools.room import Room
from runfold.workers.processes import start_time
from runfold.workers.pulse import say

TELL_EVERY_S: Final = 0.25
"""A run is told of changes at most so often; what changed meanwhile is one change."""
NOTICE_PATIENCE_S: Final = 60.0
"""So long is waited for the broker to hold the notice, before places are taken without."""
SETTLED_POLL_S: Final = 0.02
SUBSCRIBE_RETRY_S: Final = 0.5
ANSWERS_MAX_COUNT: Final = 64
WITHIN_MAX_S: Final = 86_400.0
KEPT_SUFFIX: Final = "-capacity.json"
_LOG: Final = logging.getLogger("runfold.workers")
_DECODER: Final = msgspec.json.Decoder(SetCapacity)


class Kept(msgspec.Struct, frozen=True):
    """What was set, for the next supervisor of the same service: that is known by its process."""

    parent: int
    started: float | None
    nodes: dict[str, int]


class Capacity:
    """What one supervisor knows and says of its pool's capacity. `on_change` is called when it has changed."""

    def __init__(
        self, book: Book, connection: Connection, pool: str, places_dir: str | None, on_change: Callable[[], None]
    ) -> None:
        self._book = book
        self._connection = connection
        self._pool = pool
        self._on_change = on_change
        self._kept = Path(places_dir).with_name(f"{pool}{KEPT_SUFFIX}") if places_dir is not None else None
        self._told: dict[str, tuple[float, Room]] = {}
        self._set: dict[str, tuple[float, str]] = {}
        # Which run must leave which node, and when.
        self._leaving: dict[tuple[str, str], float] = {}
        # Which run has left which node, that has no slots since.
        self._left: set[tuple[str, str]] = set()
        self._answers: dict[str, CapacitySet] = {}
        self._restore()

    @property
    def closed(self) -> tuple[str, ...]:
        """The nodes that were set to have no slots."""
        nodes = self._book.nodes
        return tuple(sorted(node for node in self._set if not nodes.get(node, 0)))

    # --- each turn

    def tend(self, book: Book, desks: Mapping[str, Desk], now: float) -> float | None:
        """Take places that are gone, and tell the runs what there is room for; return when to look again."""
        wakes = [*self._take(book, desks, now), *self._tell(book, desks, now)]
        return min(wakes, default=None)

    def _take(self, book: Book, desks: Mapping[str, Desk], now: float) -> list[float]:
        leaving = [(run, node) for run, node in book.overdrawn() if SEPARATOR not in run and run in desks]
        wakes: list[float] = []
        for run, node in leaving:
            within_s, why = self._set.get(node, (0.0, f"{node} has less room than it gave"))
            if (run, node) not in self._leaving:
                self._leaving[run, node] = now + within_s
                desks[run].notice((node,), within_s, why)
            due_s = self._leaving[run, node]
            # The runner's own last words are understood by who has heard of the notice before.
            if now >= due_s + NOTICE_PATIENCE_S or (now >= due_s and desks[run].facts.spool.settled):
                desks[run].take_away(node, why)
            else:
                wakes.append(max(due_s, now + SETTLED_POLL_S))
        for run, node in [key for key in self._leaving if key not in leaving]:
            # What has been taken does not stay: it goes first, though the node should have room again by now.
            if run not in desks or not desks[run].takes(node):
                del self._leaving[run, node]
                self._left.add((run, node))
        self._left = {key for key in self._left if key[0] in desks and not self._stays(book, desks, *key)}
        return wakes

    def _stays(self, book: Book, desks: Mapping[str, Desk], run: str, node: str) -> bool:
        """Say that what is left of a node stays, or that it has room again, once it is so.

        A run that was told that there is no such node any more is told of another one.
        """
        if node not in book.nodes:
            return False
        desk = desks[run]
        if not desk.assignment.room_for or node in self._known(run, node):
            desk.pass_on(Notice(nodes=(node,), cancelled=True), (node,))
        return True

    def _known(self, run: str, node: str) -> Mapping[str, int]:
        """Return the slots by node as a run was told them; one that was told nothing knows this node."""
        _, room = self._told.get(run, (0.0, None))
        return room.slots if room is not None else {node: 0}

    def _may_tell(self, run: str, desk: Desk, room: Room) -> bool:
        """Whether no node is new to a run while it is told to leave it: what came back would be taken to stay."""
        going = [node for node in room.slots if (run, node) in self._leaving or desk.takes(node)]
        return all(node in self._known(run, node) for node in going)

    def _tell(self, book: Book, desks: Mapping[str, Desk], now: float) -> list[float]:
        wakes: list[float] = []
        for run, desk in desks.items():
            wish = desk.assignment
            if not wish.room_for or desk.facts.superseded:
                continue
            last_s, last = self._told.get(run, (now - TELL_EVERY_S, None))
            # Of what an heir has not found yet nobody knows what is free.
            due_s = max(last_s + TELL_EVERY_S, desk.settled_s)
            room = book.room(replace(demand_of(wish), num_workers=wish.room_for))
            if room == last or not self._may_tell(run, desk, room):
                continue
            if now < due_s:
                wakes.append(due_s)
                continue
            self._told[run] = (now, room)
            desk.room(room)
        for run in [run for run in self._told if run not in desks]:
            del self._told[run]
        return wakes

    # --- what is asked

    async def serve(self) -> None:
        """Answer what is asked of the pool's capacity, until cancelled."""
        subject = self._connection.names.subjects.pool_request(self._pool, "capacity")
        subscription = None
        while subscription is None:
            try:
                subscription = await self._connection.subscribe(subject, self._asked)
            except Unanswered:
                await asyncio.sleep(SUBSCRIBE_RETRY_S)
        try:
            await asyncio.Event().wait()
        finally:
            await self._connection.unsubscribe(subscription)

    async def _asked(self, message: RawMessage) -> None:
        if len(message.data) > REQUEST_MAX_BYTES:
            _LOG.warning("a wish about the capacity of pool %s is over request_max_bytes: not read", self._pool)
            return
        try:
            wish = _DECODER.decode(message.data)
        except (msgspec.DecodeError, RecursionError) as error:
            _LOG.warning("a wish about the capacity of pool %s cannot be read: %s", self._pool, error)
            return
        if wish.id not in self._answers:
            self._answers[wish.id] = self._done(wish)
            while len(self._answers) > ANSWERS_MAX_COUNT:
                del self._answers[next(iter(self._answers))]
        await say(self._connection, self._connection.names.subjects.pool_answer(self._pool), self._answers[wish.id])

    def _done(self, wish: SetCapacity) -> CapacitySet:
        if not 0 <= wish.slots <= SLOTS_MAX_COUNT:
            return self._refused(wish, f"slots: must be 0 to {SLOTS_MAX_COUNT}, not {wish.slots}")
        if not 0 <= wish.within_s <= WITHIN_MAX_S:
            return self._refused(wish, f"within_s: must be 0 to {WITHIN_MAX_S:g}, not {wish.within_s:g}")
        before = self._book.nodes
        if (why_not := self._book.resize(wish.node, wish.slots)) is not None:
            return self._refused(wish, why_not)
        nodes, by = self._book.nodes, wish.by or "somebody"
        for node in {**before, **nodes}:
            if before.get(node, 0) != nodes.get(node, 0):
                self._set[node] = (wish.within_s, f"{by} set the capacity of {node} to {nodes.get(node, 0)}")
        _LOG.info("%s set the capacity of pool %s: %s", by, self._pool, nodes)
        self._keep()
        self._on_change()
        # Those without slots are nodes all the same.
        every = {node: nodes.get(node, 0) for node in sorted({*before, *self._set, *nodes})}
        return CapacitySet(id=wish.id, done=True, nodes=every, losing=self._losing())

    def _refused(self, wish: SetCapacity, reason: str) -> CapacitySet:
        return CapacitySet(id=wish.id, done=False, reason=reason, nodes=self._book.nodes)

    def _losing(self) -> dict[str, tuple[str, ...]]:
        losing: dict[str, tuple[str, ...]] = {}
        for run, node in self._book.overdrawn():
            losing[run] = (*losing.get(run, ()), node)
        return losing

    # --- from one supervisor to the next

    def _keep(self) -> None:
        if self._kept is None:
            return
        parent = os.getppid()
        nodes = {node: self._book.nodes.get(node, 0) for node in {**dict.fromkeys(self._set, 0), **self._book.nodes}}
        try:
            write_private(self._kept, Kept(parent, start_time(parent), nodes))
        except OSError as error:
            _LOG.warning("the capacity is forgotten with this supervisor, for it could not be written: %s", error)

    def _restore(self) -> None:
        """Set what was set under the same parent; a service that starts anew has what it is started with."""
        if self._kept is None or not self._kept.exists():
            return
        try:
            kept = msgspec.json.decode(self._kept.read_bytes(), type=Kept)
        except (OSError, msgspec.DecodeError) as error:
            _LOG.warning("%s cannot be read, and the capacity is as at the start: %s", self._kept, error)
            return
        parent = os.getppid()
        if (kept.parent, kept.started) != (parent, start_time(parent)):
            return
        for node, slots in kept.nodes.items():
            if (why_not := self._book.resize(node, slots)) is not None:
                _LOG.warning("the capacity of %s is not set again: %s", node, why_not)
                continue
            # What is set stays so when this supervisor keeps it for the next one.
            self._set[node] = (0.0, f"the capacity of {node} was set to {slots}")
