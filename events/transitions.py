"""Transitions: what the controller decided, in the past tense. Each names its cause and a reason in words."""

from __future__ import annotations

from typing import Literal

import msgspec

from runfold.events.base import Cause, Json, Value, snake_case
from runfold.events.checkpoints import CheckpointState, ValidationWish
from runfold.events.conclusions import Decider
from runfold.events.failures import Budget, ErrorInfo, Failure
from runfold.events.job import Job
from runfold.events.tasks import Task, TaskOutcome

StateName = Literal[
    "initializing",
    "scheduling",
    "rescheduling",
    "running",
    "preempting",
    "restarting",
    "resizing",
    "shutting_down",
    "finished",
    "errored",
    "aborted",
]
EndName = Literal["finished", "errored", "aborted"]


class Transition(Value, frozen=True, kw_only=True, tag_field="kind", tag=snake_case):
    """What every transition says: its cause, and the reason in words a person can act on (never empty)."""

    cause: Cause
    reason: str


class RunAccepted(Transition, frozen=True, kw_only=True):
    """The run exists: its whole resolved job, the job's digest as published, its sequence in JOBS, warnings."""

    job: Job
    digest: str
    jobs_sequence: int
    warnings: tuple[str, ...] = ()


class ControllerChanged(Transition, frozen=True, kw_only=True):
    """A controller took the run over; every older epoch is fenced."""

    epoch: int
    controller: str
    decider: Decider


class StateChanged(Transition, frozen=True, kw_only=True):
    """The run went from one state to another; the fields below are the new state's data, where it has them.

    `kept`: runners wait on the group's sound places until another attempt follows; False: they are to leave after all.
    None: it follows at once, or on other places.
    """

    from_state: StateName = msgspec.field(name="from")
    to_state: StateName = msgspec.field(name="to")
    next: EndName | None = None
    num_workers: int | None = None
    failure: Failure | None = None
    not_before_t: float | None = None
    deadline_t: float | None = None
    nodes: tuple[str, ...] = ()
    kept: bool | None = None


class AttemptStarted(Transition, frozen=True, kw_only=True):
    """A try at running the group begins; `kept` says that places and runners of the attempt before are used.

    For those `vacated` (by number) others are wanted.
    `label_selector` is what a gate said of where all ranks should be, instead of the job's.
    """

    attempt: int
    num_workers: int
    kept: bool = False
    label_selector: dict[str, str] | None = None
    vacated: tuple[int, ...] = ()


class RankLaid(Value, frozen=True, kw_only=True):
    """Who a rank is: its life within the attempt and its place (index into the group's places).

    `slot` is which of the place's slots it has; None: that of its local rank.
    """

    rank: int
    life: int
    place: int
    local_rank: int
    node_rank: int
    slot: int | None = None

    @property
    def its_slot(self) -> int:
        """Which of the place's slots it has."""
        return self.local_rank if self.slot is None else self.slot


class GroupLaidOut(Transition, frozen=True, kw_only=True):
    """Ranks have their places and a meeting point; the group may train.

    `arguments`: what a gate gave the ranks, by name, one value a rank.
    """

    attempt: int
    layout: tuple[RankLaid, ...]
    addr: str
    port: int
    arguments: dict[str, Json] = {}


class FailureDecided(Transition, frozen=True, kw_only=True):
    """What is done about an attempt's failure. `noop` marks it as dealt with; `raise` ends the run.

    `replace`: the `replicas` that failed are replaced, not before `not_before_t`, while the others train on; for the
    places `vacated` (by number) others are wanted.
    """

    decision: Literal["retry", "replace", "raise", "noop"]
    failure: Failure
    budget: Budget | None = None
    spent: int = 0
    limit: int = 0
    others: int = 0
    replicas: tuple[int, ...] = ()
    vacated: tuple[int, ...] = ()
    not_before_t: float | None = None


class ReplicaGroupReplaced(Transition, frozen=True, kw_only=True):
    """A replica group begins again, in another life of its ranks, while the others train on.

    `checkpoint` is the one that it begins from, `first` the index within the attempt of its ranks' first report.
    """

    group: int
    life: int
    layout: tuple[RankLaid, ...]
    checkpoint: str | None = None
    first: int = 0


