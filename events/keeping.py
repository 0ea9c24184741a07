"""Evolving checkpoints and tasks: what transitions change of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from runfold.events.base import absolute
from runfold.events.checkpoints import Kept, Trouble, rank_key, ranked
from runfold.events.edges import IllegalEdge
from runfold.events.failures import ErrorInfo
from runfold.events.gathering import left
from runfold.events.hooks import answered, asked
from runfold.events.limits import WARNINGS_MAX_COUNT
from runfold.events.marks import Committed, Ending
from runfold.events.stacks import look_begun, look_ended
from runfold.events.tasks import DELETE, HOOK, OPEN, SEAL, STACKS, OpenTask, find_task, seal_id, validation_id

if TYPE_CHECKING:
    from runfold.events.base import Moment
    from runfold.events.checkpoints import Checkpoints
    from runfold.events.state import Group, RunState
    from runfold.events.transitions import (
        CheckpointCommitted,
        CheckpointsDoubted,
        CheckpointValidated,
        RunContinued,
        TaskClosed,
        TaskOrdered,
        Warned,
    )

DECIDE_THE_START: Final = (SEAL, OPEN)
"""Tasks whose end may change the checkpoint that the next ranks begin from."""
SEALS_FAILED_MAX_COUNT: Final = 3
"""Seals that may fail in a row unless the job says otherwise."""


def settled(state: RunState) -> RunState:
    """Let the group begin, if it waited for a task that is closed by now."""
    group = state.group
    if group is None or not group.waits or _start_is_open(state):
        return state
    return replace(state, group=begun(state, group))


def _start_is_open(state: RunState) -> bool:
    return bool(state.tasks) and any(one.task.kind in DECIDE_THE_START for one in state.tasks)


def begun(state: RunState, group: Group) -> Group:
    """Return a group that is laid out with its checkpoint to begin from, or waiting for the tasks that decide it."""
    if _start_is_open(state):
        return replace(group, waits=True)
    return replace(group, waits=False, start=state.checkpoint.name if state.checkpoint is not None else None)


def next_attempt(state: RunState) -> Checkpoints:
    """Count on where the reports of the attempt before ended; what it had not made whole is left over."""
    checkpoints, group = state.checkpoints, state.group
    ranks, places = (group.ranks, group.places) if group is not None else ((), ())
    reports = max([rank.index + 1 for rank in ranks], default=0)
    sweep = checkpoints.sweep or any(place.lost for place in places)
    rest = replace(checkpoints, base=checkpoints.base + reports, gathering=(), marks=(), torn=(), sweep=sweep)
    return left(rest, [one.name for one in checkpoints.gathering]) if checkpoints.gathering else rest


def at_ease(checkpoints: Checkpoints) -> Checkpoints:
    """Forget the trouble with the storage: it is dealt with."""
    if checkpoints.trouble is None and not checkpoints.seals_failed:
        return checkpoints
    return replace(checkpoints, trouble=None, seals_failed=0)


def ordered(state: RunState, transition: TaskOrdered, at: Moment) -> RunState:
    """Take a task in; what it takes over from the checkpoints is theirs no more."""
    task, checkpoints = transition.task, state.checkpoints
    if find_task(state.tasks, task.id) is not None:
        raise IllegalEdge(f"task {task.id} is ordered already")
    names = task.arguments.get("names")
    gone = frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset[str]()
    if task.kind == SEAL:
        gathering = tuple(one for one in checkpoints.gathering if seal_id(one.name) != task.id)
        checkpoints = replace(checkpoints, gathering=gathering)
    elif task.kind == DELETE:
        sweep = checkpoints.sweep and "before" not in task.arguments
        checkpoints = _without(replace(checkpoints, orders=checkpoints.orders + 1, sweep=sweep), gone)
    elif task.kind == OPEN:
        checkpoints = replace(checkpoints, opened=True)
    elif task.kind == HOOK:
        state = asked(state, str(task.arguments.get("hook", "")))
    elif task.kind == STACKS:
        state = look_begun(state)
        checkpoints = state.checkpoints
    opened = OpenTask(task=task, cause=absolute(transition.cause, at.n))
    return replace(state, tasks=(*state.tasks, opened), checkpoints=checkpoints)


def _without(checkpoints: Checkpoints, names: frozenset[str]) -> Checkpoints:
    return replace(
        checkpoints,
        kept=tuple(one for one in checkpoints.kept if one.name not in names),
        gathering=tuple(one for one in checkpoints.gathering if one.name not in names),
        leftovers=tuple(name for name in checkpoints.leftovers if name not in names),
    )


def closed(state: RunState, transition: TaskClosed, at: Moment) -> RunState:
    """Let a task go. A seal or a look into the storage that failed may be trouble of the whole run."""
    found = find_task(state.tasks, transition.task)
    if found is None:
        raise IllegalEdge(f"task {transition.task} is not open")
    state = _without_task(state, transition.task)
    if found.task.kind == STACKS:
        return look_ended(state, found)
    if found.task.kind == HOOK:
        return answered(state, found, absolute(transition.cause, at.n))
    if transition.outcome != "done" and found.task.kind in DECIDE_THE_START:
        state = replace(state, checkpoints=_troubled(state, found, transition, at))
    return settled(state)


def _troubled(state: RunState, found: OpenTask, transition: TaskClosed, at: Moment) -> Checkpoints:
    checkpoints = state.checkpoints
    if found.task.kind == SEAL:
        failed = checkpoints.seals_failed + 1
        checkpoints = replace(checkpoints, seals_failed=failed)
        checkpoints = left(checkpoints, (found.task.id.removeprefix(f"{SEAL}:"),))
        limit = state.job.checkpoint.upload_failure_limit
        if failed <= (SEALS_FAILED_MAX_COUNT if limit is None else limit):
            return checkpoints
    error = transition.error or ErrorInfo(type="StorageError", message=transition.reason, kind="storage")
    return replace(checkpoints, trouble=Trouble(error=error, cause=absolute(transition.cause, at.n)))


def _without_task(state: RunState, task_id: str) -> RunState:
    return replace(state, tasks=tuple(one for one in state.tasks if one.task.id != task_id))


def committed(state: RunState, transition: CheckpointCommitted, at: Moment) -> RunState:
    """Keep a checkpoint; the newest is the one to begin from. Who wanted one has it, and perhaps ends the run."""
    newest = state.checkpoint
    if newest is None or transition.index >= newest.index:
        newest = Committed(name=transition.name, index=transition.index, attempt=transition.attempt)
    new = Kept(
        name=transition.name,
        index=transition.index,
        attempt=transition.attempt,
        score=transition.score,
        shards=transition.shards,
        named=transition.named,
        validating=transition.validation is not None,
        status="committed" if transition.validation is None else "pending",
        wish=transition.validation,
    )
    checkpoints = state.checkpoints
    kept = ranked(checkpoints.kept, new, newest.name)
    cause = absolute(transition.cause, at.n)
    wanted, ending = checkpoints.wanted, state.ending
    open_wish = wanted if wanted is not None and not wanted.stop and transition.index <= wanted.index else None
    checkpoints = replace(checkpoints, kept=kept, wanted=open_wish, seals_failed=0, last=cause)
    if wanted is not None and wanted.stop and ending is None:
        why = f" ({wanted.reason})" if wanted.reason else ""
        reason = f"stopped at checkpoint {transition.name}{why}"
        ending = Ending(next="finished", by=wanted.by, reason=reason, cause=cause)
    changed = replace(state, checkpoint=newest, checkpoints=checkpoints, ending=ending)
    return settled(_without_task(changed, seal_id(transition.name)))


def continued(state: RunState, transition: RunContinued) -> RunState:
    """Begin from what an earlier run left."""
    kept = sorted(
        (
            Kept(
                name=one.name,
                index=one.index,
                attempt=one.attempt,
                score=one.score,
                shards=one.shards,
                validating=one.status == "pending",
                status=one.status,
                wish=one.wish,
            )
            for one in transition.found
        ),
        key=rank_key,
    )
    newest = next((one for one in kept if one.name == transition.checkpoint), None)
    committed_before = None if newest is None else Committed(name=newest.name, index=newest.index, attempt=0)
    checkpoints = replace(
        state.checkpoints, kept=tuple(kept), base=transition.first_index, continues=transition.run or None
    )
    changed = replace(state, checkpoint=committed_before, checkpoints=checkpoints)
    tasks = tuple(one for one in changed.tasks if one.task.kind != OPEN)
    return settled(replace(changed, tasks=tasks))


def validated(state: RunState, transition: CheckpointValidated, at: Moment) -> RunState:
    """Note what came of a validation; a checkpoint with a new score takes its new place."""
    task = find_task(state.tasks, validation_id(transition.name))
    tasks = tuple(one for one in state.tasks if one is not task)
    checkpoints = state.checkpoints
    before = next((one for one in checkpoints.kept if one.name == transition.name), None)
    if before is None:
        return replace(state, tasks=tasks)
    new = replace(before, validating=False, status=transition.outcome, wish=None, score=transition.score)
    newest = state.checkpoint.name if state.checkpoint is not None else new.name
    kept, last = ranked(checkpoints.kept, new, newest), absolute(transition.cause, at.n)
    return replace(state, tasks=tasks, checkpoints=replace(checkpoints, kept=kept, last=last))


def doubted(state: RunState, transition: CheckpointsDoubted) -> RunState:
    """Mark checkpoints whose files may not belong together."""
    kept = tuple(replace(one, doubtful=True) if one.name in transition.names else one for one in state.checkpoints.kept)
    return replace(state, checkpoints=replace(state.checkpoints, kept=kept))


def warned(state: RunState, transition: Warned) -> RunState:
    """Remember that something was said, and what."""
    checkpoints = state.checkpoints
    if transition.about == "overdue":
        gathering = tuple(
            replace(one, overdue=True) if one.name == transition.checkpoint else one for one in checkpoints.gathering
        )
        checkpoints = replace(checkpoints, gathering=gathering)
    told = state.told if transition.about in state.told else (*state.told, transition.about)
    warnings = state.warnings
    if transition.reason not in warnings:
        warnings = (*warnings, transition.reason)[-WARNINGS_MAX_COUNT:]
    return replace(state, checkpoints=checkpoints, told=told, warnings=warnings)
