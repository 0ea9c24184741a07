"""Observing: what an input changes of the state, before anything is decided. First half of the fold.

Every rule here is written so that inputs of different sources within one entry may stand in any order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from runfold.events.base import Cause
from runfold.events.conclusions import (
    ControllerStarted,
    JobTaken,
    LogCopied,
    MessageMalformed,
    ProgressStopped,
    SilenceConcluded,
    TimerFired,
)
from runfold.events.draft import Draft
from runfold.events.elastic import come_back, room_told
from runfold.events.evidence import of_placement_failed, of_runner_lost, told_of_node
from runfold.events.facts import (
    CapacityChanged,
    CheckpointSealed,
    Fact,
    Placed,
    PlacementFailed,
    PlaceOffer,
    PlaceReplaced,
    PreemptionCancelled,
    PreemptionNoticed,
    Queued,
    Released,
    RunnerLost,
    RunnerReady,
    TaskEnded,
)
from runfold.events.gathering import ended, overdue, timed_out
from runfold.events.judge import numbering, standing
from runfold.events.limits import SOURCES_MAX_COUNT
from runfold.events.marks import Fired, PendingRequest, TakeOver
from runfold.events.notices import cancelled, noticed, without
from runfold.events.replicas import grown_late
from runfold.events.requests import Join, Request
from runfold.events.signs import silent, stuck
from runfold.events.state import Place, Ready, Restoring, Scheduling
from runfold.events.timing import AS_THEY_STAND, OF_SIZE, deadline, replica_timers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runfold.events.base import Moment
    from runfold.events.conclusions import AnyConclusion
    from runfold.events.draft import OtherInput
    from runfold.events.entry import AnyInput
    from runfold.events.facts import AnyFact, OtherFact
    from runfold.events.requests import AnyRequest
    from runfold.events.state import Group, RunState, Verdict


def verdict(state: RunState, item: AnyFact) -> Verdict:
    """Return what becomes of a fact.

    `folded`: it counts. `repeat` and `gap`: its number was folded already, or one before it is missing. `stale`: of an
    older incarnation, or a run, attempt or life that is over. `foreign`: of a source, attempt or rank that is unknown.
    """
    if state.terminal:
        return "stale"
    source = state.sources.get(item.source)
    found = numbering(source, source.folded if source is not None else 0, item)
    return found if found != "folded" else standing(state, item)


def observe(state: RunState, item: AnyInput, at: Moment) -> RunState:
    """Return the state with one input observed; `at.k` is its place among the entry's inputs."""
    return observe_all(state, (item,), n=at.n, t=at.t, first=at.k)


def observe_all(
    state: RunState,
    inputs: Iterable[AnyInput],
    *,
    n: int,
    t: float,
    cursor: tuple[str, int] | None = None,
    first: int = 0,
) -> RunState:
    """Return the state with all inputs of entry `n` observed, at `t` seconds of the run's clock.

    `cursor` is what the entry says of INBOX; None leaves what was known. Inputs are numbered from `first`.
    """
    cursor = cursor or state.cursor
    if state.phase.terminal:
        state = replace(state, n=n, t=t, cursor=cursor)
        for k, item in enumerate(inputs, first):
            state = _see_after_end(state, item, k)
        return state
    draft = Draft(state, n, t, cursor)
    draft.see(inputs, _see, first)
    return draft.done()


def _see_after_end(state: RunState, item: AnyInput, k: int) -> RunState:
    """Of a run that is over only its log can still change."""
    return _copied(state, item, Cause(entry=state.n, input=k)) if isinstance(item, LogCopied) else state


def _copied(state: RunState, item: LogCopied, cause: Cause) -> RunState:
    found = Restoring(generation=item.generation, source=item.source, epoch=item.epoch, by=item.by, cause=cause)
    return replace(state, restoring=found)


def _see(draft: Draft, item: OtherInput) -> None:
    if isinstance(item, Fact):
        if draft.count(item):
            _see_fact(draft, item)
    elif isinstance(item, Request):
        _see_request(draft, item)
    else:
        _see_conclusion(draft, item)


# --- facts of the pool, of runners and of tasks; those of ranks stand in `ranks.py`


def _see_fact(draft: Draft, item: OtherFact) -> None:
    found = draft.judge(item)
    if found == "folded":
        _see_counted(draft, item)
    elif found == "stale" and isinstance(item, RunnerLost) and item.source == draft.state.supervisor:
        draft.add_late(of_runner_lost(item, t=draft.t, cause=draft.cause))


