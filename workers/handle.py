"""A rank as its runner holds it: process, link and output together, with one answer to what became of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from typing import Final, Literal, Protocol

import msgspec

from runfold.workers.channel import RankChannel
from runfold.workers.errors import LinkError, SpawnError
from runfold.workers.limits import LINK_DRAIN_TIMEOUT_S
from runfold.workers.link import Failed, FromRank, FromRunner, Imported, Returned, Start
from runfold.workers.processes import Exit, is_dead
from runfold.workers.spawner import Child, Spawner
from runfold.workers.stackdump import STACK_DUMP_SIGNAL
from runfold.workers.stacks import Look, StacksFile, look

Stream = Literal["stdout", "stderr"]
_STREAMS: Final[tuple[Stream, ...]] = ("stdout", "stderr")
OnMessage = Callable[[FromRank], None]
OnOutput = Callable[[Stream, bytes], None]


class RankEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a rank: how its process ended, what it had told before, what was wrong with its link."""

    exit: Exit
    result: Returned | Failed | None
    link_error: LinkError | None


class _Output(asyncio.Protocol):
    """Reads one of the two output pipes to its end."""

    def __init__(self, stream: Stream, on_output: OnOutput) -> None:
        self._stream: Stream = stream
        self._on_output = on_output
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._on_output(self._stream, data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the base class's signature
        if not self.closed.done():
            self.closed.set_result(None)


class RankSource(Protocol):
    """Where rank processes come from, when it is not a fork server."""

    async def rank_for(self, start: Start) -> RankHandle:
        """Return a process that waits for this start; raise `SpawnError` when there can be none."""
        ...

    def hear(self, start: Start, message: Imported | Failed) -> None:
        """Hear what a rank says that bears on the next ones."""
        ...


class RankHandle:
    """One life of a rank. Made by `start`; `wait` returns when process, link and output are all over.

    `fork` makes one that waits to be told who it is, which `begin` does: nothing is read from it before.
    """

    def __init__(self) -> None:
        self._child: Child | None = None
        self._channel: RankChannel | None = None
        self._stacks: StacksFile | None = None
        self._outputs: list[tuple[asyncio.ReadTransport, _Output]] = []
        self._results: list[Returned | Failed] = []
        self._on_message: OnMessage = _unheard
        self._on_output: OnOutput = _unread

    @classmethod
    async def start(
        cls, source: Spawner | RankSource, start: Start, *, on_message: OnMessage, on_output: OnOutput
    ) -> RankHandle:
        """Fork the rank and tell it who it is; `SpawnError` when that cannot be.

        `on_message` is called for each message of the rank in order, `on_output` for each piece of its output.
        """
        if isinstance(source, Spawner):
            handle = await cls.fork(source)
            handle.begin(start, on_message, on_output)
            return handle

        def take(message: FromRank) -> None:
            if isinstance(message, Imported | Failed):
                source.hear(start, message)
            on_message(message)

        handle = await source.rank_for(start)
        handle.begin(start, take, on_output)
        return handle

    @classmethod
    async def fork(cls, spawner: Spawner, spec: bytes = b"") -> RankHandle:
        """Fork a process that waits for its start."""
        handle = cls()
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            near, far = socket.socketpair()
            theirs.callback(far.close)
            handle._channel = channel = await RankChannel.open(near, handle._take)
            ours.callback(channel.close)
            channel.pause()
            handle._stacks = stacks = StacksFile()
            ours.callback(stacks.close)
            fds = {"link": far.fileno(), "stacks": stacks.fd}
            for stream in _STREAMS:
                transport, output, fds[stream] = await _open_output(stream, handle._read)
                transport.pause_reading()
                theirs.callback(os.close, fds[stream])
                ours.callback(transport.close)
                handle._outputs.append((transport, output))
            handle._child = await spawner.spawn(spec, fds)
            ours.pop_all()
        return handle

    def begin(self, start: Start, on_message: OnMessage, on_output: OnOutput) -> None:
        """Tell it who it is, and listen."""
        self._on_message, self._on_output = on_message, on_output
        self.resume()
        for transport, _ in self._outputs:
            transport.resume_reading()
        self.send(start)

    def _take(self, message: FromRank) -> None:
        if isinstance(message, Returned | Failed):
            self._results.append(message)
        self._on_message(message)

    def _read(self, stream: Stream, data: bytes) -> None:
        self._on_output(stream, data)

    @property
    def _process(self) -> Child:
        if self._child is None:
            raise SpawnError("this rank was never forked")
        return self._child

    @property
    def _link(self) -> RankChannel:
        if self._channel is None:
            raise SpawnError("this rank was never forked")
        return self._channel

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def started(self) -> float | None:
        """When its process started, as told by `processes.start_time`."""
        return self._process.started

    @property
    def ended(self) -> Exit | None:
        """How its process ended; None while it lives."""
        return self._process.ended

    @property
    def result(self) -> Returned | Failed | None:
        """What the rank has told about its end so far."""
        return self._results[0] if self._results else None

    def send(self, message: FromRunner) -> None:
        """Send a message to the rank; dropped when its link is over."""
        self._link.send(message)

    def pause(self) -> None:
        """Read no more messages, so that the rank's `report` waits, until `resume`."""
        self._link.pause()

    def resume(self) -> None:
        """Read messages again."""
        self._link.resume()

    async def kill(self, number: int = signal.SIGKILL, *, group: bool = True) -> bool:
        """Signal the rank, and with `group` all that it started; False when it has ended."""
        return await self._process.kill(number, group=group)

    async def look(self) -> Look:
        """See what its process does, and have it write its stacks."""
        if self._stacks is None or self._process.ended is not None:
            return Look(doing="gone", trouble="its process has ended")
        return await look(self.pid, lambda: self.kill(STACK_DUMP_SIGNAL, group=False), self._stacks)

    async def gone(self) -> None:
        """Wait until its process has ended."""
        await self._process.wait()

    async def wait(self) -> RankEnd:
        """Wait until the rank is over: its process ended, all it had said and printed handed on.

        A rank that closes or corrupts its link before it has told how it ended is killed.
        """
        link_error = await self._watch_link()
        ended = await self._process.wait()
        self._link.resume()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINK_DRAIN_TIMEOUT_S):
                await self._link.ended()
                for _, output in self._outputs:
                    await asyncio.shield(output.closed)
        self.close()
        return RankEnd(exit=ended, result=self.result, link_error=link_error)

    async def _watch_link(self) -> LinkError | None:
        link = asyncio.ensure_future(self._link.ended())
        process = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait([link, process], return_when=asyncio.FIRST_COMPLETED)
            if process.done() or self.result is not None:
                return None
            # An ordinary end closes the link an instant before the process is gone.
            error = link.result()
            if error is None:
                await asyncio.wait([process], timeout=LINK_DRAIN_TIMEOUT_S)
                if process.done() or is_dead(self.pid):
                    return None  # its fork server has yet to say how it ended
                error = LinkError("the rank closed its link, by which it reports, and went on")
            with contextlib.suppress(SpawnError):
                await self.kill()
            return error
        finally:
            link.cancel()
            process.cancel()

    def close(self) -> None:
        """Stop listening. The process is not touched: that is what `kill` is for."""
        self._link.close()
        if self._stacks is not None:
            self._stacks.close()
            self._stacks = None
        for transport, _ in self._outputs:
            transport.close()


def _unheard(message: FromRank) -> None:
    """Nothing is read before it has begun."""


def _unread(stream: Stream, data: bytes) -> None:
    """As above."""


async def _open_output(stream: Stream, on_output: OnOutput) -> tuple[asyncio.ReadTransport, _Output, int]:
    """Return the reading end of a new pipe, on the event loop, and the descriptor of its writing end."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    loop = asyncio.get_running_loop()
    transport, output = await loop.connect_read_pipe(lambda: _Output(stream, on_output), os.fdopen(reading, "rb", 0))
    return transport, output, writing
