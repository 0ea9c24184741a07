"""What really happened, noted by the simulator as it happens: what the promises are held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from runfold.controller.ports import Delivered
from runfold.events.entry import hash_entry
from runfold.events.facts import AnyFact, RankReturned, Reported

if TYPE_CHECKING:
    from runfold.workers.facts import Facts
    from support.sim.runner import SimRunner

HarmKind = Literal["rank", "runner", "notice", "starved", "late", "cut", "silent"]


@dataclass(frozen=True)
class Harm:
    """Something that may rightly end an attempt. `attempt`: the present one of whoever was harmed."""

    run: str
    kind: HarmKind
    attempt: int
    node: str = ""
    rank: int | None = None


@dataclass(frozen=True)
class Death:
    """A controller dies, with runs that are not over."""

    at_s: float
    controller: str
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Said:
    """A fact or a request that the broker acknowledged to hold."""

    identity: str
    message: Delivered


class _Link(msgspec.Struct, frozen=True):
    n: int


@dataclass
class Truth:
    """See the module. `violations` are broken promises that show the moment they are broken."""

    now: Callable[[], float]
    violations: list[str] = field(default_factory=list)
    happened: list[str] = field(default_factory=list)
    harms: list[Harm] = field(default_factory=list)
    asked: dict[str, set[str]] = field(default_factory=dict)
    """Requests that the inbox holds, by run."""
    inboxes_lost: set[str] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    logs: dict[str, list[bytes]] = field(default_factory=dict)
    stood_s: dict[str, list[float]] = field(default_factory=dict)
    """When each entry was stored."""
    deaths: list[Death] = field(default_factory=list)
    assignments: dict[str, list[bytes]] = field(default_factory=dict)
    inboxes: dict[str, list[Said]] = field(default_factory=dict)
    said_facts: dict[str, list[AnyFact]] = field(default_factory=dict)
    reported: dict[tuple[str, int, int, int], int] = field(default_factory=dict)
    returned: dict[tuple[str, int, int, int], int] = field(default_factory=dict)
    sources: list[Facts] = field(default_factory=list)
    runners: list[SimRunner] = field(default_factory=list)
    entered: dict[tuple[str, int, int, int], int] = field(default_factory=dict)
    """How often user code was entered, by run, attempt and rank."""
    _heads: dict[str, set[tuple[int, str]]] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Keep a line for people."""
        self.happened.append(f"{self.now():9.3f} {text}")

    def broken(self, promise: str) -> None:
        """Note a broken promise."""
        self.violations.append(f"at {self.now():.3f} s: {promise}")
        self.note(f"BROKEN: {promise}")

    # --- the log

    def stands(self, run: str, data: bytes) -> None:
        """Note an entry that was stored."""
        self.logs.setdefault(run, []).append(data)
        self.stood_s.setdefault(run, []).append(self.now())

    def shown(self, run: str, data: bytes) -> None:
        """Note an assignment that was stored."""
        self.assignments.setdefault(run, []).append(data)

    def heard(self, boot: str, run: str, data: bytes) -> None:
        """Note that a process knows an entry to stand: by its acknowledgement, or because it read it."""
        try:
            link = msgspec.json.decode(data, type=_Link)
        except msgspec.DecodeError:
            return
        self._heads.setdefault(f"{boot} {run}", set()).add((link.n, hash_entry(data)))

    def leaves(self, boot: str, run: str, what: str, n: int, digest: str | None) -> None:
        """Check that what leaves a process was made of an entry that it knows to stand (promise 2)."""
        known = self._heads.get(f"{boot} {run}", set())
        if (n, digest) not in known and (digest is not None or n not in {number for number, _ in known}):
            self.broken(f"{boot} let out {what} of {run} made of entry {n}, which was not acknowledged to it")

    # --- what was said

    def said(self, run: str, identity: str, message: Delivered) -> None:
        """Note a message that the inbox holds."""
        self.inboxes.setdefault(run, []).append(Said(identity, message))

    def inbox_lost(self, run: str) -> None:
        """Note that what the inbox held is gone."""
        self.inboxes_lost.add(run)
        self.note(f"the inbox of {run} is lost")

    def fact(self, run: str, fact: AnyFact) -> None:
        """Note what a source said, as it said it."""
        if isinstance(fact, Reported):
            self.reported[run, fact.attempt, fact.rank, fact.life] = fact.index + 1
        elif isinstance(fact, RankReturned):
            self.returned[run, fact.attempt, fact.rank, fact.life] = fact.reports

    def enters(self, run: str, attempt: int, rank: int, life: int) -> None:
        """Note that user code is entered: once an attempt, a rank and a life."""
        key = (run, attempt, rank, life)
        self.entered[key] = self.entered.get(key, 0) + 1

    def harm(self, harm: Harm) -> None:
        """Note something that may rightly end an attempt."""
        self.harms.append(harm)
        self.note(f"harm: {harm.kind} {harm.run} attempt {harm.attempt} {harm.node} {harm.rank}")
