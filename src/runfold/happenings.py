"""What happens in a run, as observers are told it: read off the log, entry by entry, in its order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.events.edges import state_name
from runfold.events.facts import RankFact, Released, Reported
from runfold.events.replicas import members, replica_size
from runfold.events.state import ShuttingDown
from runfold.events.transitions import (
    AttemptStarted,
    CheckpointCommitted,
    ControllerChanged,
    FailureDecided,
    GroupLaidOut,
    ReplicaGroupReplaced,
    StateChanged,
    TaskClosed,
)
from runfold.events.values import unpack
from runfold.workers.callbacks import ControllerState, GroupInfo, RankError, RunContext, WorkerInfo

if TYPE_CHECKING:
    from runfold.events.base import Json
    from runfold.events.entry import Entry
    from runfold.events.failures import Failure
    from runfold.events.state import Group, RunState
    from runfold.events.transitions import AnyTransition, RankLaid

    Hook = tuple[str, tuple[object, ...], dict[str, Json]]
    """A hook, what it is called with, and the same as a document."""

REPORTS_WAITING_MAX_COUNT: Final = 10_000
"""Reports that wait for other ranks or for their checkpoint; the oldest beyond is told as it is."""

_WILL_NOT_REPORT: Final = frozenset(("returned", "failed", "exited", "waiting"))
"""Phases of ranks that others do not wait for: those that are done, and of replica groups that are down."""


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an observer is told: a hook and what it is called with.

    `n` is the log's entry, `k` its place among what is told of that entry: together an id that is the same whenever
    the log is read. `document` says the same in JSON.
    """

    hook: str
    run: str
    n: int
    k: int
    t: float
    at: str
    arguments: tuple[object, ...] = ()
    document: dict[str, Json] = {}


class _Waiting(msgspec.Struct):
    """A report of the present attempt, until every rank has passed it and its checkpoint is committed or given up."""

    metrics: dict[int, dict[str, Json]]
    checkpoint: str | None = None


class Happenings:
    """Feed it every entry from the first, with the state after it; it yields what observers are told of each."""

    def __init__(self, checkpoint_of: Callable[[RunState, str], object | None]) -> None:
        self._checkpoint_of = checkpoint_of
        self._before: RunState | None = None
        self._reports: dict[int, _Waiting] = {}
        self._told_index = -1
        self._done: set[str] = set()
        self._lost: set[str] = set()

    def of(self, entry: Entry, after: RunState) -> list[Happening]:
        """Return what happened in an entry."""
        told = [
            Happening(
                hook=hook, run=after.run, n=entry.n, k=k, t=entry.t, at=entry.at, arguments=arguments, document=document
            )
            for k, (hook, arguments, document) in enumerate(self._told(entry, after))
        ]
        self._before = after
        return told

    def _told(self, entry: Entry, after: RunState) -> Iterator[Hook]:
        before, context = self._before, context_of(after)
        self._note_reports(entry, after.attempt if before is None else before.attempt)
        yield from _heard(entry, before, after)
        for decided in entry.transitions:
            if isinstance(decided, AttemptStarted | StateChanged):
                yield from self._reported(before, after, context, last=True)
            if isinstance(decided, AttemptStarted):
                self._told_index = -1
            yield from self._decided(decided, before, after, context)
        yield from self._reported(before, after, context, last=False)

    def _decided(
        self, decided: AnyTransition, before: RunState | None, after: RunState, context: RunContext
    ) -> Iterator[Hook]:
        match decided:
            case ControllerChanged(epoch=1):
                yield "after_controller_start", (context,), {"name": context.name}
            case AttemptStarted(attempt=attempt, num_workers=size):
                group = GroupInfo(attempt=attempt, num_workers=size)
                yield "before_worker_group_start", (group,), {"attempt": attempt, "num_workers": size}
            case GroupLaidOut():
                yield "after_worker_group_start", (_group(after),), {"attempt": decided.attempt}
            case FailureDecided():
                yield "after_exception", (context, _exceptions(decided.failure, after)), _failure(decided)
                yield from _replaced(decided, before)
            case ReplicaGroupReplaced(group=number, life=life):
                ranks: list[Json] = [laid.rank for laid in decided.layout]
                told: dict[str, Json] = {"replica": number, "life": life, "ranks": ranks}
                yield "after_replica_group_start", (_replica(after, number, decided.layout, life),), told
            case CheckpointCommitted(name=name):
                self._done.add(name)
            case TaskClosed(task=task) if task.startswith("seal:"):
                self._lost.add(task.removeprefix("seal:"))
            case StateChanged():
                yield from _changed(decided, before, after)
            case _:
                pass  # of no interest to observers

    # --- reports

    def _note_reports(self, entry: Entry, attempt: int) -> None:
        """Note what ranks report in this attempt, but of no report that was told of without them."""
        for item in entry.inputs:
            if isinstance(item, Reported) and item.attempt == attempt and item.index > self._told_index:
                one = self._reports.setdefault(item.index, _Waiting({}))
                one.metrics[item.rank] = _unpacked(item.metrics)
                one.checkpoint = one.checkpoint or item.checkpoint

    def _reported(self, before: RunState | None, after: RunState, context: RunContext, *, last: bool) -> Iterator[Hook]:
        """Yield the reports, in their order, that every rank has passed; all of an attempt that is over."""
        state = before if last and before is not None and before.attempt != after.attempt else after
        ranks = state.group.ranks if state.group is not None else ()
        over = last and (after.attempt != state.attempt or after.terminal)
        for index in sorted(self._reports):
            one = self._reports[index]
            passed = all(rank.index >= index or rank.phase in _WILL_NOT_REPORT for rank in ranks)
            settled = one.checkpoint is None or one.checkpoint in self._done or one.checkpoint in self._lost
            full = len(self._reports) > REPORTS_WAITING_MAX_COUNT
            if not (over or full or (passed and settled)):
                return
            del self._reports[index]
            self._told_index = index
            metrics = [one.metrics.get(rank, {}) for rank in range(max(len(ranks), 1))]
            committed = one.checkpoint if one.checkpoint in self._done else None
            checkpoint = None if committed is None else self._checkpoint_of(after, committed)
            document: dict[str, Json] = {"index": index, "metrics": metrics[0], "checkpoint": committed}
            yield "after_report", (context, metrics, checkpoint), document


