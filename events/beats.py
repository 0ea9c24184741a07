"""Beats: signs of life once a second over core NATS. Never logged; a conclusion from their absence is."""

from __future__ import annotations

from typing import Literal

from runfold.events.base import Document, Value

RankPhase = Literal["waiting", "starting", "running", "returned", "failed", "exited"]


class RankBeat(Value, frozen=True, kw_only=True):
    """One rank at a glance. `paused`: it said that it will make no report for a while, and is not to be missed."""

    rank: int
    phase: RankPhase
    index: int = -1
    step: int | None = None
    memory_bytes: int | None = None
    cpu: float | None = None
    paused: bool = False


class RunnerBeat(Document, frozen=True, kw_only=True):
    """A runner's beat; `number` is its highest fact number, so that a missing fact shows.

    `unsaid_s`: for how long the broker has not taken what it has to say. `incarnation` is 0 until it has one.
    """

    v: int = 1
    kind: Literal["runner_beat"] = "runner_beat"
    run: str
    source: str
    incarnation: int
    attempt: int
    number: int
    clock_s: float
    ranks: tuple[RankBeat, ...] = ()
    unsaid_s: float = 0.0


class PoolBeat(Document, frozen=True, kw_only=True):
    """A supervisor's beat: the nodes it sees with their slots, how many are free, the runs it holds.

    `closed`: nodes that were set to have no slots. `unsaid_s`: of which runs, and for how long, the broker has not
    taken what it has to say.
    """

    v: int = 1
    kind: Literal["pool_beat"] = "pool_beat"
    pool: str
    supervisor: str
    nodes: dict[str, int]
    free: int
    runs: tuple[str, ...] = ()
    unsaid_s: dict[str, float] = {}
    closed: tuple[str, ...] = ()

    @property
    def all_nodes(self) -> dict[str, int]:
        """The slots of every node in the order of their names, 0 of those that were set to have none."""
        return {node: self.nodes.get(node, 0) for node in sorted({*self.nodes, *self.closed})}


class Folded(Document, frozen=True, kw_only=True):
    """What the controller has folded: source → number; at most once a second, over core NATS."""

    v: int = 1
    kind: Literal["folded"] = "folded"
    run: str
    epoch: int
    n: int
    folded: dict[str, int]
