"""Checkpoints and tasks: what is to be done about them next. One function a rule, each a look at the whole state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from runfold.controller.continuing import continued, found_in
from runfold.controller.gating import closed as hook_closed
from runfold.controller.gating import follow
from runfold.controller.overdue import missing, overdue
from runfold.controller.validating import judged, validate
from runfold.controller.words import listed
from runfold.events.base import relative
from runfold.events.checkpoints import ValidationWish, doomed, ranks_in, score_of
from runfold.events.state import Rescheduling, Resizing, Restarting, Running, Scheduling, ShuttingDown
from runfold.events.tasks import DELETE, DOUBT, HOOK, OPEN, SEAL, STACKS, VALIDATION, Task, seal_id
from runfold.events.transitions import (
    CheckpointCommitted,
    CheckpointsDoubted,
    TaskClosed,
    TaskOrdered,
    Warned,
)

if TYPE_CHECKING:
    from runfold.events.base import Cause, Json
    from runfold.events.checkpoints import Gathering
    from runfold.events.state import Group, RunState
    from runfold.events.tasks import OpenTask, TaskEnd
    from runfold.events.transitions import AnyTransition

NAMES_AT_ONCE_MAX: Final = 32
"""Directories that one task deletes at most."""
RANKS_IN_WORDS_MAX: Final = 8


_STOPPING: Final = (Restarting, Rescheduling, Resizing, ShuttingDown)


def keep(state: RunState) -> tuple[AnyTransition, ...]:
    """Return the transitions that checkpoints and tasks call for; none when they wait."""
    checkpoints, job = state.checkpoints, state.job
    gathering = checkpoints.gathering
    # Each round of each decision comes by here, mostly with little to look at: a rule is not even called without what
    # it is about, which makes deciding a sixth faster.
    return (
        (_open(state) if not checkpoints.opened else ())
        or (_close(state) if state.tasks else ())
        or (_seal(state) if gathering else ())
        or (validate(state) if job.validation is not None else ())
        or (follow(state) if job.hooks.gates else ())
        or (_retain(state) if checkpoints.kept else ())
        or (_clear(state) if gathering or checkpoints.leftovers or checkpoints.sweep else ())
        or (_warn(state) if gathering or checkpoints.late is not None or checkpoints.unread is not None else ())
    )


# --- the beginning


def stored(state: RunState) -> bool:
    """Whether the run's storage may hold something already, or be unreachable: then it is looked into."""
    job = state.job
    return job.storage_path is not None or (job.storage_name or state.run) != state.run


def _open(state: RunState) -> tuple[AnyTransition, ...]:
    """Look into the storage before the first ranks enter user code."""
    group = state.group
    if group is None or group.layout or not isinstance(state.phase, Scheduling) or not stored(state):
        return ()
    if not group.places or not all(place.healthy for place in group.places):
        return ()
    attribute = state.job.checkpoint.checkpoint_score_attribute
    task = Task(id=OPEN, kind=OPEN, arguments={"attribute": attribute}, deadline_t=_deadline_t(state))
    where = f"{state.job.storage_path or 'the default storage'}/{state.job.storage_name}"
    reason = f"{where} may hold checkpoints of an earlier run: it is looked into before anybody trains"
    cause = group.news if group.news is not None else state.phase.cause
    return (TaskOrdered(task=task, cause=relative(cause, state.n), reason=reason),)


# --- the end of a task


def _close(state: RunState) -> tuple[AnyTransition, ...]:
    for one in state.tasks:
        if one.end is None:
            continue
        if one.task.kind == OPEN and one.end.outcome == "done" and (found := found_in(one.end.value)) is not None:
            return continued(state, one, one.end, found)
        ended = _closed(state, one, one.end)
        if one.task.kind == HOOK and isinstance(ended, TaskClosed):
            return hook_closed(state, one, one.end, ended)
        return (ended,)
    return ()


def _closed(state: RunState, one: OpenTask, end: TaskEnd) -> AnyTransition:
    if one.task.kind == VALIDATION:
        return judged(state, one, end)
    if one.task.kind == SEAL and end.outcome == "done" and end.sealed is not None:
        return _commit(state, one, end)
    return TaskClosed(
        task=one.task.id,
        task_kind=one.task.kind,
        outcome=end.outcome,
        error=end.error,
        cause=relative(end.cause, state.n),
        reason=_ending_words(one, end),
    )


