"""Where the ranks of an attempt meet: in this runner when it has rank 0, in that one's otherwise."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable

from runfold.events.assignment import Assignment
from runfold.workers.collective import CollectiveHub, CollectiveMember, Collectives, Deliverer
from runfold.workers.errors import LinkError
from runfold.workers.logs import log_bug
from runfold.workers.pipe import RunnerSpec
from runfold.workers.ports import HeldPort


class Meeting:
    """The collectives of one attempt on one node. `failed` is called with the reason when they cannot be.

    `needs_port`: the held port is this attempt's from here on.
    """

    def __init__(
        self,
        spec: RunnerSpec,
        assignment: Assignment,
        port: HeldPort,
        deliver: Deliverer,
        failed: Callable[[str], None],
    ) -> None:
        self.attempt = assignment.attempt
        self._failed = failed
        self.needs_port = False
        # Of each attempt its own: what is left of an earlier one is not let in.
        self._secret = hmac.digest(spec.secret, f"attempt {assignment.attempt}".encode(), hashlib.sha256)
        self._task: asyncio.Task[None] | None = None
        self._port = port
        places = assignment.places
        sources = {laid.rank: places[laid.place].source for laid in assignment.layout}
        here = tuple(rank for rank, source in sources.items() if source == spec.source)
        if sources.get(0) == spec.source:
            hub = CollectiveHub(len(assignment.layout), deliver)
            self.collectives: Collectives = hub
            if len(here) < len(sources):
                self.needs_port = True
                self._task = asyncio.create_task(self._receive(hub, assignment), name="hub")
        else:
            member = CollectiveMember(spec.node, here, deliver)
            self.collectives = member
            self._task = asyncio.create_task(self._join(member, assignment), name="member")
        if self._task is not None:
            self._task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Tell of a bug of ours as of everything else that keeps the ranks from meeting."""
        log_bug(task, "the ranks cannot meet")
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(f"{type(error).__name__}: {error}")

    async def close(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.collectives.close()
        if self.needs_port:
            self._port.close()

    async def _receive(self, hub: CollectiveHub, assignment: Assignment) -> None:
        meant = assignment.rendezvous.port if assignment.rendezvous is not None else None
        sock = self._port.take() if self._port.number == meant else None
        if sock is None:
            self._failed(f"the ranks are to meet at port {meant}, and this runner holds {self._port.number}")
            return
        try:
            await hub.listen(self._secret, sock=sock)
        except OSError as error:
            self._failed(f"the port {meant}, where the ranks are to meet, cannot be used: {error}")

    async def _join(self, member: CollectiveMember, assignment: Assignment) -> None:
        if assignment.rendezvous is None:
            self._failed("the assignment does not say where the ranks meet")
            return
        try:
            await member.connect(assignment.rendezvous.addr, assignment.rendezvous.port, self._secret)
        except LinkError as error:
            self._failed(str(error))
