"""The assignment: what a run's group, and the tasks beside it, should be doing now. Last value wins."""

from __future__ import annotations

from typing import Literal

from runfold.events.base import Document, Json, Value
from runfold.events.config import (
    BackendConfig,
    CheckpointConfig,
    HooksConfig,
    PlacementStrategy,
    Timeouts,
    ValidationSpec,
)
from runfold.events.pools import LOCAL_POOL
from runfold.events.slices import Slice
from runfold.events.tasks import Task
from runfold.events.transitions import RankLaid

Want = Literal["place", "train", "stop", "gone"]
Mark = tuple[int, int, int]
"""Which assignment of a run: epoch, entry, and how often it was forced. A greater one counts."""


class PlaceWanted(Value, frozen=True, kw_only=True):
    """A place of the group: node and slots; its runner's source name and incarnation once joined.

    `addr` and `port`: where replica groups meet that have their first rank there. `gpus`: the ids of each slot's GPUs.
    `left`: the entry by which the group left it, and wants another instead.
    """

    node: str
    slots: int
    source: str
    incarnation: int | None = None
    addr: str = ""
    port: int = 0
    gpus: tuple[tuple[str, ...], ...] = ()
    left: int | None = None


class SourceGiven(Value, frozen=True, kw_only=True):
    """An incarnation handed out: to the process that called itself `boot`."""

    source: str
    boot: str
    incarnation: int


class Rendezvous(Value, frozen=True, kw_only=True):
    """Where the ranks meet: held by the runner of rank 0."""

    addr: str
    port: int


class NodesTaken(Value, frozen=True, kw_only=True):
    """Nodes of the group that will be taken back, with the ranks on each; when, in Unix milliseconds."""

    nodes: dict[str, tuple[int, ...]]
    deadline_ms: int | None = None


class Work(Value, frozen=True, kw_only=True):
    """What the ranks run; equal for all of them. `config` is packed.

    `checkpoint` is the one to begin from, `first_index` the index of the first report. `waits`: neither is certain
    yet, so nobody enters user code. `wanted`: the request that asks the ranks for a checkpoint, until there is one.
    `arguments`: what a gate gave the ranks, by name, a value each. `taken`: what the ranks are told of nodes that go.
    """

    entrypoint: str
    config: dict[str, Json] = {}
    env: dict[str, str] = {}
    secret_env: tuple[str, ...] = ()
    working_dir: str | None = None
    name: str = ""
    storage_path: str | None = None
    metrics_ranks: Literal["zero", "all"] = "zero"
    backend: BackendConfig = BackendConfig()
    timeouts: Timeouts = Timeouts()
    checkpoint: str | None = None
    storage_name: str = ""
    storage_options: dict[str, Json] = {}
    storage_filesystem: str | None = None
    checkpointing: CheckpointConfig = CheckpointConfig()
    first_index: int = 0
    waits: bool = False
    wanted: str | None = None
    validation: ValidationSpec | None = None
    hooks: HooksConfig = HooksConfig()
    datasets: str | None = None
    warm_restarts: bool = True
    arguments: dict[str, Json] = {}
    taken: NodesTaken | None = None


class ReplicaGiven(Value, frozen=True, kw_only=True):
    """A replica group in a later life than its first: where its ranks begin.

    `checkpoint` is the one to begin from, `first` the index within the attempt of their first report.
    """

    group: int
    life: int
    checkpoint: str | None = None
    first: int = 0


class StopOrder(Value, frozen=True, kw_only=True):
    """How to stop: why, SIGTERM-to-SIGKILL patience in seconds, and when (run's clock) patience is over."""

    reason: str
    grace_s: float
    deadline_t: float


class Assignment(Document, frozen=True, kw_only=True):
    """What a run wants of its pool and runners. Readers order by (epoch, n, hash, forced) and ignore what is not newer.

    `kept`: the places are those of the attempt before. `room_for`: the run wants to be told how many of its ranks, up
    to so many, the pool has room for (`CapacityChanged`); 0: it does not. `replica_group_size`: so many ranks each
    are a replica group; `replicas` are those that were replaced. `lighthouse`: where torchft's is. `slice`: the kind of
    TPU slice that the ranks come in.
    """

    v: int = 1
    kind: Literal["assignment"] = "assignment"
    run: str
    epoch: int
    n: int
    hash: str
    attempt: int
    want: Want
    num_workers: int = 0
    pool: str = LOCAL_POOL
    priority: int = 0
    accepted_at: str = ""
    resources: dict[str, float] = {}
    placement_strategy: PlacementStrategy = "PACK"
    excluded_nodes: tuple[str, ...] = ()
    label_selector: dict[str, str] | list[dict[str, str]] | None = None
    accelerator_type: str | None = None
    runtime_env: dict[str, Json] = {}
    places: tuple[PlaceWanted, ...] = ()
    kept: bool = False
    layout: tuple[RankLaid, ...] = ()
    rendezvous: Rendezvous | None = None
    job: Work | None = None
    folded: dict[str, int] = {}
    joined: tuple[SourceGiven, ...] = ()
    stop: StopOrder | None = None
    tasks: tuple[Task, ...] = ()
    forced: int = 0
    room_for: int = 0
    replica_group_size: int | None = None
    replicas: tuple[ReplicaGiven, ...] = ()
    lighthouse: str = ""
    slice: Slice | None = None

    @property
    def mark(self) -> Mark:
        """Which one this is."""
        return self.epoch, self.n, self.forced

    def newer_than(self, other: Assignment | None) -> bool:
        """Whether this one counts against `other`, the newest held so far."""
        return other is None or self.mark > other.mark