class FirstCauseRevised(Transition, frozen=True, kw_only=True):
    """Late evidence changed which failure of an attempt counts as the first. Spends nothing."""

    attempt: int
    failure: Failure
    was: Failure


class SourceJoined(Transition, frozen=True, kw_only=True):
    """A source has an incarnation of this run; its facts are numbered from 1 within it."""

    source: str
    boot: str
    incarnation: int


class RequestAccepted(Transition, frozen=True, kw_only=True):
    """A request will be done."""

    id: str
    request: str
    by: str = ""


class RequestRefused(Transition, frozen=True, kw_only=True):
    """A request will not be done; the reason says why."""

    id: str
    request: str
    by: str = ""


class CheckpointCommitted(Transition, frozen=True, kw_only=True):
    """A sealed checkpoint counts from here on."""

    name: str
    index: int
    attempt: int
    manifest_digest: str
    metrics: dict[str, Json] | None = None
    size_bytes: int = 0
    shards: int = 1
    score: float | None = None
    named: bool = False
    validation: ValidationWish | None = None


class CheckpointValidated(Transition, frozen=True, kw_only=True):
    """A validation is over. `metrics` (packed) are what it found; `score` is the checkpoint's from here on."""

    name: str
    outcome: Literal["validated", "failed", "timed_out"]
    metrics: dict[str, Json] | None = None
    score: float | None = None
    error: ErrorInfo | None = None


class FoundCheckpoint(Value, frozen=True, kw_only=True):
    """A committed checkpoint of an earlier run."""

    name: str
    index: int
    attempt: int
    shards: int = 1
    score: float | None = None
    status: CheckpointState = "committed"
    wish: ValidationWish | None = None


class RunContinued(Transition, frozen=True, kw_only=True):
    """The run goes on from what an earlier one left in the storage: its checkpoints, the last of them `checkpoint`.

    `first_index` is the index of this run's first report.
    """

    run: str
    checkpoint: str | None
    first_index: int
    found: tuple[FoundCheckpoint, ...] = ()


class CheckpointsDoubted(Transition, frozen=True, kw_only=True):
    """The ranks' files in these checkpoints may not belong together; they are not resumed from unless asked."""

    names: tuple[str, ...]


class TaskOrdered(Transition, frozen=True, kw_only=True):
    """A runner is to do something beside the group."""

    task: Task


class TaskClosed(Transition, frozen=True, kw_only=True):
    """A task is over, and nothing else says what came of it."""

    task: str
    task_kind: str
    outcome: TaskOutcome
    error: ErrorInfo | None = None


class Warned(Transition, frozen=True, kw_only=True):
    """Something a person should know of; nothing is done about it. `about` names the kind of finding."""

    about: str
    checkpoint: str | None = None
    ranks: tuple[int, ...] = ()


class NodeExcluded(Transition, frozen=True, kw_only=True):
    """Later attempts stay off a node."""

    node: str
    failures: int


class NodeAdmitted(Transition, frozen=True, kw_only=True):
    """A node may be used again."""

    node: str


class ResizePlanned(Transition, frozen=True, kw_only=True):
    """The group is to run at another size once a checkpoint of report `index` or later stands, or at `deadline_t`."""

    num_workers: int
    deadline_t: float
    index: int


class ResizeDropped(Transition, frozen=True, kw_only=True):
    """The group keeps its size after all."""

    num_workers: int


class LogRestored(Transition, frozen=True, kw_only=True):
    """The log was restored from an archive into this generation; whoever has the run next begins above `epoch`."""

    generation: int
    source: str
    epoch: int = 0
    by: str = ""


AnyTransition = (
    RunAccepted
    | ControllerChanged
    | StateChanged
    | AttemptStarted
    | GroupLaidOut
    | FailureDecided
    | ReplicaGroupReplaced
    | FirstCauseRevised
    | SourceJoined
    | RequestAccepted
    | RequestRefused
    | CheckpointCommitted
    | CheckpointValidated
    | RunContinued
    | CheckpointsDoubted
    | TaskOrdered
    | TaskClosed
    | Warned
    | NodeExcluded
    | NodeAdmitted
    | ResizePlanned
    | ResizeDropped
    | LogRestored
)
