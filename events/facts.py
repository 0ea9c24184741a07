"""Facts: what a source saw, in the past tense. A source numbers its facts 1, 2, 3, … within its incarnation."""

from __future__ import annotations

from typing import Literal

import msgspec

from runfold.events.base import Document, Json, Origin, Value, snake_case
from runfold.events.checkpoints import ValidationWish
from runfold.events.failures import ErrorInfo
from runfold.events.stacks import RankSeen
from runfold.events.tasks import TaskOutcome


class Fact(Value, frozen=True, kw_only=True, tag_field="kind", tag=snake_case):
    """What every fact says: who, which incarnation and number, of which attempt.

    `clock_s` is the source's own monotonic clock when it happened; `from` is filled in by the controller that folds it.
    """

    source: str
    incarnation: int
    number: int
    attempt: int
    clock_s: float = 0.0
    origin: Origin | None = msgspec.field(default=None, name="from")


class PlaceOffer(Value, frozen=True, kw_only=True):
    """So many slots on a node."""

    node: str
    slots: int


class PoolFact(Fact, frozen=True, kw_only=True):
    """What only the supervisor of the run's pool can say."""


class RankFact(Fact, frozen=True, kw_only=True):
    """What is said of one rank, in one of its lives."""

    rank: int
    life: int


# --- by the supervisor -------------------------------------------------------------------------------------------


class Queued(PoolFact, frozen=True, kw_only=True):
    """The group waits for room, or for one place: runs ahead of it, slots free and slots needed.

    `contested`: while it keeps its other places, others wait that could use them, or all could be placed elsewhere.
    `hopeless`: no node that is there could have it, and all could be placed now.
    """

    ahead: int
    free: int
    needed: int
    contested: bool = False
    hopeless: bool = False


class Placed(PoolFact, frozen=True, kw_only=True):
    """The whole group has its places; runners are being started on them."""

    places: tuple[PlaceOffer, ...]


class PlacementFailed(PoolFact, frozen=True, kw_only=True):
    """No places: `busy` may change, `never` cannot. `late` and `failed`: given up for this attempt, not for the next.

    `late`: what has to be had in `timeouts.start_timeout_s` was not (TPU slices); `failed`: something else went wrong.
    """

    verdict: Literal["busy", "never", "late", "failed"]
    reason: str


class RunnerLost(PoolFact, frozen=True, kw_only=True):
    """A runner is gone: its exit code or signal, or neither when nobody could know.

    `taken`: the pool had its places no more, and ended it.
    """

    node: str
    taken: bool = False
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""


class CapacityChanged(PoolFact, frozen=True, kw_only=True):
    """What the pool has for this run, as of now: said to runs that asked to be told (`Assignment.room_for`).

    `slots`: CPUs of each node, free or not. `whole`: how many ranks of the run's shape each node could hold were it
    empty. `room`: how many each could hold now; what the run holds itself counts as free, what others hold or have a
    better claim to does not. `fits`: the largest group that could be placed now, with everything regarded that the job
    asks of its places. Nodes that the run stays off count in all of it. `slices`: how many TPU slices of the job's
    kind are whole, and free or the run's own; those with a host that the run stays off do not count, nor do their other
    hosts in `whole`. None: nobody counted it.
    """

    slots: dict[str, int]
    whole: dict[str, int] | None = None
    room: dict[str, int] | None = None
    fits: int | None = None
    slices: int | None = None


class PreemptionNoticed(Fact, frozen=True, kw_only=True):
    """Nodes will be taken back in `within_s` seconds (None: unknown)."""

    nodes: tuple[str, ...]
    within_s: float | None = None
    reason: str = ""


class PreemptionCancelled(Fact, frozen=True, kw_only=True):
    """The nodes stay after all."""

    nodes: tuple[str, ...]


class PlaceReplaced(PoolFact, frozen=True, kw_only=True):
    """Another place stands for one of the group's that was given up, by its number; a runner is being started on it.

    `left`: the entry by which it was given up, if that is known.
    """

    place: int
    offer: PlaceOffer
    left: int | None = None


class Released(PoolFact, frozen=True, kw_only=True):
    """The run's group holds nothing any more: no process, no port, no place."""


# --- by a runner -------------------------------------------------------------------------------------------------