def _see_counted(draft: Draft, item: OtherFact) -> None:
    match item:
        case CheckpointSealed() | TaskEnded():
            draft.now = replace(draft.now, tasks=ended(draft.now.tasks, item, draft.cause))
        case Queued():
            _queued(draft, item)
        case Placed():
            _placed(draft, item)
        case PlacementFailed():
            _placement_failed(draft, item)
        case RunnerLost():
            draft.lose(_sources_on(draft, item.node))
            if not _has_left(draft, item.node):
                draft.fail(of_runner_lost(item, t=draft.t, cause=draft.cause))
        case PlaceReplaced():
            draft.place_again(item)
        case CapacityChanged():
            _capacity(draft, item)
        case PreemptionNoticed():
            notice = noticed(
                draft.now.notice, item.nodes, item.within_s, t=draft.t, cause=draft.cause, reason=item.reason
            )
            draft.now = replace(draft.now, notice=notice)
        case PreemptionCancelled():
            now = draft.now
            draft.now = replace(now, notice=cancelled(now.notice, item.nodes), away=without(now.away, item.nodes))
        case Released():
            _released(draft, item)
        case RunnerReady():
            _runner_ready(draft, item)
        case _:
            assert_never(item)


def _capacity(draft: Draft, item: CapacityChanged) -> None:
    # A node that was not there for a while is another one, or the same given back.
    now = draft.now
    back = come_back(now.capacity, item.slots)
    draft.now = replace(
        now,
        notice=cancelled(now.notice, back),
        away=tuple(node for node in without(now.away, back) if node in item.slots),
        capacity=item.slots,
        elastic=replace(now.elastic, room=room_told(item, draft.cause)),
    )


def _sources_on(draft: Draft, node: str) -> frozenset[str]:
    places = draft.group.places if draft.group is not None else ()
    return frozenset(place.source for place in places if place.node == node)


def _has_left(draft: Draft, node: str) -> bool:
    """Whether the group has given its place on a node up: what becomes of that is no loss any more."""
    if (group := draft.group) is None or not (group.ranks or group.kept):
        return False  # it has no places yet
    return all(place.left is not None for place in group.places if place.node == node)


def _queued(draft: Draft, item: Queued) -> None:
    ahead = f", {item.ahead} run{'' if item.ahead == 1 else 's'} ahead" if item.ahead else ""
    _wait(draft, f"{item.needed} slot{'' if item.needed == 1 else 's'} needed, {item.free} free{ahead}")
    draft.hold_on(contested=item.contested, hopeless=item.hopeless)


def _wait(draft: Draft, waiting: str) -> None:
    draft.change_group(lambda group: replace(group, waiting=waiting))


def _placed(draft: Draft, item: Placed) -> None:
    if draft.group is None or draft.group.ranks:
        return
    known, early = {place.source: place for place in draft.group.places}, draft.group.early
    places = tuple(_place(offer, known.get(offer.node), early.get(offer.node)) for offer in item.places)
    early = {source: ready for source, ready in early.items() if all(place.source != source for place in places)}
    draft.change_group(lambda group: replace(group, places=places, early=early, waiting=None, released=False))
    if (slots := sum(place.slots for place in places)) < draft.group.num_workers:
        message = f"the pool placed {slots} of {draft.group.num_workers} ranks"
        draft.fail(
            told_of_node(
                "placement", "PlacedShort", message, attempt=item.attempt, node="", t=draft.t, cause=draft.cause
            )
        )
    phase = draft.now.phase
    if isinstance(phase, Scheduling):
        due_t = draft.t + draft.state.job.timeouts.start_timeout_s
        draft.now = replace(draft.now, phase=replace(phase, deadline_t=due_t))


def _place(offer: PlaceOffer, known: Place | None, early: Ready | None) -> Place:
    """Return a place; what its runner said of itself before stays said."""
    ready, lost = (known.ready, known.lost) if known is not None else (early, False)
    return Place(node=offer.node, slots=offer.slots, source=offer.node, ready=ready, lost=lost)


def _placement_failed(draft: Draft, item: PlacementFailed) -> None:
    never, now = item.verdict == "never", draft.now
    if item.verdict == "busy" or (never and (now.away or now.notice is not None)):
        # What cannot be placed off nodes that are taken back can be once one of them is there again.
        _wait(draft, item.reason)
        return
    if never:
        draft.change_group(lambda group: replace(group, never=item.reason))
    draft.fail(of_placement_failed(item, t=draft.t, cause=draft.cause))


