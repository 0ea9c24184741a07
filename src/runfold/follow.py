"""Following a run's log as a client: each entry folded as it comes, and told to whoever looks on."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from runfold.errors import NotAcceptedError
from runfold.events.beats import RunnerBeat
from runfold.events.entry import GENESIS, Entry, Head, NotAnEntry, decode_entry, hash_entry
from runfold.events.fold import fold
from runfold.events.nats.generations import open_log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from runfold.client import Client
    from runfold.events.nats.client import RawMessage
    from runfold.events.nats.consume import Delivered
    from runfold.events.state import RunState


@dataclass(frozen=True, slots=True)
class Told:
    """An entry, the state after it, and its place in the chain."""

    entry: Entry
    state: RunState
    head: Head


class Onlooker(Protocol):
    """Who is told of a run, in the event loop; raises nothing but `BrokenPipeError`, when nobody reads on."""

    def entry(self, told: Told) -> None:
        """Hear of an entry."""
        ...

    def beat(self, beat: RunnerBeat) -> None:
        """Hear a runner's beat."""
        ...


class Following:
    """A run's log, folded entry by entry. `state` is the newest; None before entry 0 has come.

    With the digest of a job, the run of any other job that has the same id is not followed: ours will be refused.
    """

    def __init__(self, run: str, onlookers: tuple[Onlooker, ...], digest: str | None = None) -> None:
        self.run = run
        self._digest = digest
        self.state: RunState | None = None
        self.head: Head | None = None
        self.ended = asyncio.Event()
        self._onlookers = onlookers
        self._unheard: BrokenPipeError | None = None

    def take(self, message: Delivered) -> None:
        """Fold a message of the log; what is not the next link is no entry and is left out."""
        try:
            entry = decode_entry(message.data)
        except NotAnEntry:
            return
        expected = (0, GENESIS) if self.head is None else (self.head.n + 1, self.head.hash)
        if entry.run != self.run or (entry.n, entry.prev) != expected:
            return
        state = fold(self.state, entry)
        if self._digest is not None and state.digest != self._digest:
            return
        self.head = Head(n=entry.n, hash=hash_entry(message.data))
        self.state = state
        told = Told(entry, self.state, self.head)
        try:
            for onlooker in self._onlookers:
                onlooker.entry(told)
        except BrokenPipeError as error:
            self._onlookers, self._unheard = (), error
        if self.state.terminal or self._unheard is not None:
            self.ended.set()

    async def take_beat(self, message: RawMessage) -> None:
        """Pass a beat on."""
        try:
            beat = msgspec.json.decode(message.data, type=RunnerBeat)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        for onlooker in self._onlookers:
            onlooker.beat(beat)

    async def wait_ended(self) -> RunState:
        """Wait for the terminal entry and return the state after it.

        Raises:
            BrokenPipeError: nobody reads what an onlooker prints.
        """
        await self.ended.wait()
        if self._unheard is not None:
            raise self._unheard
        if self.state is None:
            raise NotAcceptedError(f"{self.run} ended without an entry")
        return self.state


@asynccontextmanager
async def follow_run(
    client: Client, run: str, *onlookers: Onlooker, digest: str | None = None
) -> AsyncIterator[Following]:
    """Follow a run from its first entry for as long as the block lasts; the run may come to exist meanwhile.

    `digest` is that of the job that was submitted, where it is known.
    """
    following = Following(run, onlookers, digest)
    subjects = client.names.subjects
    beats = await client.connection.subscribe(subjects.beats(run), following.take_beat)
    try:
        log = await open_log(client.connection, run)
        async with client.following(client.names.log, [log.subject], following.take):
            yield following
    finally:
        await client.connection.unsubscribe(beats)
