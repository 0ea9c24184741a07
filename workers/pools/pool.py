"""What a supervisor needs of a pool: a book of who gets places, runners started at a place, and word of what comes.

Every pool keeps it: the machine's own (`pools/machine.py`) and a Ray cluster's (`pools/ray`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from runfold.events.assignment import Mark
from runfold.events.base import Value
from runfold.events.facts import PlaceOffer
from runfold.workers.pipe import RunnerSpec
from runfold.workers.places import Place
from runfold.workers.placing import RunnerHere
from runfold.workers.pools.local import Demand, GivenUp, Granted, Waiting
from runfold.workers.pools.room import Room
from runfold.workers.remote import RemoteTasks


class Watched(Protocol):
    """A runner as a supervisor watches it, from the wish to start it to its end.

    `told` is the attempt in which its end was told; `secret` its group's, as far as it is known. Whoever started or
    found it is called when it has ended.
    """

    told: int
    secret: bytes

    @property
    def node(self) -> str:
        """Its node."""
        ...

    @property
    def here(self) -> RunnerHere:
        """What the planner needs to know."""
        ...

    @property
    def pid(self) -> int | None:
        """Its process on its node, once there is one."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it lives, or is being started."""
        ...

    def stop(self, reason: str, grace_s: float, said_by: Mark | None = None) -> None:
        """Tell it to stop; one that does not within `grace_s` and a margin is killed.

        `said_by`: the assignment behind it, which the runner hears first, so that it knows its last tasks.
        """
        ...

    async def wait(self) -> None:
        """Wait until it has ended."""
        ...

    async def let_go(self) -> None:
        """Leave it to the next supervisor: it goes on."""
        ...


class Left(Watched, Protocol):
    """A runner that an earlier supervisor has started."""

    @property
    def place(self) -> Place:
        """Who it is, and what it holds."""
        ...


class Notice(Value, frozen=True, kw_only=True):
    """Nodes that will be taken back in `within_s` seconds (None: unknown); `cancelled`: they stay after all.

    `mates`: those of the same TPU slice, which go with them for a run that has the slice.
    """

    nodes: tuple[str, ...]
    within_s: float | None = None
    reason: str = ""
    cancelled: bool = False
    mates: tuple[str, ...] = ()


class Book(Protocol):
    """Who gets places, whole or not at all, and who waits behind whom.

    The queue is strict: by priority, then by acceptance; nobody overtakes the first that waits.
    """

    def never(self, demand: Demand) -> str | None:
        """Return why a demand can never be met; None if it may be one day."""
        ...

    def ask(self, demand: Demand) -> None:
        """Put a demand into the queue, in place of an earlier one of the same run."""
        ...

    def withdraw(self, run: str) -> None:
        """Take a run out of the queue."""
        ...

    def hold(self, demand: Demand, place: PlaceOffer) -> None:
        """Note that a run holds a place already: an earlier supervisor gave it."""
        ...

    def release(self, run: str) -> None:
        """Give back what a run holds.

        `run` may also be the name of a demand for another place of a group: what the pool reserved under that name goes
        back. A place that it counts as the run's goes back with the run, or by `part` once nothing lives there.
        """
        ...

    def part(self, run: str, node: str) -> None:
        """Give back what a run holds on a node, if the pool can have it back by itself."""
        ...

    def grant(self) -> list[Granted]:
        """Give places to those first in the queue, as far as they go; return who has got them since the last call."""
        ...

    def take_back(self, granted: Granted) -> None:
        """Take places back that were granted and are not taken, and nothing else of what their run holds."""
        ...

    def given_up(self) -> list[GivenUp]:
        """Return whose places were not to be had since the last call: they stand in the queue no more."""
        ...

    def waiting(self) -> dict[str, Waiting]:
        """Return how each run of the queue waits."""
        ...

    def room(self, demand: Demand) -> Room:
        """Return what there is room for now, of a group with this demand's shape and at most its size.

        What its run holds counts as free; what others hold or have a better claim to does not. Nodes that the run
        stays off count: which these are it knows before the pool does.
        """
        ...

    def overdrawn(self) -> list[tuple[str, str]]:
        """Return which run must leave which node, since the pool has not what it gave: none where that cannot be."""
        ...

    def resize(self, node: str | None, slots: int) -> str | None:
        """Let the pool, or one node, have so many slots from now on; return why not, if so."""
        ...

    @property
    def free(self) -> int:
        """Whole CPUs free."""
        ...

    @property
    def nodes(self) -> dict[str, int]:
        """Whole CPUs of each node, free or not."""
        ...


class Pool(Protocol):
    """A book, and the runners on its nodes. `settled_s`: until then runners of an earlier supervisor may turn up."""

    @property
    def book(self) -> Book:
        """Who gets places."""
        ...

    @property
    def settled_s(self) -> float:
        """When (on the monotonic clock) it is certain what an earlier supervisor has left."""
        ...

    @property
    def remote(self) -> RemoteTasks | None:
        """Where tasks are done that hold something of the pool; None: beside the supervisor, on its machine."""
        ...

    def attend(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` whenever something is to be looked at: places to grant, a notice, a runner found."""
        ...

    async def serve(self) -> None:
        """Do what the pool does by itself, until cancelled."""
        ...

    def start(self, spec: RunnerSpec, on_end: Callable[[], None]) -> Watched:
        """Start a runner on the node that `spec` names, where its run holds a place."""
        ...

    def find(self, knows: Callable[[Place], bool], on_end: Callable[[], None]) -> list[Left]:
        """Return the runners of earlier supervisors that are not known yet; watched from here on."""
        ...

    def is_here(self, node: str) -> bool:
        """Whether a node is on this supervisor's machine, and goes when that is taken back."""
        ...

    def notices(self) -> list[Notice]:
        """Return what was heard of nodes that go or stay, since the last call."""
        ...
