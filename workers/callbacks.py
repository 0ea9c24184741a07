"""Callbacks: user code that is told of a run, asked about it, or wrapped around what ranks do.

```text
observers (off the log)   after_controller_start …_state_update …_finish  after_report  after_exception
                          the hooks of worker groups and replica groups
gates (a hook process)    before_controller_…  on_controller_start_worker_group  before_init_train_context,
                          and each observer's hook that is marked with `@gate`
in the ranks              on_report  on_checkpoint_sync  on_checkpoint_transfer (contexts)
                          after_init_train_context  before_worker_shutdown
```

One object may subclass several of these. Objects travel pickled: what one changes of itself stays where that happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Literal, TypeVar, cast, overload

import msgspec

from runfold.events.base import Json
from runfold.events.gates import GATES

OnError = Literal["fail", "warn"]
_MARK: Final = "__runfold_gate__"
F = TypeVar("F", bound=Callable[..., object])


@overload
def gate(hook: F, /) -> F: ...
@overload
def gate(*, on_error: OnError = "fail") -> Callable[[F], F]: ...
def gate(hook: F | None = None, /, *, on_error: OnError = "fail") -> F | Callable[[F], F]:
    """Have the controller ask this hook: what it raises ends the run, or is only told (`warn`)."""

    def mark(function: F) -> F:
        setattr(function, _MARK, on_error)
        return function

    return mark if hook is None else mark(hook)


# --- what hooks are given


class RunContext(msgspec.Struct, frozen=True, kw_only=True):
    """Which run it is."""

    run_id: str
    name: str = ""
    storage_path: str | None = None
    train_loop_config: dict[str, Json] = {}
    num_workers: int = 0


class ControllerState(msgspec.Struct, frozen=True, kw_only=True):
    """A state of the run, by its name in the status; why it is in it, and since when on the run's clock."""

    name: str
    reason: str = ""
    since_t: float = 0.0


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What is about to be decided: `resize` to so many ranks, or `retry` or `raise` after an error."""

    kind: str
    attempt: int = 0
    num_workers: int = 0
    error: str = ""
    rank: int | None = None


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A rank and where it is."""

    world_rank: int
    local_rank: int = 0
    node_rank: int = 0
    node: str = ""


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The group of an attempt, or one of its replica groups: its number, and the life of its ranks that this is of."""

    attempt: int = 0
    num_workers: int = 0
    workers: tuple[WorkerInfo, ...] = ()
    replica: int | None = None
    life: int = 1


class RankError(Exception):
    """What a rank failed with, as it told it: the exception itself never leaves the rank."""

    def __init__(self, error_type: str, message: str, traceback: str | None = None) -> None:
        super().__init__(f"{error_type}: {message}")
        self.error_type = error_type
        self.message = message
        self.traceback = traceback


# --- the classes


class Callback:
    """Base of all callbacks."""


class ControllerCallback(Callback):
    """Told of the run's states, and asked before decisions."""

    def after_controller_start(self, run_context: RunContext) -> None:
        """Hear that the run has begun."""

    def after_controller_state_update(self, previous_state: ControllerState, current_state: ControllerState) -> None:
        """Hear of a change of state."""

    def after_controller_finish(self, result: object) -> None:
        """Hear of the end, with the `Result`."""

    def on_controller_start_worker_group(
        self, *, scaling_config: dict[str, Json], num_workers: int
    ) -> Mapping[str, str] | None:
        """Return a label selector for all ranks of the group about to start, or None. A gate."""
        return None

    def before_controller_execute_resize_decision(self, resize_decision: Decision) -> None:
        """Be asked before a group is started. A gate."""

    def before_controller_execute_failure_decision(self, failure_decision: Decision) -> None:
        """Be asked before a failure is dealt with. A gate."""

    def before_controller_shutdown(self) -> None:
        """Be asked before a run that has finished or failed is over. A gate."""

    def before_controller_abort(self) -> None:
        """Be asked before a run is aborted; it waits a second at most. A gate."""


class ExecutionGroupCallback(Callback):
    """Asked for what each rank is given; told alike of groups and replica groups, unless their own hooks are there."""

    def before_init_train_context(self, workers: Sequence[WorkerInfo]) -> Mapping[str, Sequence[Json]]:
        """Return arguments by name, a value for each worker: `runfold.get_context().get_arguments()`. A gate."""
        return {}

    def after_execution_group_start(self, execution_group: GroupInfo) -> None:
        """Hear that a group is laid out, or a replica group again."""

    def before_execution_group_shutdown(self, execution_group: GroupInfo) -> None:
        """Hear that a group is about to end, or a replica group to be replaced."""


class WorkerGroupCallback(ExecutionGroupCallback):
    """Told of the groups of ranks."""

    def before_worker_group_start(self, worker_group_context: GroupInfo) -> None:
        """Hear that a group is about to be placed."""

    def after_worker_group_start(self, worker_group: GroupInfo) -> None:
        """Hear that a group is laid out."""
        self.after_execution_group_start(worker_group)

    def after_worker_group_training_start(self, worker_group: GroupInfo) -> None:
        """Hear that all ranks are in user code."""

    def after_worker_group_poll_status(self, worker_group_status: object) -> None:
        """Hear that something was heard of the ranks; the group as the log has it (`runfold.events.state.Group`)."""

    def before_worker_group_shutdown(self, worker_group: GroupInfo) -> None:
        """Hear that a group is about to end."""
        self.before_execution_group_shutdown(worker_group)

    def after_worker_group_shutdown(self, worker_group_context: GroupInfo) -> None:
        """Hear that nothing is left of a group."""

    def before_worker_group_abort(self, worker_group_context: GroupInfo) -> None:
        """Hear that a group is about to be aborted."""

    def after_worker_group_abort(self, worker_group_context: GroupInfo) -> None:
        """Hear that nothing is left of a group that was aborted."""


