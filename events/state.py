"""A run's state: what its log, folded, says.

`phase` is the state of the machine, a tagged union whose variants carry their data. Everything is frozen;
a dict here is never changed in place. The state does not grow with the log.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from runfold.events.base import Cause, Json, Value, snake_case
from runfold.events.beats import RankPhase
from runfold.events.checkpoints import Checkpoints
from runfold.events.conclusions import Decider
from runfold.events.elastic import Elastic
from runfold.events.failures import Budget, Failure
from runfold.events.hooks import Hooks
from runfold.events.job import Job
from runfold.events.marks import (
    Answered,
    Committed,
    Ending,
    Fired,
    LateEvidence,
    Notice,
    PendingRequest,
    Repeats,
    TakeOver,
)
from runfold.events.replicas import Replica
from runfold.events.stacks import RankSeen
from runfold.events.tasks import OpenTask
from runfold.events.transitions import EndName, RankLaid

# --- the phases


class Phase(Value, frozen=True, kw_only=True, tag_field="kind", tag=snake_case):
    """What every phase says: since when (run's clock), why, brought about by what."""

    terminal: ClassVar[bool] = False

    since_t: float
    reason: str
    cause: Cause


class Initializing(Phase, frozen=True, kw_only=True):
    """Always the first: accepted, nothing asked for yet."""


class Scheduling(Phase, frozen=True, kw_only=True):
    """A group is being placed, started and introduced. `deadline_t` is set once its places stand."""

    num_workers: int
    deadline_t: float | None = None


class Rescheduling(Phase, frozen=True, kw_only=True):
    """The group did not start; another attempt follows, not before `not_before_t`. `kept`: see `StateChanged`."""

    failure: Failure
    not_before_t: float
    kept: bool | None = None


class Running(Phase, frozen=True, kw_only=True):
    """All ranks are in user code."""


class Preempting(Phase, frozen=True, kw_only=True):
    """Nodes will be taken back: ranks finish or save until the deadline.

    `after`: the index, through all attempts, of the last report before it; a checkpoint of a later one is in answer.
    """

    nodes: tuple[str, ...]
    deadline_t: float
    after: int = -1


class Restarting(Phase, frozen=True, kw_only=True):
    """An attempt failed while running; another follows, not before `not_before_t`. `kept`: see `StateChanged`."""

    failure: Failure
    not_before_t: float
    kept: bool | None = None


class Resizing(Phase, frozen=True, kw_only=True):
    """The group is being stopped to be started at another size."""

    num_workers: int


class ShuttingDown(Phase, frozen=True, kw_only=True):
    """The group is being released; then `next`. At `deadline_t` teardown has failed."""

    next: EndName
    deadline_t: float
    failure: Failure | None = None


class Finished(Phase, frozen=True, kw_only=True):
    """Terminal: every rank returned."""

    terminal: ClassVar[bool] = True


class Errored(Phase, frozen=True, kw_only=True):
    """Terminal: the run failed; None when only the teardown did."""

    terminal: ClassVar[bool] = True

    failure: Failure | None = None


class Aborted(Phase, frozen=True, kw_only=True):
    """Terminal: somebody asked for it."""

    terminal: ClassVar[bool] = True


AnyPhase = (
    Initializing
    | Scheduling
    | Rescheduling
    | Running
    | Preempting
    | Restarting
    | Resizing
    | ShuttingDown
    | Finished
    | Errored
    | Aborted
)
OVER: Final = frozenset[RankPhase](("returned", "failed", "exited"))
"""Phases in which a rank does nothing any more."""

# --- the parts -----------------------------------------------------------------------------------------------------


class Spent(Value, frozen=True, kw_only=True):
    """A budget: how many failures of its kind were spent, of how many (−1: unlimited)."""

    spent: int = 0
    limit: int = 0


class Source(Value, frozen=True, kw_only=True):
    """A source: the process that has the incarnation, and the last number folded of it.

    `replaced`: boots that had older incarnations, newest last, so that a late copy of their `Join` is known for one.
    `silence_s`: for how long it is said to be silent, None while it is heard.
    """

    boot: str
    incarnation: int
    folded: int = 0
    missing: bool = False
    replaced: tuple[str, ...] = ()
    silence_s: float | None = None


class Ready(Value, frozen=True, kw_only=True):
    """What a runner said when it was ready: address and held port, and its clock's offset to the run's clock.

    A time `c` on the runner's clock is `c + offset_s` on the run's. `port` is the one held for the next layout.
    `measured_s` is the offset that the runner measured to its pool's clock; it makes runners comparable.
    `gpus`: the ids of each slot's GPUs, where there are any; `pod`: the TPU pod that the place is in, `pod_host` the
    number of its host there.
    """

    addr: str
    port: int
    offset_s: float
    measured_s: float = 0.0
    gpus: tuple[tuple[str, ...], ...] = ()
    pod: str = ""
    spare_port: int = 0
    pod_host: int = 0


class Place(Value, frozen=True, kw_only=True):
    """A place of the group. `source` is the name its runner speaks under; `lost`: its runner is gone.

    `door`: the port at which replica groups meet here in this attempt, once they are laid out. `left`: the entry
    by which it was given up, and another is wanted instead.
    """

    node: str
    slots: int
    source: str
    ready: Ready | None = None
    lost: bool = False
    door: int = 0
    left: int | None = None

    @property
    def healthy(self) -> bool:
        """Whether its runner can start ranks."""
        return self.ready is not None and not self.lost and self.left is None


class RankExit(Value, frozen=True, kw_only=True):
    """How a rank's process ended."""

    exit_code: int | None = None
    signal: int | None = None
    peak_memory_bytes: int | None = None
    asked: bool = False


class Rank(Value, frozen=True, kw_only=True):
    """A rank of the present attempt, spoken for by `source`. `index` is its last report's, −1 before the first.

    `started`: it has entered user code, whatever became of it since. `named`: how many of its reports had a directory
    that the user named.
    """

    rank: int
    life: int
    node: str
    source: str
    phase: RankPhase = "waiting"
    started: bool = False
    index: int = -1
    step: int | None = None
    exit: RankExit | None = None
    named: int = 0


class Stuck(Value, frozen=True, kw_only=True):
    """Ranks that are said to make no progress. Without a limit it is only shown. `looked`: stacks were asked for."""

    ranks: tuple[int, ...]
    quiet_s: float
    limit_s: float | None
    cause: Cause
    looked: bool = False


class Group(Value, frozen=True, kw_only=True):
    """The group of the present attempt.

    `places` is empty until the supervisor said `Placed`, `layout` until every runner is ready; `early` holds what
    runners said of themselves whose place is still to be heard of. `failures` holds what failed and is
    not dealt with, in order of first cause, at most `ERRORS_INLINE_MAX_COUNT`; `failed` counts all of it. `handled`:
    the attempt's end is decided, later failures are late evidence. `released`: the supervisor said that nothing is
    held any more. `news` is the input that last moved the group on. `progress` counts rank 0's reports. `start` is the
    checkpoint that the ranks begin from; while `waits`, it is not certain yet and nobody enters user code. `seen` is
    what ranks were doing when they were last looked at, of so many `looks`. `replicas`: the replica groups that have
    failed in this attempt; of those that are down, ranks are no part of the layout. `lighthouse`: where torchft's is.
    """

    attempt: int
    num_workers: int
    places: tuple[Place, ...] = ()
    layout: tuple[RankLaid, ...] = ()
    addr: str = ""
    port: int = 0
    ranks: tuple[Rank, ...] = ()
    failures: tuple[Failure, ...] = ()
    failed: int = 0
    handled: bool = False
    waiting: str | None = None
    never: str | None = None
    released: bool = False
    early: dict[str, Ready] = {}
    stuck: Stuck | None = None
    looks: int = 0
    seen: tuple[RankSeen, ...] = ()
    news: Cause | None = None
    progress: int = 0
    start: str | None = None
    waits: bool = False
    label_selector: dict[str, str] | None = None
    arguments: dict[str, Json] = {}
    kept: bool = False
    replicas: tuple[Replica, ...] = ()
    lighthouse: str = ""

    @property
    def over(self) -> bool:
        """Whether every rank has come to its end."""
        return bool(self.ranks) and all(rank.phase in OVER for rank in self.ranks)


class Dropped(Value, frozen=True, kw_only=True):
    """Voices that changed nothing, counted: of ended attempts or older incarnations; of strangers; unreadable."""

    stale: int = 0
    foreign: int = 0
    malformed: int = 0


class Restoring(Value, frozen=True, kw_only=True):
    """The log was copied into another generation, which was not yet said."""

    generation: int
    source: str
    epoch: int
    by: str
    cause: Cause


class Restored(Value, frozen=True, kw_only=True):
    """The log was restored into a generation, by entry `n`, whose epoch is above all that was shown before."""

    generation: int
    epoch: int
    n: int


class Unborn(Value, frozen=True, kw_only=True):
    """The state before entry 0: what `decide` is given to accept a job. `job` is resolved."""

    job: Job
    digest: str
    jobs_sequence: int


class RunState(Value, frozen=True, kw_only=True):
    """The whole state of a run after entry `n`, at `t` seconds of its clock.

    `failure` is the first cause of the last failed attempt, decided at `failure_t`; `others` failed beside it.
    `homes`: the node of each rank in the last layout. `startup_streak`: start-up failures since ranks last
    reported, returned or failed otherwise. `told`: warned of.
    `away`: nodes that were taken back; later groups stay off them until they are admitted or have come back.
    """

    run: str
    job: Job
    digest: str
    jobs_sequence: int
    n: int
    t: float
    phase: AnyPhase
    epoch: int
    controller: str
    decider: Decider
    accepted_at: str = ""
    warnings: tuple[str, ...] = ()
    taking_over: TakeOver | None = None
    restoring: Restoring | None = None
    restored: Restored | None = None
    attempt: int = 0
    group: Group | None = None
    budgets: dict[Budget, Spent] = {}
    startup_streak: int = 0
    failure: Failure | None = None
    failure_t: float = 0.0
    others: tuple[Failure, ...] = ()
    repeats: Repeats | None = None
    homes: tuple[str, ...] = ()
    sources: dict[str, Source] = {}
    cursor: tuple[str, int] | None = None
    pending: tuple[PendingRequest, ...] = ()
    answered: tuple[Answered, ...] = ()
    ending: Ending | None = None
    notice: Notice | None = None
    away: tuple[str, ...] = ()
    fired: tuple[Fired, ...] = ()
    capacity: dict[str, int] | None = None
    excluded: tuple[str, ...] = ()
    platform_failures: dict[str, int] = {}
    wanted_workers: int | None = None
    elastic: Elastic = Elastic()
    metrics: dict[str, Json] | None = None
    reports: int = 0
    return_value: Json = None
    return_blob: str | None = None
    checkpoint: Committed | None = None
    checkpoints: Checkpoints = Checkpoints()
    tasks: tuple[OpenTask, ...] = ()
    hooks: Hooks = Hooks()
    told: tuple[str, ...] = ()
    late: tuple[LateEvidence, ...] = ()
    dropped: Dropped = Dropped()

    @property
    def terminal(self) -> bool:
        """Whether the run is over: nothing changes it any more."""
        return self.phase.terminal

    @property
    def supervisor(self) -> str:
        """The name under which the supervisor of the run's pool speaks."""
        return f"pool-{self.job.pool}"

    @property
    def held(self) -> bool:
        """Whether the pool may hold something for the run: a process, a port, a place."""
        return self.group is not None and not self.group.released and self.supervisor in self.sources


AnyState = Unborn | RunState
Verdict = Literal["folded", "repeat", "gap", "stale", "foreign"]
"""What became of a fact: see `observe`."""
