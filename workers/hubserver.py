"""The port at which the other runners of an attempt come to the hubs in this one: each is let in by who knows it.

A hub's members hold its secret; who comes proves that to one of the hubs that meet here, and belongs to that.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from functools import partial
from typing import Protocol

from runfold.workers import hubwire
from runfold.workers.errors import LinkError
from runfold.workers.hubwire import Challenge, Claim, Welcome, keep_alive
from runfold.workers.limits import HANDSHAKE_FRAME_MAX_BYTES, HUB_HANDSHAKE_TIMEOUT_S
from runfold.workers.logs import log_bug


class Hub(Protocol):
    """Whom a runner's ranks meet at."""

    async def attend(self, claim: Claim, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hear a runner that was let in, until its connection ends."""


class HubServer:
    """Opened by `listen`; `admit` and `dismiss` say whose members are let in.

    `patient`: who holds no secret known by now waits for the hub that knows it, as long as a handshake may take.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self._patient = patient
        self._server: asyncio.Server | None = None
        self._hubs: dict[bytes, Hub] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()

    async def listen(self, host: str = "127.0.0.1", port: int = 0, *, sock: socket.socket | None = None) -> int:
        """Take runners in, on `sock` if a port was held; return the port."""
        if sock is not None:
            self._server = await asyncio.start_server(self._come, sock=sock)
        else:
            self._server = await asyncio.start_server(self._come, host, port)
        address: tuple[str, int] = self._server.sockets[0].getsockname()
        return address[1]

    def admit(self, secret: bytes, hub: Hub) -> None:
        """Let in who holds this secret, also those who are here already and wait for somebody to know them."""
        self._hubs[secret] = hub
        self._news.set()
        self._news = asyncio.Event()

    def dismiss(self, secret: bytes) -> None:
        """Let nobody in for this secret any more."""
        self._hubs.pop(secret, None)

    async def close(self) -> None:
        """End all connections."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=HUB_HANDSHAKE_TIMEOUT_S)

    def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: the server's, when it is cancelled, is told of as an exception (Python 3.11).
        task = asyncio.create_task(self._serve(reader, writer), name="hear a runner")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(partial(log_bug, what="a connection of another runner"))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HUB_HANDSHAKE_TIMEOUT_S):
                hub, claim = await self._let_in(reader, writer)
            await hub.attend(claim, reader, writer)
        except (LinkError, TimeoutError, OSError):
            # Nobody of ours, or somebody who does not hold a secret.
            pass
        finally:
            writer.close()

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Hub, Claim]:
        keep_alive(writer)
        nonce = secrets.token_bytes(hubwire.NONCE_BYTES)
        writer.write(hubwire.encode(Challenge(nonce)))
        claim = await hubwire.read_at_hub(reader, HANDSHAKE_FRAME_MAX_BYTES)
        if not isinstance(claim, Claim):
            raise LinkError("a connection did not begin with a claim")
        secret = await self._known(nonce, claim)
        writer.write(hubwire.encode(Welcome(hubwire.hub_proof(secret, claim.nonce))))
        return self._hubs[secret], claim

    async def _known(self, nonce: bytes, claim: Claim) -> bytes:
        """Return the secret that somebody holds; the hub that knows it may be about to be made."""
        while True:
            for secret in self._hubs:
                if hubwire.same(claim.proof, hubwire.member_proof(secret, nonce, claim.node, claim.ranks)):
                    return secret
            if not self._patient:
                raise LinkError("a connection does not hold the attempt's secret")
            await self._news.wait()
