"""Following a run's log as a client: each entry folded as it comes, and told to whoever looks on."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from runfold.errors import BrokerAwayError, NotAcceptedError
from runfold.events.beats import RunnerBeat
from runfold.events.entry import GENESIS, Entry, Head, NotAnEntry, decode_entry, hash_entry
from runfold.events.fold import fold
from runfold.events.nats.errors import BrokerAway
from runfold.events.nats.generations import open_log
from runfold.events.status import Status
from runfold.events.transitions import LogRestored, RunAccepted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

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
    """Who is told of a run, in the event loop; raises nothing but `OSError`, when what it prints cannot be written."""

    def entry(self, told: Told) -> None:
        """Hear of an entry."""
        ...

    def beat(self, beat: RunnerBeat) -> None:
        """Hear a runner's beat."""
        ...


@dataclass(slots=True)
class _Chain:
    """A generation of the log, folded as far as its messages link."""

    state: RunState | None = None
    head: Head | None = None

    def folded(self, entry: Entry, data: bytes) -> bool:
        """Fold the next link; whether it was."""
        expected = (0, GENESIS) if self.head is None else (self.head.n + 1, self.head.hash)
        if (entry.n, entry.prev) != expected:
            return False
        self.state = fold(self.state, entry)
        self.head = Head(n=entry.n, hash=hash_entry(data))
        return True


class Following:
    """A run's log, folded entry by entry. `state` is the newest; None before entry 0 has come.

    With the digest of a job, the run of any other job that has the same id is not followed: ours will be refused.
    A log that is restored meanwhile is followed in its new generation, once that is said to be whole.
    """

    def __init__(
        self, run: str, onlookers: tuple[Onlooker, ...], digest: str | None = None, generation: int = 1
    ) -> None:
        self.run = run
        self._digest = digest
        self._generation = generation
        self._chains: dict[int, _Chain] = {generation: _Chain()}
        self.ended = asyncio.Event()
        self._onlookers = onlookers
        self._failed: OSError | None = None

    def take(self, message: Delivered) -> None:
        """Fold a message of the log; what is not the next link is no entry and is left out."""
        try:
            entry = decode_entry(message.data)
        except NotAnEntry:
            return
        generation = _generation_of(message.subject)
        if entry.run != self.run or generation < self._generation or not self._is_ours(entry):
            return
        chain = self._chains.setdefault(generation, _Chain())
        if not chain.folded(entry, message.data):
            return
        if generation > self._generation:
            if not any(isinstance(item, LogRestored) and item.generation == generation for item in entry.transitions):
                return
            self._generation, self._chains = generation, {generation: chain}
        self._tell(entry)

    @property
    def state(self) -> RunState | None:
        """The state after the newest entry."""
        return self._chains[self._generation].state

    @property
    def head(self) -> Head | None:
        """The newest entry's place in the chain."""
        return self._chains[self._generation].head

    def _is_ours(self, entry: Entry) -> bool:
        if self._digest is None or entry.n > 0:
            return True
        return any(isinstance(item, RunAccepted) and item.digest == self._digest for item in entry.transitions)

    def _tell(self, entry: Entry) -> None:
        if self.state is None or self.head is None:
            return
        told = Told(entry, self.state, self.head)
        try:
            for onlooker in self._onlookers:
                onlooker.entry(told)
        except OSError as error:
            self.fail(error)
        finally:
            # Whatever an onlooker did: nothing comes after this entry.
            if self.state.terminal:
                self.ended.set()

    def fail(self, error: OSError) -> None:
        """Tell nobody anything more; who waits for the end gets the error."""
        self._onlookers, self._failed = (), self._failed or error
        self.ended.set()

    async def take_beat(self, message: RawMessage) -> None:
        """Pass a beat on."""
        try:
            beat = msgspec.json.decode(message.data, type=RunnerBeat)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        try:
            for onlooker in self._onlookers:
                onlooker.beat(beat)
        except OSError as error:
            self.fail(error)

    async def wait_ended(self) -> RunState:
        """Wait for the terminal entry and return the state after it.

        Raises:
            OSError: what an onlooker prints cannot be written; `BrokenPipeError` when nobody reads it.
            BrokerAwayError: the broker of a service that runs was away for too long.
        """
        await self.ended.wait()
        if self._failed is not None:
            raise self._failed
        if self.state is None:
            raise NotAcceptedError(f"{self.run} ended without an entry")
        return self.state


def _generation_of(subject: str) -> int:
    last = subject.rpartition(".")[2]
    return int(last) if last.isdecimal() else 0


@asynccontextmanager
async def quarantine_told(client: Client, run: str, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Say when a run's log is found damaged, and when it goes on, for as long as the block lasts."""
    marked = False

    def take(message: Delivered) -> None:
        nonlocal marked
        try:
            status = msgspec.json.decode(message.data, type=Status)
        except msgspec.DecodeError:
            return
        if status.quarantined and not marked:
            say(
                f"{run} is quarantined: {status.quarantined}\nIts group goes on; nothing is decided for it until "
                f"`runfold restore {run} --from ARCHIVE`"
            )
        elif marked and not status.quarantined:
            say(f"{run}: its log was restored, it goes on")
        marked = status.quarantined is not None

    bucket = client.names.status_bucket
    stream, key = client.names.stream_of(bucket), client.names.key_subject(bucket, run)
    async with client.following(stream, [key], take, last_per_subject=True):
        yield


@asynccontextmanager
async def follow_run(
    client: Client, run: str, *onlookers: Onlooker, digest: str | None = None
) -> AsyncIterator[Following]:
    """Follow a run from its first entry for as long as the block lasts; the run may come to exist meanwhile.

    Where the broker is started again it goes on from where it was. `digest` is that of the job that was submitted, if
    it is known.
    """
    log = await open_log(client.connection, run)
    following = Following(run, onlookers, digest, log.generation)
    subjects = client.names.subjects
    beats = await client.connection.subscribe(subjects.beats(run), following.take_beat)
    try:
        async with client.following(client.names.log, [subjects.logs(run)], following.take):
            patience = asyncio.ensure_future(_until_away_for_long(client, following))
            try:
                yield following
            finally:
                patience.cancel()
                await asyncio.gather(patience, return_exceptions=True)
    finally:
        await client.connection.unsubscribe(beats)


async def _until_away_for_long(client: Client, following: Following) -> None:
    if client.patience is not None:
        try:
            await client.patience.watch(client.connection)
        except BrokerAway as error:
            following.fail(BrokerAwayError(str(error)))
        except OSError as error:  # whoever is to be told of the wait has gone
            following.fail(error)