def _released(draft: Draft, item: Released) -> None:
    """Nothing is held any more. If the group should be at work, that is the loss of all its runners."""
    group = draft.group
    if group is not None and group.places and draft.at_work:
        draft.lose(frozenset(place.source for place in group.places))
        message = "the pool let the run's group go though it should be at work"
        draft.fail(
            told_of_node("runner", "GroupLost", message, attempt=item.attempt, node="", t=draft.t, cause=draft.cause)
        )
    draft.change_group(lambda group: replace(group, released=True, waiting=None))


def _runner_ready(draft: Draft, item: RunnerReady) -> None:
    ready = Ready(addr=item.addr, port=item.port, offset_s=draft.t - item.clock_s, measured_s=item.clock_offset_s)
    if item.gpus or item.pod or item.spare_port:
        ready = replace(ready, gpus=item.gpus, pod=item.pod, spare_port=item.spare_port, pod_host=item.pod_host)

    def introduce(group: Group) -> Group:
        # Whose place is still to be heard of is remembered, and nobody else: it may be told of in either order.
        stands = any(place.source == item.source and place.left is None for place in group.places)
        waits = not group.ranks or any(place.left is not None for place in group.places)
        early = {**group.early, item.source: ready} if waits and not stands else group.early
        places = tuple(replace(place, ready=ready) if place.source == item.source else place for place in group.places)
        return replace(group, places=places, early=early)

    draft.change_group(introduce)


# --- requests


def _see_request(draft: Draft, item: AnyRequest) -> None:
    """Put a request where decide finds it, unless it is known: the same id is the same request."""
    state = draft.state
    if isinstance(item, Join):
        source = state.sources.get(item.source)
        known = source is not None and item.boot in (source.boot, *source.replaced)
        late = item.after not in (None, source.incarnation if source is not None else 0)
        full = source is None and len(state.sources) + len(draft.now.pending) >= SOURCES_MAX_COUNT
        if known or late or full:
            return
    elif any(answer.id == item.id for answer in state.answered):
        return
    pending = draft.now.pending
    if all(waiting.request.id != item.id for waiting in pending):
        draft.now = replace(draft.now, pending=(*pending, PendingRequest(request=item, cause=draft.cause)))


# --- conclusions


def _see_conclusion(draft: Draft, item: AnyConclusion) -> None:
    match item:
        case JobTaken():
            pass  # RunAccepted says all of it
        case ControllerStarted():
            found = TakeOver(controller=item.controller, decider=item.decider, cause=draft.cause)
            draft.now = replace(draft.now, taking_over=found)
        case LogCopied():
            draft.now = _copied(draft.now, item, draft.cause)
        case TimerFired():
            _fired(draft, item)
        case SilenceConcluded():
            silent(draft, item)
        case ProgressStopped():
            stuck(draft, item)
        case MessageMalformed():
            draft.drop("malformed")
        case _:
            assert_never(item)


def _fired(draft: Draft, item: TimerFired) -> None:
    if item.timer == "checkpoint":
        timeout_s = draft.state.job.timeouts.checkpoint_timeout_s
        checkpoints = overdue(draft.now.checkpoints, timeout_s, item.deadline_t, draft.cause)
        draft.now = replace(draft.now, checkpoints=checkpoints)
    elif item.timer == "task":
        draft.now = replace(draft.now, tasks=timed_out(draft.now.tasks, item.deadline_t, draft.cause))
    elif item.timer in OF_SIZE or item.timer in ("replica_backoff", "cause"):
        pass  # the time is over, which is all that its waiting was for
    elif item.timer == "placement":
        draft.change_group(lambda group: grown_late(group, item.deadline_t))
    elif item.timer == "replica":
        if (item.timer, item.deadline_t) in replica_timers(draft.state):
            draft.fire(Fired(timer=item.timer, cause=draft.cause))
    elif item.timer == "final" or _stands(draft, item):
        draft.fire(Fired(timer=item.timer, cause=draft.cause))


def _stands(draft: Draft, item: TimerFired) -> bool:
    """Whether a timer is that of the state, and no input of this entry has ended its waiting or put it off."""
    running = [deadline(draft.state.phase, draft.state.group)]
    if AS_THEY_STAND in draft.state.decider.policies:
        running.append(deadline(draft.now.phase, draft.group))
    return all(one == (item.timer, item.deadline_t) for one in running)
