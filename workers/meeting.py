"""Where ranks meet: in this runner when it has the first of them, in that one's otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial

from runfold.events.assignment import Assignment, Rendezvous
from runfold.workers.collective import CollectiveHub, CollectiveMember, Collectives, Deliverer
from runfold.workers.errors import LinkError
from runfold.workers.hubserver import HubServer
from runfold.workers.link import Collected, Refused
from runfold.workers.logs import log_bug
from runfold.workers.pipe import RunnerSpec
from runfold.workers.ports import HeldPort
from runfold.workers.scope import Scope, rendezvous_of, scope_of, sources_of

Answered = Callable[[Scope, int, Collected | Refused], None]
"""Called with each answer to a rank of a scope that is here."""
Failed = Callable[[Scope, str], None]
"""Called with the reason when the ranks of a scope cannot meet."""


class Meeting:
    """The collectives of the ranks of one scope on one node."""

    def __init__(
        self, spec: RunnerSpec, assignment: Assignment, scope: Scope, doors: Doors, deliver: Deliverer, failed: Failed
    ) -> None:
        self.scope = scope
        self._failed = failed
        self._secret = scope.secret(spec.secret)
        self._doors = doors
        self._task: asyncio.Task[None] | None = None
        sources = sources_of(assignment, scope)
        here = tuple(rank for rank, source in sources.items() if source == spec.source)
        meant = rendezvous_of(assignment, scope)
        if sources.get(scope.first) == spec.source:
            hub = CollectiveHub(scope.size, deliver, scope.first)
            self.collectives: Collectives = hub
            if len(here) < len(sources):
                # At once: what is told of the next port must be true when the first rank has started.
                trouble = doors.take(meant.port if meant is not None else None)
                self._task = asyncio.create_task(self._receive(hub, trouble), name="hub")
        else:
            member = CollectiveMember(spec.node, here, deliver)
            self.collectives = member
            self._task = asyncio.create_task(self._join(member, meant), name="member")
        if self._task is not None:
            self._task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Tell of a bug of ours as of everything else that keeps the ranks from meeting."""
        log_bug(task, "the ranks cannot meet")
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(self.scope, f"{type(error).__name__}: {error}")

    async def close(self) -> None:
        """End it."""
        self._doors.dismiss(self._secret)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.collectives.close()

    async def _receive(self, hub: CollectiveHub, trouble: str | None) -> None:
        try:
            if trouble is None:
                await self._doors.admit(self._secret, hub)
        except OSError as error:
            trouble = f"the port where the ranks are to meet cannot be used: {error}"
        if trouble is not None:
            self._failed(self.scope, trouble)

    async def _join(self, member: CollectiveMember, meant: Rendezvous | None) -> None:
        if meant is None:
            self._failed(self.scope, "the assignment does not say where the ranks meet")
            return
        try:
            await member.connect(meant.addr, meant.port, self._secret)
        except LinkError as error:
            self._failed(self.scope, str(error))


class Doors:
    """The ports at which others come to this runner's ranks: one for an attempt, and the next one held meanwhile."""

    def __init__(self, addr: str) -> None:
        self._addr = addr
        self._held = HeldPort(addr)
        self._taken: HeldPort | None = None
        self._server: HubServer | None = None

    @property
    def port(self) -> int:
        """The port held for the attempt to come."""
        return self._held.number

    def take(self, port: int | None) -> str | None:
        """Take the port where the ranks are told to meet, and hold another; return why that cannot be, if so."""
        if self._taken is not None and self._taken.number == port:
            return None
        if self._taken is not None or self._held.number != port:
            return f"the ranks are to meet at port {port}, and this runner holds {self._held.number}"
        self._taken, self._held = self._held, HeldPort(self._addr)
        return None

    async def admit(self, secret: bytes, hub: CollectiveHub) -> None:
        """Let the other runners come to a hub, at the port taken; `OSError` when nobody can."""
        if self._server is not None:
            self._server.admit(secret, hub)
            return
        self._server = HubServer(patient=True)
        self._server.admit(secret, hub)
        sock = self._taken.take() if self._taken is not None else None
        if sock is not None:
            await self._server.listen(sock=sock)

    def dismiss(self, secret: bytes) -> None:
        """Let nobody in for a secret any more."""
        if self._server is not None:
            self._server.dismiss(secret)

    def leave(self) -> Coroutine[object, object, None]:
        """Give up the port of the attempt that is over: at once, with what is left to do to be awaited."""
        server, taken, self._server, self._taken = self._server, self._taken, None, None
        return _left(server, taken)

    def close(self) -> None:
        """Hold no port any more."""
        self._held.close()


async def _left(server: HubServer | None, taken: HeldPort | None) -> None:
    if server is not None:
        await server.close()
    if taken is not None:
        taken.close()


class Meetings:
    """The meetings of an attempt on one node: one, or one for each replica group that has ranks here.

    `close_later` is given what is left to do of meetings that are over.
    """

    def __init__(
        self,
        spec: RunnerSpec,
        answered: Answered,
        failed: Failed,
        close_later: Callable[[Coroutine[object, object, None]], None],
    ) -> None:
        self._spec = spec
        self._answered = answered
        self._failed = failed
        self._close_later = close_later
        self._doors = Doors(spec.addr)
        self._open: dict[int | None, Meeting] = {}
        self.attempt = 0

    @property
    def port(self) -> int:
        """The port held for the attempt to come."""
        return self._doors.port

    def of(self, assignment: Assignment, rank: int) -> Meeting:
        """Return where a rank meets others; what is left of an earlier attempt, or life of its group, is ended."""
        scope = scope_of(assignment, rank)
        if scope.attempt != self.attempt:
            self.end()
            self.attempt = scope.attempt
        found = self._open.get(scope.group)
        if found is None or found.scope != scope:
            if found is not None:
                self._close_later(found.close())
            # What is left to say of one attempt is no answer to the ranks of the next.
            deliver = partial(self._answered, scope)
            found = self._open[scope.group] = Meeting(self._spec, assignment, scope, self._doors, deliver, self._failed)
        return found

    def end(self) -> None:
        """End all that is open."""
        for meeting in self._open.values():
            self._close_later(meeting.close())
        self._open.clear()
        self._close_later(self._doors.leave())

    def close(self) -> None:
        """Hold no port any more; what was ended is awaited by whom it was given to."""
        self._doors.close()
