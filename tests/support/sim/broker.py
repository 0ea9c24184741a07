"""The broker: what is stored there survives it. It dies, is slow, fails, and runs out of room."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from runfold.controller.ports import Delivered, Unavailable
from runfold.events.limits import JOBS_ACK_WAIT_S
from runfold.events.log import AppendResult, LogFull
from support.memory_ports import MemoryBoard, MemoryRun, MemoryWorld
from support.sim.net import BROKER, Follower, Net
from support.sim.truth import Truth

T = TypeVar("T")
TURNS_MAX: Final = 8
DISK_S: Final = (0.0005, 0.003)


def done(work: Coroutine[object, None, T]) -> T:
    """Return what a coroutine returns that waits for nothing but its turn."""
    for _ in range(TURNS_MAX):
        try:
            work.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
    raise RuntimeError(f"{work} waits for something")


@dataclass
class QueuedJob:
    """A published job; given to somebody until `busy_until_s`."""

    sequence: int
    data: bytes
    busy_until_s: float = 0.0


@dataclass(frozen=True)
class Shown:
    """An assignment on the way to a follower."""

    sequence: int
    run: str
    data: bytes


@dataclass
class Disk:
    """How the store's disk is: how slow, how often it fails, whether there is room."""

    slow_s: float = 0.0
    fails: float = 0.0


@dataclass
class Jobs:
    """The queue of jobs and what was refused of it."""

    waiting: dict[int, QueuedJob] = field(default_factory=dict)
    refused: dict[int, bytes] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    last: int = 0