def _ending_words(one: OpenTask, end: TaskEnd) -> str:
    task = one.task
    if task.kind == STACKS and end.outcome == "done":
        seen = [f"rank {one.rank} {one.words}" for one in end.seen]
        return listed(seen, RANKS_IN_WORDS_MAX) or "there was no rank to look at"
    what = {
        SEAL: f"checkpoint {task.id.removeprefix(f'{SEAL}:')} is not committed",
        OPEN: "the storage was looked into: nothing to continue from",
        DELETE: f"deleted: {_deleted_words(task)}",
        DOUBT: f"marked as doubtful: {listed(names_of(task))}",
        HOOK: f"the gate {task.arguments.get('hook')} answered",
    }.get(task.kind, f"task {task.id} is over")
    if end.outcome == "done":
        return what
    why = end.error.headline if end.error is not None else "nobody said so in time"
    failed = {
        OPEN: "the storage cannot be used",
        DELETE: f"not deleted: {_deleted_words(task)}",
        DOUBT: f"not marked as doubtful: {listed(names_of(task))}",
        STACKS: f"the ranks on {task.arguments.get('source')} could not be looked at",
        HOOK: f"the gate {task.arguments.get('hook')} gave no answer",
    }.get(task.kind, what)
    return f"{failed}: {why}"


def _deleted_words(task: Task) -> str:
    before = task.arguments.get("before")
    return listed(names_of(task)) if before is None else f"what attempts before {before} had left"


def names_of(task: Task) -> list[str]:
    """Return the directories that a task speaks of."""
    names = task.arguments.get("names")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _commit(state: RunState, one: OpenTask, end: TaskEnd) -> CheckpointCommitted:
    arguments, sealed = one.task.arguments, end.sealed
    name, index, attempt = arguments.get("name"), arguments.get("index"), arguments.get("attempt")
    shards = len(ranks_in(str(arguments.get("ranks", ""))))
    metrics = sealed.metrics if sealed is not None else None
    score, wrong = score_of(metrics, state.job.checkpoint)
    more = f"; {wrong}" if wrong else ""
    held = state.group is not None and state.group.waits
    begins = f"; attempt {state.attempt} begins from it" if held else ""
    size = sealed.size_bytes if sealed is not None else 0
    return CheckpointCommitted(
        name=str(name),
        index=index if isinstance(index, int) else 0,
        attempt=attempt if isinstance(attempt, int) else state.attempt,
        manifest_digest=sealed.manifest_digest if sealed is not None else "",
        metrics=metrics,
        size_bytes=size,
        shards=shards,
        score=score,
        named=arguments.get("named") is True,
        validation=_wish(state, arguments),
        cause=relative(end.cause, state.n),
        reason=f"{name} is whole: {size} bytes of {shards} rank{'s' if shards != 1 else ''}{more}{begins}",
    )


def _wish(state: RunState, arguments: dict[str, Json]) -> ValidationWish | None:
    """Return how a checkpoint is to be validated, if that was asked for and can be done."""
    wish = arguments.get("validation")
    return msgspec.convert(wish, ValidationWish) if wish is not None and state.job.validation is not None else None


# --- seals


def _seal(state: RunState) -> tuple[AnyTransition, ...]:
    """Seal the checkpoints that every rank has passed, in the order of their indices."""
    group = state.group
    if group is None or not group.ranks:
        return ()
    for one in state.checkpoints.gathering:
        if one.attempt == group.attempt and not missing(group, one):
            return (_sealing(state, group, one),)
    return ()


def _sealing(state: RunState, group: Group, one: Gathering) -> TaskOrdered:
    have = ranks_in(one.ranks)
    arguments: dict[str, Json] = {
        "name": one.name,
        "index": one.index,
        "attempt": one.attempt,
        "ranks": one.ranks,
        "world_size": len(group.ranks),
        "named": one.named > 0,
    }
    if cursors := next((mark.ranks for mark in state.checkpoints.marks if mark.at == one.at), None):
        arguments["cursors"] = {ranks: cursor for cursor, ranks in cursors.items()}
    if one.validation is not None:
        arguments["validation"] = msgspec.to_builtins(one.validation)
    task = Task(id=seal_id(one.name), kind=SEAL, arguments=arguments, deadline_t=_deadline_t(state))
    without = len(group.ranks) - len(have)
    rest = f", {without} without files" if without else ""
    every = "every rank at work" if any(rank.phase == "waiting" for rank in group.ranks) else "every rank"
    reason = f"{every} has passed report {one.index}: {len(have)} with files{rest}; {one.name} is to be sealed"
    return TaskOrdered(task=task, cause=relative(one.cause, state.n), reason=reason)


def _deadline_t(state: RunState) -> float:
    return state.t + state.job.timeouts.checkpoint_timeout_s


def sealing(state: RunState) -> bool:
    """Whether a checkpoint is on its way to be committed: the run does not finish without it."""
    return any(one.task.kind == SEAL for one in state.tasks)


# --- what goes