def _heard(entry: Entry, before: RunState | None, after: RunState) -> Iterator[Hook]:
    """Yield what the facts of an entry are to observers."""
    for item in entry.inputs:
        if isinstance(item, Released) and before is not None and before.group is not None:
            yield f"after_worker_group_{_ending(after)}", (_group(before),), {"attempt": item.attempt}
    if after.group is not None and any(isinstance(item, RankFact) for item in entry.inputs):
        yield "after_worker_group_poll_status", (after.group,), {"attempt": after.attempt}


def _replaced(item: FailureDecided, before: RunState | None) -> Iterator[Hook]:
    """Yield the replica groups that are about to be replaced, as they were."""
    group = before.group if before is not None else None
    size = replica_size(before.job.scaling, before.job.backend) if before is not None else None
    if before is None or group is None or size is None:
        return
    for number in item.replicas:
        mine = members(number, size)
        laid = tuple(one for one in group.layout if one.rank in mine)
        life = group.ranks[mine.start].life
        document: dict[str, Json] = {"replica": number, "life": life, "ranks": list(mine)}
        yield "before_replica_group_shutdown", (_replica(before, number, laid, life),), document


def context_of(state: RunState) -> RunContext:
    """Return which run it is, as hooks are told."""
    job = state.job
    return RunContext(
        run_id=state.run,
        name=job.name or "",
        storage_path=job.storage_path,
        train_loop_config=_unpacked(job.config),
        num_workers=state.group.num_workers if state.group is not None else job.scaling.max_workers,
    )


def _changed(item: StateChanged, before: RunState | None, after: RunState) -> Iterator[Hook]:
    previous = ControllerState(name=item.from_state)
    if before is not None and state_name(before.phase) == item.from_state:
        previous = ControllerState(name=item.from_state, reason=before.phase.reason, since_t=before.phase.since_t)
    current = ControllerState(name=item.to_state, reason=item.reason, since_t=after.t)
    document: dict[str, Json] = {"previous": item.from_state, "current": item.to_state, "reason": item.reason}
    if item.from_state == "scheduling" and item.to_state == "running":
        yield "after_worker_group_training_start", (_group(after),), {"attempt": after.attempt}
    stops = item.to_state in ("restarting", "rescheduling", "resizing", "shutting_down")
    if stops and item.from_state != item.to_state and before is not None and before.group is not None:
        how = "abort" if item.next == "aborted" else "shutdown"
        yield f"before_worker_group_{how}", (_group(before),), {"attempt": before.attempt}
    yield "after_controller_state_update", (previous, current), document


def _ending(state: RunState) -> str:
    phase = state.phase
    aborted = state.ending is not None and state.ending.next == "aborted"
    return "abort" if aborted or (isinstance(phase, ShuttingDown) and phase.next == "aborted") else "shutdown"


def _group(state: RunState) -> GroupInfo:
    group: Group | None = state.group
    if group is None:
        return GroupInfo(attempt=state.attempt)
    return GroupInfo(attempt=group.attempt, num_workers=group.num_workers, workers=_workers(group, group.layout))


def _replica(state: RunState, number: int, layout: tuple[RankLaid, ...], life: int) -> GroupInfo:
    workers = _workers(state.group, layout) if state.group is not None else ()
    return GroupInfo(attempt=state.attempt, num_workers=len(layout), workers=workers, replica=number, life=life)


def _workers(group: Group, layout: tuple[RankLaid, ...]) -> tuple[WorkerInfo, ...]:
    return tuple(
        WorkerInfo(
            world_rank=laid.rank,
            local_rank=laid.local_rank,
            node_rank=laid.node_rank,
            node=group.places[laid.place].node if laid.place < len(group.places) else "",
        )
        for laid in layout
    )


def _exceptions(first: Failure, after: RunState) -> dict[int, Exception]:
    others = [one for one in after.others if one.attempt == first.attempt]
    return {
        -1 if one.rank is None else one.rank: RankError(one.error.type, one.error.message, one.error.traceback)
        for one in (*others, first)
    }


def _failure(item: FailureDecided) -> dict[str, Json]:
    error = item.failure.error
    return {"decision": item.decision, "rank": item.failure.rank, "error": error.headline, "reason": item.reason}


def _unpacked(packed: dict[str, Json] | None) -> dict[str, Json]:
    return {name: unpack(value) for name, value in (packed or {}).items()}
