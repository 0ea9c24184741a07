"""Deciding: `(state, inputs, t) -> (transitions, wake_at)`. Pure, level-triggered, to a fixpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runfold.controller.decision import Decision, Unsettled
from runfold.controller.failing import exclude, revise
from runfold.controller.keeping import keep
from runfold.controller.looking import look
from runfold.controller.policies import DEFAULT
from runfold.controller.requests import answer
from runfold.controller.steps import step_of_state
from runfold.controller.timers import wake_at
from runfold.controller.words import entry_words, ranks
from runfold.events.base import Cause, Moment, relative
from runfold.events.conclusions import JobTaken
from runfold.events.evolve import evolve
from runfold.events.observe import observe_all
from runfold.events.state import RunState
from runfold.events.transitions import ControllerChanged, LogRestored, RunAccepted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runfold.controller.policies import Policies
    from runfold.events.entry import AnyInput
    from runfold.events.marks import TakeOver
    from runfold.events.state import AnyState, Restoring, Unborn
    from runfold.events.transitions import AnyTransition

DECIDE_ROUNDS_MAX_COUNT: Final = 2048
"""Rounds of one decision. Each answers a request or moves the run on, so this bounds a turn's requests too."""


def decide(state: AnyState, inputs: Sequence[AnyInput], t: float, policies: Policies = DEFAULT) -> Decision:
    """Return what is decided on these inputs at `t` seconds of the run's clock.

    The inputs are observed first, so that what is decided rests on the whole folded state. Deciding again on a state
    that these transitions were folded into returns nothing. Raises `Unsettled` when the rules never come to rest.
    """
    transitions, rest = settle(state, inputs, t, policies)
    return Decision(transitions, wake_at(rest))


def settle(
    state: AnyState,
    inputs: Sequence[AnyInput],
    t: float,
    policies: Policies = DEFAULT,
    cursor: tuple[str, int] | None = None,
) -> tuple[tuple[AnyTransition, ...], RunState]:
    """Return what is decided, and the state it comes to rest in.

    That is the fold of the entry with this `cursor`; of entry 0 only the time of acceptance is missing.
    """
    decided: list[AnyTransition] = []
    if not isinstance(state, RunState):
        accepted = _accept(state, inputs)
        decided.append(accepted)
        state = observe_all(evolve(state, accepted, Moment(n=0, t=t)), inputs, n=0, t=t, cursor=cursor)
    else:
        state = observe_all(state, inputs, n=state.n + 1, t=max(t, state.t), cursor=cursor)
    for _ in range(DECIDE_ROUNDS_MAX_COUNT):
        step = _next_step(state, policies)
        if not step:
            return tuple(decided), state
        for transition in step:
            state = evolve(state, transition, Moment(n=state.n, t=state.t, k=len(decided)))
            decided.append(transition)
    raise Unsettled(f"{state.run}: no rest after {DECIDE_ROUNDS_MAX_COUNT} rounds; last: {decided[-1].reason}")


def _next_step(state: RunState, policies: Policies) -> Sequence[AnyTransition]:
    """Return what is to be done first: who decides, what was asked, what was learned, and then the state's own step."""
    if state.restoring is not None:
        return (_restored(state, state.restoring),)
    if state.phase.terminal:
        return ()
    if state.taking_over is not None:
        return (_take_over(state, state.taking_over),)
    if state.pending:
        return answer(state, state.pending[0])
    return (
        (revise(state) if state.late else ())
        or exclude(state)
        or keep(state)
        or look(state)
        or step_of_state(state, policies)
    )


def _accept(unborn: Unborn, inputs: Sequence[AnyInput]) -> RunAccepted:
    taken = next(((k, item) for k, item in enumerate(inputs) if isinstance(item, JobTaken)), None)
    job = unborn.job
    who, size = job.requested_by or "somebody", ranks(job.scaling.max_workers)
    what = entry_words(job.entrypoint, job.name or "")
    return RunAccepted(
        job=job,
        digest=unborn.digest,
        jobs_sequence=unborn.jobs_sequence,
        warnings=taken[1].warnings if taken is not None else (),
        cause=Cause(input=taken[0] if taken is not None else 0),
        reason=f"{who} asked for {what} on {size}",
    )


def _restored(state: RunState, found: Restoring) -> LogRestored:
    return LogRestored(
        generation=found.generation,
        source=found.source,
        epoch=found.epoch,
        by=found.by,
        cause=relative(found.cause, state.n),
        reason=f"the log was damaged: restored from {found.source} as generation {found.generation}",
    )


def _take_over(state: RunState, found: TakeOver) -> ControllerChanged:
    before = f"; {state.controller} decided before" if state.controller else ""
    return ControllerChanged(
        epoch=state.epoch + 1,
        controller=found.controller,
        decider=found.decider,
        cause=relative(found.cause, state.n),
        reason=f"{found.controller} decides from here on{before}",
    )