class ReplicaGroupCallback(ExecutionGroupCallback):
    """Told of replica groups that are replaced within an attempt, while the others train on."""

    def after_replica_group_start(self, replica_group: GroupInfo) -> None:
        """Hear that a replica group is laid out again, in another life of its ranks."""
        self.after_execution_group_start(replica_group)

    def before_replica_group_shutdown(self, replica_group: GroupInfo) -> None:
        """Hear that a replica group has failed and is about to be replaced."""
        self.before_execution_group_shutdown(replica_group)


class UserCallback(Callback):
    """Told of reports and errors."""

    def after_report(self, run_context: RunContext, metrics: list[dict[str, Json]], checkpoint: object | None) -> None:
        """Hear of a report that every rank has made: the metrics by rank (empty where not recorded), its checkpoint."""

    def after_exception(self, run_context: RunContext, worker_exceptions: dict[int, Exception]) -> None:
        """Hear of ranks that failed, by rank."""


class WorkerCallback(Callback):
    """Called in each rank, around its life."""

    def after_init_train_context(self) -> None:
        """Be called before the training function; what it raises fails the start for good."""

    def before_worker_shutdown(self) -> None:
        """Be called when the training function is over, or the rank is asked to end."""


class TrainContextCallback(Callback):
    """Wrapped around what a training function does."""

    def on_report(self) -> AbstractContextManager[object]:
        """Return the context of a report."""
        return nullcontext()

    def on_checkpoint_sync(self) -> AbstractContextManager[object]:
        """Return the context in which a report with files takes its place among the rank's reports."""
        return nullcontext()

    def on_checkpoint_transfer(self) -> AbstractContextManager[object]:
        """Return the context in which files are uploaded."""
        return nullcontext()


IN_RANKS: Final = (
    "on_report",
    "on_checkpoint_sync",
    "on_checkpoint_transfer",
    "after_init_train_context",
    "before_worker_shutdown",
)
"""Hooks that are called in the ranks."""

STANDS_IN: Final[Mapping[str, str]] = {
    "after_worker_group_start": "after_execution_group_start",
    "after_replica_group_start": "after_execution_group_start",
    "before_worker_group_shutdown": "before_execution_group_shutdown",
    "before_replica_group_shutdown": "before_execution_group_shutdown",
}
"""Hook → the one that it calls where a callback has not its own."""


# --- what of it a callback has


def has(callback: object, hook: str) -> bool:
    """Whether a callback has a hook of its own, not that of the classes here; or the one that stands in for it."""
    return _named(callback, hook) is not None


def hook_of(callback: object, hook: str) -> Callable[..., object] | None:
    """Return what of a callback's own is called for a hook; None where it has nothing."""
    name = _named(callback, hook)
    return None if name is None else cast("Callable[..., object]", getattr(callback, name))


def _named(callback: object, hook: str) -> str | None:
    """Return what a callback calls its own of a hook: by the hook's name, or by that of what stands in for it.

    A callback whose class is for one kind of groups alone has none of the other kind's hooks.
    """
    found: object = getattr(type(callback), hook, None)
    if callable(found) and getattr(found, "__module__", None) != __name__:
        return hook
    if not callable(found) and isinstance(callback, WorkerGroupCallback | ReplicaGroupCallback):
        return None
    stands_in = STANDS_IN.get(hook)
    return _named(callback, stands_in) if stands_in is not None else None


def _own(callback: object, hook: str) -> object | None:
    name = _named(callback, hook)
    return None if name is None else getattr(type(callback), name)


def gates_of(callbacks: Iterable[object]) -> dict[str, OnError]:
    """Return the hooks of callbacks that the controller asks; `fail` wins over `warn`."""
    gates: dict[str, OnError] = {}
    for callback in callbacks:
        for hook, kind in GATES.items():
            own = _own(callback, hook)
            marked: OnError | None = getattr(own, _MARK, None)
            if own is not None and (marked is not None or kind == "waits"):
                gates[hook] = "fail" if "fail" in (marked or "fail", gates.get(hook)) else "warn"
    return gates


def never_asked(callback: object) -> tuple[str, ...]:
    """Return the hooks of a callback that are marked as gates and can be none."""
    can_be = {*GATES, *STANDS_IN.values()}
    names = (name for name in dir(type(callback)) if hasattr(getattr(type(callback), name, None), _MARK))
    return tuple(name for name in names if name not in can_be)


def is_gate(callback: object, hook: str) -> bool:
    """Whether the controller asks this hook of a callback, so that it is not called off the log as well."""
    return hook in gates_of([callback])


def in_ranks(callbacks: Iterable[object]) -> bool:
    """Whether any callback has a hook for the ranks."""
    return any(has(callback, hook) for callback in callbacks for hook in IN_RANKS)
