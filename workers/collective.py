"""The collectives of one attempt between runners: one hub in the runner of rank 0, a member in each other one.

Ranks of the hub's own node and members are served by one mechanism; values are bytes to it. Hub and member offer
the same three calls (`Collectives`), so that a runner need not know which it has:

```python
hub = CollectiveHub(world_size, deliver)          # rank 0's runner; `await hub.listen(secret)` if there are others
member = CollectiveMember(node, ranks, deliver)   # another runner; `await member.connect(addr, port, secret)`
collectives.arrive(rank, request)                 # the rank sent `Collect`; or START, once it has loaded
collectives.leave(rank, "has returned")           # the rank returned, failed or ended
```

`deliver(rank, answer)` is called for each answer to a rank of this node; the one to START is number 0.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from typing import Final, Protocol

from runfold.workers import hubwire
from runfold.workers.errors import LinkError
from runfold.workers.hubserver import HubServer
from runfold.workers.hubwire import Arrive, Challenge, Claim, Deliver, Leave, Welcome, keep_alive
from runfold.workers.limits import (
    HANDSHAKE_FRAME_MAX_BYTES,
    HUB_CONNECT_RETRY_S,
    HUB_CONNECT_TIMEOUT_S,
    HUB_HANDSHAKE_TIMEOUT_S,
)
from runfold.workers.link import Collect, Collected, Refused
from runfold.workers.matching import Matcher, Outcome

START: Final = Collect(0, "start", None, None)
"""What a runner enters for a rank that has loaded: its answer means that all places are ready."""
Deliverer = Callable[[int, Collected | Refused], None]


class Collectives(Protocol):
    """What a runner does for its ranks, at the hub or far from it."""

    def arrive(self, rank: int, request: Collect) -> None:
        """A rank takes part in a collective."""

    def leave(self, rank: int, how: str) -> None:
        """A rank takes part in none any more; `how` completes "rank 1 …"."""

    async def close(self) -> None:
        """End all connections."""


class CollectiveHub:
    """The collectives' one meeting point, of so many ranks from `first` on."""

    def __init__(self, world_size: int, deliver: Deliverer, first: int = 0) -> None:
        self._matcher = Matcher(world_size, first)
        self._deliver = deliver
        self._timer: asyncio.TimerHandle | None = None
        self._server: HubServer | None = None
        self._members: dict[int, asyncio.StreamWriter] = {}

    async def listen(
        self, secret: bytes, host: str = "127.0.0.1", port: int = 0, *, sock: socket.socket | None = None
    ) -> int:
        """Take in the other runners of the attempt, on `sock` if a port was held; return the port."""
        self._server = HubServer()
        self._server.admit(secret, self)
        return await self._server.listen(host, port, sock=sock)

    def arrive(self, rank: int, request: Collect) -> None:
        """A rank takes part in a collective."""
        self._apply(self._matcher.arrive(rank, request, asyncio.get_running_loop().time()))

    def leave(self, rank: int, how: str) -> None:
        """A rank takes part in none any more."""
        self._apply(self._matcher.leave(rank, how))

    async def close(self) -> None:
        """End the timer and all connections."""
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            await self._server.close()
        for member in set(self._members.values()):
            member.close()

    def _apply(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            by_member: dict[asyncio.StreamWriter, list[int]] = {}
            for rank in outcome.ranks:
                if (member := self._members.get(rank)) is None:
                    self._deliver(rank, outcome.answer)
                else:
                    by_member.setdefault(member, []).append(rank)
            for member, ranks in by_member.items():
                if not member.is_closing():
                    member.write(hubwire.encode(Deliver(tuple(ranks), outcome.answer)))
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (deadline_s := self._matcher.next_deadline_s()) is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._apply(self._matcher.expire(asyncio.get_running_loop().time()))

    # --- other runners

    async def attend(self, claim: Claim, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hear a runner that was let in, until its connection ends."""
        for rank in claim.ranks:
            self._members[rank] = writer
        how = f"was on {claim.node}, to whose runner the connection is lost,"
        try:
            while True:
                match await hubwire.read_at_hub(reader):
                    case Arrive(rank, request) if rank in claim.ranks:
                        self.arrive(rank, request)
                    case Leave(rank, left) if rank in claim.ranks:
                        self.leave(rank, left)
                    case other:
                        how = f"was on {claim.node}, whose runner sent {type(other).__name__} out of place,"
                        raise LinkError(how)
        finally:
            # Closed first: answers to its own ranks, which are lost all together, go nowhere.
            writer.close()
            for rank in claim.ranks:
                if self._members[rank] is writer:
                    self.leave(rank, how)


class CollectiveMember:
    """The collectives of a node, handed on to the hub. Calls made before `connect` is through are kept for it."""

    def __init__(self, node: str, ranks: tuple[int, ...], deliver: Deliverer) -> None:
        self._node = node
        self._ranks = ranks
        self._deliver = deliver
        self._waiting: dict[int, Collect] = {}
        self._unsent: list[bytes] = []
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._lost: str | None = None

    async def connect(self, host: str, port: int, secret: bytes) -> None:
        """Join the hub, trying again for `hub_connect_timeout_s`; `LinkError` when that does not come about."""
        try:
            async with asyncio.timeout(HUB_CONNECT_TIMEOUT_S):
                reader, writer = await self._open(host, port)
        except TimeoutError:
            raise LinkError(
                f"no connection to the runner of rank 0 at {host}:{port} within {HUB_CONNECT_TIMEOUT_S:g} s"
            ) from None
        try:
            async with asyncio.timeout(HUB_HANDSHAKE_TIMEOUT_S):
                await self._introduce(reader, writer, secret)
        except (LinkError, TimeoutError, OSError) as error:
            writer.close()
            raise LinkError(f"the runner of rank 0 at {host}:{port} was reached, but not convinced: {error}") from None
        self._writer = writer
        writer.writelines(self._unsent)
        self._unsent.clear()
        self._reading = asyncio.get_running_loop().create_task(self._read(reader), name="collectives")

    def arrive(self, rank: int, request: Collect) -> None:
        """A rank takes part in a collective."""
        if self._lost is not None:
            self._deliver(rank, Refused(request.number, request.kind, "peer", self._lost))
            return
        self._waiting[rank] = request
        self._send(hubwire.encode(Arrive(rank, request)))

    def leave(self, rank: int, how: str) -> None:
        """A rank takes part in none any more."""
        self._send(hubwire.encode(Leave(rank, how)))

    async def close(self) -> None:
        """End the connection."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        if self._writer is not None:
            self._writer.close()

    async def _open(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while True:
            try:
                return await asyncio.open_connection(host, port)
            except OSError:
                await asyncio.sleep(HUB_CONNECT_RETRY_S)

    async def _introduce(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes) -> None:
        keep_alive(writer)
        challenge = await hubwire.read_at_member(reader, HANDSHAKE_FRAME_MAX_BYTES)
        if not isinstance(challenge, Challenge):
            raise LinkError("it did not begin with a challenge")
        nonce = secrets.token_bytes(hubwire.NONCE_BYTES)
        proof = hubwire.member_proof(secret, challenge.nonce, self._node, self._ranks)
        writer.write(hubwire.encode(Claim(self._node, self._ranks, nonce, proof)))
        welcome = await hubwire.read_at_member(reader, HANDSHAKE_FRAME_MAX_BYTES)
        if not isinstance(welcome, Welcome):
            raise LinkError("it did not welcome this runner")
        if not hubwire.same(welcome.proof, hubwire.hub_proof(secret, nonce)):
            raise LinkError("it does not hold the attempt's secret")

    def _send(self, data: bytes) -> None:
        if self._lost is not None:
            return
        if self._writer is None:
            self._unsent.append(data)
        else:
            self._writer.write(data)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                message = await hubwire.read_at_member(reader)
                if not isinstance(message, Deliver):
                    raise LinkError(f"it sent {type(message).__name__} out of place")
                for rank in message.ranks:
                    self._waiting.pop(rank, None)
                    self._deliver(rank, message.answer)
        except LinkError as error:
            self._lost = f"the connection to the runner of rank 0 is lost: {error}"
            for rank, request in list(self._waiting.items()):
                self._deliver(rank, Refused(request.number, request.kind, "peer", self._lost))
            self._waiting.clear()