class Broker:
    """Everything that is stored, and who follows what of it."""

    def __init__(self, net: Net, truth: Truth, dice: random.Random) -> None:
        self.memory = MemoryWorld()
        self.jobs = Jobs()
        self.cells: dict[str, tuple[str | None, int]] = {}
        """Who owns which run: a key's text, None for a free one, and the sequence of its last change."""
        self.disk = Disk()
        self.clock_s = 1.0
        """How wrong its time of day is."""
        self._net, self._truth, self._dice = net, truth, dice
        self._inboxes: dict[str, list[Follower[Delivered]]] = {}
        self._watchers: list[tuple[str | None, Follower[Shown]]] = []
        self._listeners: list[tuple[list[str], Callable[[str, bytes], None]]] = []
        self.deaths_count = 0
        self._shown: dict[str, Shown] = {}
        self._shown_count = self._cells_count = 0
        self._unsynced: dict[str, tuple[bytes | None, int]] = {}

    # --- its own troubles

    def die(self) -> None:
        """Be gone: leases are, and what was not yet on the disk; everybody's connection breaks."""
        self._net.down.add(BROKER)
        self.deaths_count += 1
        self.memory.leases.forget()
        for run, (data, sequence) in self._unsynced.items():
            status = self.memory.of(run).status
            status.data, status.sequence = data, sequence
        self._unsynced.clear()
        self.disturb()

    def come_back(self) -> None:
        """Be there again, with room on the disk as far as there is."""
        self._net.down.discard(BROKER)

    def disturb(self) -> None:
        """Break what followers have open, as any loss of a connection does."""
        for follower in self._followers():
            if not self._net.reaches(follower.who.name):
                follower.disturb()

    @property
    def full(self) -> bool:
        """Whether nothing more can be stored."""
        return self.memory.store.full

    @full.setter
    def full(self, full: bool) -> None:
        self.memory.store.full = full

    def disk_s(self) -> float:
        """Draw how long it takes until something is on the disk."""
        return self._dice.uniform(*DISK_S) + (self._dice.uniform(0.0, self.disk.slow_s) if self.disk.slow_s else 0.0)

    def store(self, act: Callable[[], T]) -> T:
        """Store something, if there is room and the disk does as it is told."""
        if self.full:
            raise Unavailable("no room")
        if self._net.happens(self.disk.fails):
            raise Unavailable("the disk failed")
        return act()

    # --- what is stored

    def of(self, run: str) -> MemoryRun:
        """Return what is stored of a run."""
        return self.memory.of(run)

    def append(self, run: str, data: bytes, n: int, digest: str, prev: str, last_sequence: int) -> AppendResult:
        """Append to a log."""
        if self._net.happens(self.disk.fails):
            raise Unavailable("the disk failed")
        if self.full:
            raise LogFull("no room")
        store = self.memory.store
        store.now_s = asyncio.get_running_loop().time() + self.clock_s
        log = self.of(run).log.log
        before = len(log.messages)
        answer = done(log.append(data, n=n, digest=digest, prev=prev, last_sequence=last_sequence))
        if len(log.messages) > before:
            self._truth.stands(run, data)
        return answer

    def show(self, run: str, data: bytes, last_sequence: int) -> int | None:
        """Replace a run's assignment."""
        sequence = self.store(lambda: done(self.of(run).assignment.write(data, last_sequence)))
        if sequence is not None:
            self._shown_count += 1
            self._shown[run] = Shown(self._shown_count, run, data)
            self._truth.shown(run, data)
            for wanted, follower in list(self._watchers):
                if wanted in (None, run):
                    follower.news()
        return sequence

    def tell_status(self, run: str, data: bytes, last_sequence: int) -> int | None:
        """Replace a run's status: it is on the disk a little later."""
        board: MemoryBoard = self.of(run).status
        before = (board.data, board.sequence)
        sequence = self.store(lambda: done(board.write(data, last_sequence)))
        if sequence is not None:
            self._unsynced[run] = before
            asyncio.get_running_loop().call_later(self._dice.uniform(0.1, 2.0), self._unsynced.pop, run, None)
        return sequence

    def owners(self) -> dict[str, str]:
        """Return the keys that are not free."""
        return {key: text for key, (text, _) in self.cells.items() if text is not None}

    def put(self, key: str, text: str | None, expected: int) -> bool:
        """Change a key whose last change was `expected` (0: it never had one)."""

        def change() -> bool:
            _, sequence = self.cells.get(key, (None, 0))
            if sequence != expected:
                return False
            self._cells_count += 1
            self.cells[key] = (text, self._cells_count)
            return True

        return self.store(change)

    def publish(self, run: str, subject: str, data: bytes) -> int:
        """Store a fact or a request."""
        inbox = self.of(run).inbox
        sequence = self.store(lambda: inbox.publish(subject, data))
        self._truth.said(run, inbox.identity, inbox.stored[-1])
        for follower in list(self._inboxes.get(run, ())):
            follower.news()
        return sequence

    def lose_inbox(self, run: str) -> None:
        """Make a run's inbox anew, with nothing in it."""
        self.of(run).inbox.forget()
        self._truth.inbox_lost(run)
        for follower in list(self._inboxes.get(run, ())):
            follower.disturb()

    def submit(self, run: str, data: bytes) -> int:
        """Put a job into the queue; one that was published before is not put there again."""

        def put() -> int:
            if run not in self.jobs.ids:
                self.jobs.ids.add(run)
                self.jobs.last += 1
                self.jobs.waiting[self.jobs.last] = QueuedJob(self.jobs.last, data)
            return self.jobs.last

        return self.store(put)

    def pull(self) -> QueuedJob | None:
        """Give out a job that nobody has."""
        now_s = asyncio.get_running_loop().time()
        for job in self.jobs.waiting.values():
            if job.busy_until_s <= now_s:
                job.busy_until_s = now_s + JOBS_ACK_WAIT_S
                return job
        return None

    # --- who follows what

    def follow_inbox(self, run: str, follower: Follower[Delivered]) -> None:
        """Tell a follower of what comes."""
        self._inboxes.setdefault(run, []).append(follower)

    def look_inbox(self, run: str) -> Callable[[int], tuple[str, int, Iterable[Delivered]]]:
        """Return how a follower looks at a run's inbox."""
        inbox = self.of(run).inbox

        def look(after: int) -> tuple[str, int, Iterable[Delivered]]:
            return inbox.identity, inbox.last_sequence, [one for one in inbox.stored if one.sequence > after]

        return look

    def watch(self, run: str | None, follower: Follower[Shown]) -> None:
        """Tell a follower of the assignments of a run, or of all."""
        self._watchers.append((run, follower))

    def look_shown(self, run: str | None) -> Callable[[int], tuple[str, int, Iterable[Shown]]]:
        """Return how a follower looks at the assignments: the last of each run."""

        def look(after: int) -> tuple[str, int, Iterable[Shown]]:
            mine = [one for one in self._shown.values() if one.sequence > after and run in (None, one.run)]
            return "assignments", self._shown_count, sorted(mine, key=lambda one: one.sequence)

        return look

    def listen(self, subjects: str, hear: Callable[[str, bytes], None]) -> Callable[[], None]:
        """Let somebody hear what is said on some subjects and not kept; return what ends it."""
        listener = (subjects.split("."), hear)
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def say(self, subject: str, data: bytes) -> None:
        """Let those hear it who listen now."""
        tokens = subject.split(".")
        for wanted, hear in list(self._listeners):
            if len(wanted) == len(tokens) and all(one in ("*", two) for one, two in zip(wanted, tokens, strict=True)):
                hear(subject, data)

    def _followers(self) -> Iterable[Follower[Delivered] | Follower[Shown]]:
        for followers in self._inboxes.values():
            yield from list(followers)
        for _, follower in list(self._watchers):
            yield follower

    def forget_closed(self) -> None:
        """Let go of followers whose process is gone."""
        for run, followers in self._inboxes.items():
            self._inboxes[run] = [one for one in followers if one.open]
        self._watchers = [(run, one) for run, one in self._watchers if one.open]
