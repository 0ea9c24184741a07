"""What the runners of one attempt say to each other over TCP, and how they know each other.

The hub and each member prove that they hold the attempt's secret, which is never sent: both answer the other's
nonce with an HMAC.

```text
hub → member   Challenge            member → hub   Claim
hub → member   Welcome              member → hub   Arrive*, Leave*          hub → member   Deliver*
```
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import socket
from typing import Final

import msgspec

from runfold.workers.errors import LinkError
from runfold.workers.frames import frame, read_frame
from runfold.workers.limits import LINK_FRAME_MAX_BYTES, REPLY_FRAME_MAX_BYTES
from runfold.workers.link import Collect, Collected, Refused

NONCE_BYTES: Final = 32


class Challenge(msgspec.Struct, frozen=True, tag="challenge"):
    """Prove that you hold the secret."""

    nonce: bytes


class Claim(msgspec.Struct, frozen=True, tag="claim"):
    """A runner and the ranks it speaks for, with its proof and its own challenge."""

    node: str
    ranks: tuple[int, ...]
    nonce: bytes
    proof: bytes


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The hub's own proof."""

    proof: bytes


class Arrive(msgspec.Struct, frozen=True, tag="arrive"):
    """A rank of the member takes part in a collective."""

    rank: int
    request: Collect


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """A rank of the member takes part in none any more."""

    rank: int
    how: str


class Deliver(msgspec.Struct, frozen=True, tag="deliver"):
    """The answer for these ranks of the member."""

    ranks: tuple[int, ...]
    answer: Collected | Refused


ToHub = Claim | Arrive | Leave
ToMember = Challenge | Welcome | Deliver
_TO_HUB: Final[msgspec.msgpack.Decoder[ToHub]] = msgspec.msgpack.Decoder(ToHub)
_TO_MEMBER: Final[msgspec.msgpack.Decoder[ToMember]] = msgspec.msgpack.Decoder(ToMember)


def member_proof(secret: bytes, nonce: bytes, node: str, ranks: tuple[int, ...]) -> bytes:
    """Return what a member answers to the hub's nonce; its claim cannot be changed on the way."""
    claim = msgspec.msgpack.encode(("member", nonce, node, ranks))
    return hmac.digest(secret, claim, hashlib.sha256)


def hub_proof(secret: bytes, nonce: bytes) -> bytes:
    """Return what the hub answers to a member's nonce."""
    return hmac.digest(secret, msgspec.msgpack.encode(("hub", nonce)), hashlib.sha256)


def same(left: bytes, right: bytes) -> bool:
    """Compare proofs without telling by the time it takes how much of them is right."""
    return hmac.compare_digest(left, right)


async def read_at_hub(reader: asyncio.StreamReader, limit_bytes: int = LINK_FRAME_MAX_BYTES) -> ToHub:
    """Return the next message of a member; `LinkError` at the end or for what is no message."""
    try:
        return _TO_HUB.decode(await _read(reader, limit_bytes))
    except msgspec.DecodeError as error:
        raise LinkError(f"what a runner sent is no message: {error}") from None


async def read_at_member(reader: asyncio.StreamReader, limit_bytes: int = REPLY_FRAME_MAX_BYTES) -> ToMember:
    """Return the next message of the hub; `LinkError` at the end or for what is no message."""
    try:
        return _TO_MEMBER.decode(await _read(reader, limit_bytes))
    except msgspec.DecodeError as error:
        raise LinkError(f"what the runner of rank 0 sent is no message: {error}") from None


async def _read(reader: asyncio.StreamReader, limit_bytes: int) -> bytes:
    try:
        return await read_frame(reader, limit_bytes)
    except LinkError:
        raise
    except (asyncio.IncompleteReadError, OSError) as error:
        raise LinkError(f"the connection was closed: {error}") from None


def encode(message: ToHub | ToMember) -> bytes:
    """Return the message as a frame."""
    return frame(msgspec.msgpack.encode(message), REPLY_FRAME_MAX_BYTES)


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """Have the kernel find out within half a minute that the other host has vanished."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with contextlib.suppress(AttributeError, OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
