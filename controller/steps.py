"""What each state does next: one function a state, each a look at the whole folded state."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from runfold.controller.effects import decidable
from runfold.controller.elsewhere import stranded
from runfold.controller.failing import open_failures, timed_out
from runfold.controller.gating import arguments_of, before_attempt, before_layout, passed, selector_of
from runfold.controller.gating import failed as gate_failed
from runfold.controller.layout import lay_out, layout_words
from runfold.controller.moves import change, fail, finished, news
from runfold.controller.places import give_back, kept_without, leave_before_work, looked_for, not_to_be_had
from runfold.controller.preempting import preempt, preempting, taken
from runfold.controller.replicas import bring_back, size_of, too_late
from runfold.controller.resizing import resize, resize_unplaced
from runfold.controller.sizes import Hold, Resize
from runfold.controller.validating import await_final
from runfold.controller.words import because, listed, ranks
from runfold.events.base import relative
from runfold.events.edges import state_name
from runfold.events.gates import ABORT, RESIZE, SHUTDOWN, START
from runfold.events.state import (
    Aborted,
    Errored,
    Finished,
    Initializing,
    Preempting,
    Rescheduling,
    Resizing,
    Restarting,
    Running,
    Scheduling,
    ShuttingDown,
)
from runfold.events.tasks import DELETE, HOOK
from runfold.events.transitions import AttemptStarted, GroupLaidOut, StateChanged

if TYPE_CHECKING:
    from runfold.controller.moves import Step
    from runfold.controller.policies import Policies
    from runfold.events.base import Cause
    from runfold.events.marks import Ending
    from runfold.events.state import Group, RunState
    from runfold.events.tasks import Task
    from runfold.events.transitions import EndName


def step_of_state(state: RunState, policies: Policies) -> Step:
    """Return the transitions that the present state calls for; none when it waits."""
    phase, group, ending = state.phase, state.group, state.ending
    if ending is not None and not isinstance(phase, ShuttingDown | Finished | Errored | Aborted):
        return _shut_down_for(state, ending)
    match phase:
        case Running() if group is not None:
            return _running(state, group, policies)
        case Scheduling() if group is not None:
            return _scheduling(state, group, policies)
        case Initializing():
            return _next_attempt(state, policies, phase.cause)
        case Preempting() if group is not None:
            return preempting(state, group, phase, policies)
        case Restarting() | Rescheduling():
            return _again(state, phase, policies)
        case Resizing():
            return () if state.held else _next_attempt(state, policies, news(state, phase.cause), phase.num_workers)
        case ShuttingDown():
            return _shutting_down(state, phase)
        case Finished() | Errored() | Aborted() | Scheduling() | Running() | Preempting():
            return ()  # over; or without a group, which evolve refuses
        case _:
            assert_never(phase)


# --- towards a group


def _next_attempt(state: RunState, policies: Policies, cause: Cause, num_workers: int | None = None) -> Step:
    """Begin the next attempt on new places."""
    scaling = policies.scaling.idle(state)
    if isinstance(scaling, Hold):
        return ()
    size = scaling.num_workers if scaling.fits or num_workers is None else num_workers
    return _begin(state, cause, size)


def _begin(state: RunState, cause: Cause, num_workers: int, gone: tuple[int, ...] | None = None) -> Step:
    """Begin an attempt: on new places, or on those of the attempt before without those that are gone."""
    answer = before_attempt(state, num_workers, cause)
    if isinstance(answer, tuple):
        return answer
    attempt = state.attempt + 1
    where = f"on pool {state.job.pool}" if gone is None else _kept_words(state, gone)
    reason, cause = f"attempt {attempt}: {ranks(num_workers)} {where}", relative(cause, state.n)
    return (
        AttemptStarted(
            attempt=attempt,
            num_workers=num_workers,
            kept=gone is not None,
            vacated=gone or (),
            label_selector=selector_of(answer),
            cause=cause,
            reason=reason,
        ),
        StateChanged(
            from_state=state_name(state.phase),
            to_state="scheduling",
            num_workers=num_workers,
            deadline_t=_ready_by_t(state, gone),
            cause=cause,
            reason=reason,
        ),
    )


def _kept_words(state: RunState, gone: tuple[int, ...]) -> str:
    group = state.group
    nodes = [group.places[i].node for i in gone] if group is not None else []
    nodes += looked_for(group) if group is not None else ()
    other = f", with another place instead of that on {listed(nodes)}" if nodes else ""
    return f"on the places of the attempt before{other}"


def _ready_by_t(state: RunState, gone: tuple[int, ...] | None) -> float | None:
    """Return until when runners of places that are kept must be ready, if some are not and no place is looked for."""
    group = state.group
    if gone is None or gone or group is None or looked_for(group) or all(place.ready for place in group.places):
        return None
    return state.t + state.job.timeouts.start_timeout_s


def _again(state: RunState, phase: Restarting | Rescheduling, policies: Policies) -> Step:
    """Begin another attempt once the back-off is over: on the places that can be kept, else when all are released."""
    group, waited = state.group, phase.not_before_t > phase.since_t
    if waited and not state.fired:
        return ()
    scaling = policies.scaling.idle(state)
    same = group is not None and isinstance(scaling, Resize) and group.num_workers == scaling.num_workers
    gone = kept_without(state, phase.failure, phase.not_before_t - phase.since_t) if same else None
    if phase.kept and gone is None:
        why = scaling.reason if isinstance(scaling, Hold) or not same else "no place is sound any more"
        return (give_back(state, phase.failure, why),)
    if isinstance(scaling, Hold):
        return ()
    at_once = phase.kept is None and gone == () and not waited and _stand_yet(state, phase)
    if gone is not None and (phase.kept or at_once):
        return _begin(state, state.fired[0].cause if state.fired else phase.cause, scaling.num_workers, gone)
    if state.held:
        return ()
    cause = state.fired[0].cause if state.fired else news(state, phase.cause)
    return _begin(state, cause, scaling.num_workers)


def _stand_yet(state: RunState, phase: Restarting | Rescheduling) -> bool:
    """Whether runners are on their places yet: they leave when the next attempt does not begin in the same entry.

    But for a gate that is asked about it: they wait for its answer.
    """
    return state.t <= phase.since_t or not {RESIZE, START}.isdisjoint(state.job.hooks.gates)


def _scheduling(state: RunState, group: Group, policies: Policies) -> Step:
    started = bool(group.ranks) and not group.waits and all(rank.started for rank in group.ranks)
    if started and not state.checkpoints.unusable:
        entered = f"{ranks(len(group.ranks))} in user code (attempt {group.attempt})"
        return (change(state, "running", entered),)
    if failures := open_failures(state):
        return fail(state, failures, policies)
    if not group.layout and (leaving := leave_before_work(state, group)) is not None:
        return (leaving,)
    if group.places and not group.layout and all(place.healthy for place in group.places):
        return _lay_out(state, group)
    waits = not group.layout and bool(looked_for(group))
    if waits and state.fired:
        return (give_back(state, state.failure, not_to_be_had(state, group)),)
    late = timed_out(state)
    if late is not None:
        return fail(state, (late,), policies)
    return () if group.places and not waits else resize_unplaced(state, group, policies)


def _lay_out(state: RunState, group: Group) -> Step:
    layout = lay_out(group.places, group.num_workers, state.homes, size_of(state))
    answer = before_layout(state, layout, news(state, state.phase.cause))
    if isinstance(answer, tuple):
        return answer
    ready = group.places[layout[0].place].ready
    addr, port = (ready.addr, ready.port) if ready is not None else ("", 0)
    laid_out = GroupLaidOut(
        attempt=group.attempt,
        layout=layout,
        addr=addr,
        port=port,
        arguments=arguments_of(answer),
        cause=relative(news(state, state.phase.cause), state.n),
        reason=f"every runner is ready: {layout_words(layout, group.places)}; they meet at {addr}:{port}",
    )
    return (laid_out,)


# --- at work


def _running(state: RunState, group: Group, policies: Policies) -> Step:
    failures = open_failures(state)
    if group.over and not failures:
        return finished(state, group)
    ready = decidable(state, failures)
    if failures and not ready and size_of(state) is None:
        # What came before a notice was not brought about by it.
        return ()
    if state.notice is not None and (nodes := taken(state, group)):
        return (preempt(state, nodes, state.notice.reason),)
    if ready := ready or too_late(state, group):
        return fail(state, ready, policies)
    if (back := bring_back(state, group)) or failures:
        return back
    return fail(state, stranded(state, group), policies) or resize(state, group, policies)


# --- towards the end


def _shut_down_for(state: RunState, ending: Ending) -> Step:
    by = ending.by or "somebody"
    if ending.next == "aborted" and isinstance(waits := passed(state, ABORT, ending.cause, {"by": by}), tuple):
        return waits
    change = StateChanged(
        from_state=state_name(state.phase),
        to_state="shutting_down",
        next=ending.next,
        deadline_t=state.t + state.job.timeouts.shutdown_deadline_s,
        cause=relative(ending.cause, state.n),
        reason=f"{ending.next} by {by}{because(ending.reason)}",
    )
    return (change,)


def _shutting_down(state: RunState, phase: ShuttingDown) -> Step:
    if not state.held:
        return _released(state, phase)
    if fired := tuple(fired for fired in state.fired if fired.timer == "shutdown"):
        return (_give_up(state, phase, fired[0].cause),)
    ending = state.ending
    sooner_t = state.t + state.job.timeouts.stop_grace_s
    if ending is not None and ending.next != phase.next and sooner_t < phase.deadline_t:
        return (
            StateChanged(
                from_state="shutting_down",
                to_state="shutting_down",
                next=phase.next,
                failure=phase.failure,
                deadline_t=sooner_t,
                cause=relative(ending.cause, state.n),
                reason=f"{phase.reason}; {ending.by or 'somebody'} asked to abort: the teardown gets less time",
            ),
        )
    return ()


def _released(state: RunState, phase: ShuttingDown) -> Step:
    """Nothing is held any more: validations are awaited, and the last gate is asked. An abort waits for neither."""
    cause, hurried = news(state, phase.cause), state.ending is not None and state.ending.next != phase.next
    if phase.next == "aborted" or hurried:
        return (_end(state, phase, phase.next, cause, phase.reason),)
    if (left := await_final(state, phase)) is not None:
        return left
    answer = passed(state, SHUTDOWN, phase.cause, {"next": phase.next})
    if isinstance(answer, tuple):
        return answer
    if any(one.task.kind == HOOK or _is_late(one.task) for one in state.tasks) or state.hooks.due:
        return ()  # what was asked is answered, and what was ordered is done, before the run is over
    error = gate_failed(answer, state, SHUTDOWN)
    if error is None or phase.next != "finished":
        return (_end(state, phase, phase.next, cause, phase.reason),)
    reason = f"training finished ({phase.reason}); only the gate {SHUTDOWN} failed: {error.headline}"
    return (_end(state, phase, "errored", cause, reason),)


def _is_late(task: Task) -> bool:
    """Whether a task deletes what a validation that outlived the group has left."""
    return task.kind == DELETE and task.deadline_t is not None


def _give_up(state: RunState, phase: ShuttingDown, cause: Cause) -> StateChanged:
    """The pool has not let go in time: the run ends all the same, and says so."""
    late_s = state.t - phase.since_t
    teardown = f"{state.supervisor} did not release the group within {late_s:.1f} s"
    if phase.next == "finished":
        return _end(
            state, phase, "errored", cause, f"training finished ({phase.reason}); only the teardown failed: {teardown}"
        )
    return _end(state, phase, phase.next, cause, f"{phase.reason}; and {teardown}")


def _end(state: RunState, phase: ShuttingDown, to_state: EndName, cause: Cause, reason: str) -> StateChanged:
    return StateChanged(
        from_state="shutting_down",
        to_state=to_state,
        failure=phase.failure or state.failure if phase.next == "errored" else None,
        cause=relative(cause, state.n),
        reason=reason,
    )