class RunnerReady(Fact, frozen=True, kw_only=True):
    """A runner can start ranks: the port it holds, and its clock's offset to the host of rank 0's runner's pool.

    `gpus`: the ids of the GPUs of each of its slots; `pod`: the TPU pod that it is in, `pod_host` the number of its
    host there. `spare_port`: another port that it holds, for whatever the ranks' backend needs.
    """

    node: str
    addr: str
    port: int
    clock_offset_s: float = 0.0
    gpus: tuple[tuple[str, ...], ...] = ()
    pod: str = ""
    spare_port: int = 0
    pod_host: int = 0


class RankStarted(RankFact, frozen=True, kw_only=True):
    """A rank has loaded its entry point and is about to enter it.

    `next_port` is the port its runner holds for the rendezvous of the next attempt on the same places.
    """

    pid: int
    next_port: int | None = None
    digest: str | None = None
    versions: dict[str, str] = {}


class Reported(RankFact, frozen=True, kw_only=True):
    """A rank's report: its index from 0, its step if it named one, metrics (packed) where they are recorded.

    `checkpoint` is the directory that its files are in; `named`: the user chose it. `upload_error`: there should have
    been one. `passing`: another rank has files in this report, and a checkpoint waits for this one. `unread`: it is the
    rank's first since it was given a checkpoint to begin from, which it never asked for.
    `validation`: the checkpoint is to be validated. `cursor`: where the rank is in its data.
    `spent_s`: seconds since the rank's report before that went into waiting: for `data`, `checkpoint_save`,
    `checkpoint_restore`.
    """

    index: int
    step: int | None = None
    metrics: dict[str, Json] | None = None
    checkpoint: str | None = None
    named: bool = False
    unread: bool = False
    upload_error: str | None = None
    passing: bool = False
    spent_s: dict[str, float] = {}
    validation: ValidationWish | None = None
    cursor: str | None = None

    @property
    def decisive(self) -> bool:
        """Whether it may change a decision: then it does not wait for others to go with."""
        return self.checkpoint is not None or self.passing or self.unread


class RankReturned(RankFact, frozen=True, kw_only=True):
    """A rank's function returned: its value (packed) or the digest of the blob that holds it; how many reports."""

    reports: int
    value: Json = None
    blob: str | None = None
    unread: bool = False


class RankFailed(RankFact, frozen=True, kw_only=True):
    """A rank's function raised, or could not be loaded (`error.kind`)."""

    error: ErrorInfo


class RankExited(RankFact, frozen=True, kw_only=True):
    """A rank's process is gone: exit code or signal, peak memory, last lines of its output.

    `asked` says that runfold itself ended it (a restart, a stop); `returned` that its function had returned. `where` is
    the innermost frame of its user's code when it crashed, if its last words tell it.
    """

    exit_code: int | None = None
    signal: int | None = None
    peak_memory_bytes: int | None = None
    last_lines: str = ""
    asked: bool = False
    returned: bool = False
    oom: bool = False
    where: str | None = None


class CheckpointSealed(Fact, frozen=True, kw_only=True):
    """The manifest of a checkpoint stands: its directory's name, the manifest's digest, its size."""

    name: str
    index: int
    manifest_digest: str
    size_bytes: int
    metrics: dict[str, Json] | None = None


class TaskEnded(Fact, frozen=True, kw_only=True):
    """A task beside the group (validation, hook, seal, delete) is over. A seal that is done says `CheckpointSealed`.

    `seen` is what a look at ranks has found.
    """

    task: str
    outcome: TaskOutcome
    value: Json = None
    error: ErrorInfo | None = None
    seen: tuple[RankSeen, ...] = ()


OtherFact = (
    Queued
    | Placed
    | PlaceReplaced
    | PlacementFailed
    | RunnerLost
    | CapacityChanged
    | PreemptionNoticed
    | PreemptionCancelled
    | Released
    | RunnerReady
    | CheckpointSealed
    | TaskEnded
)
"""Facts that are not of a rank."""
AnyRankFact = RankStarted | RankReturned | RankFailed | RankExited
"""What is said of one rank, save its reports."""
AnyFact = OtherFact | AnyRankFact | Reported


class FactMessage(Document, frozen=True, kw_only=True):
    """What a source publishes: consecutive facts of one incarnation, in order, at most 256 KiB."""

    v: int = 1
    kind: Literal["facts"] = "facts"
    run: str
    facts: tuple[AnyFact, ...]