def _retain(state: RunState) -> tuple[AnyTransition, ...]:
    """Delete what is kept no more: after the commit, in the same entry."""
    newest, config = state.checkpoint, state.job.checkpoint
    if newest is None:
        return ()
    gone = doomed(state.checkpoints.kept, newest.name, config.num_to_keep)
    if not gone:
        return ()
    names = [one.name for one in gone][:NAMES_AT_ONCE_MAX]
    by = f"by {config.checkpoint_score_attribute}" if config.checkpoint_score_attribute else "by age"
    reason = f"{config.num_to_keep} better ones ({by}) and the latest are kept: {listed(names)} to be deleted"
    cause = relative(state.checkpoints.last or state.phase.cause, state.n)
    return (_delete(state, names, cause, reason, sealed=True),)


def _clear(state: RunState) -> tuple[AnyTransition, ...]:
    """Delete what will never be whole, once nobody can write to it: the runner sees to that."""
    group = state.group
    if group is None or not group.ranks:
        return ()
    names = list(state.checkpoints.leftovers)
    if isinstance(state.phase, _STOPPING):
        names += [one.name for one in state.checkpoints.gathering]
    if not names:
        return _sweep(state)
    names = names[:NAMES_AT_ONCE_MAX]
    reason = f"{listed(names)} will never be whole: to be deleted once no rank of its attempt is left"
    return (_delete(state, names, relative(state.phase.cause, state.n), reason, sealed=False),)


def _sweep(state: RunState) -> tuple[AnyTransition, ...]:
    """Delete what ranks had begun to upload when their runner was lost, once the next attempt's ranks are at work."""
    if not state.checkpoints.sweep or not isinstance(state.phase, Running):
        return ()
    reason = f"a runner was lost: what its ranks had begun to upload before attempt {state.attempt} is to be deleted"
    cause = relative(state.phase.cause, state.n)
    return (_delete(state, [], cause, reason, sealed=False, before=state.attempt),)


def _delete(
    state: RunState, names: list[str], cause: Cause, reason: str, *, sealed: bool, before: int | None = None
) -> TaskOrdered:
    """`sealed`: also what has its manifest; otherwise that is left alone, whoever sealed it.

    `before`: also whatever attempts before that one have left, under names that runfold gave.
    """
    arguments: dict[str, Json] = {"names": list(names), "sealed": sealed, "attempt": state.attempt}
    if before is not None:
        arguments |= {"before": before, "attempt": before - 1}
    # What a validation that outlived the group has brought about is waited for, so not without a limit.
    late = not state.held and state.job.validation is not None
    task = Task(
        id=f"{DELETE}-{state.checkpoints.orders + 1}",
        kind=DELETE,
        arguments=arguments,
        deadline_t=_deadline_t(state) if late else None,
    )
    return TaskOrdered(task=task, cause=cause, reason=reason)


# --- what a person should know


def _warn(state: RunState) -> tuple[AnyTransition, ...]:
    group = state.group
    if group is None:
        return ()
    if said := overdue(state, group):
        return said
    late = state.checkpoints.late
    if late is not None and "late" not in state.told:
        reason = (
            f"rank {late.rank} reported files for {late.name} when that was sealed, or about to be, without them: they "
            "are not in it; ranks that name their checkpoints must name them in the same order"
        )
        return (Warned(about="late", checkpoint=late.name, cause=relative(late.cause, state.n), reason=reason),)
    unread = state.checkpoints.unread
    if unread is not None and "unread" not in state.told:
        reason = (
            f"attempt {group.attempt} began with a checkpoint ({group.start}), and the training function reported "
            "without having called get_checkpoint(): it began from nothing"
        )
        return (Warned(about="unread", checkpoint=group.start, cause=relative(unread, state.n), reason=reason),)
    return ()


def doubt(state: RunState, group: Group, cause: Cause) -> tuple[AnyTransition, ...]:
    """Return what to say of checkpoints of several ranks when the ranks returned after different counts of reports."""
    counts = {rank.index + 1 for rank in group.ranks}
    names = tuple(
        one.name
        for one in state.checkpoints.kept
        if one.attempt == group.attempt and one.shards > 1 and not one.named and not one.doubtful
    )
    if len(counts) == 1 or not names:
        return ()
    fewest = listed([f"rank {rank.rank}" for rank in group.ranks if rank.index + 1 == min(counts)])
    reason = (
        f"the ranks returned after different counts of reports ({min(counts)} to {max(counts)}, fewest: {fewest}): "
        f"the files of several ranks in {listed(list(names))} may not belong together; report equally often in every "
        "rank, or name the directory by checkpoint_dir_name"
    )
    task = Task(id=DOUBT, kind=DOUBT, arguments={"names": list(names)})
    return (
        CheckpointsDoubted(names=names, cause=cause, reason=reason),
        Warned(about="doubtful", cause=cause, reason=reason),
        TaskOrdered(task=task, cause=cause, reason=reason),
    )
