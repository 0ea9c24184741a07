"""The promises, held against what came of a play. `broken` returns, in words, what does not hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

import msgspec

from runfold.controller.status import status as status_of
from runfold.events.assignment import Assignment
from runfold.events.facts import Fact, FactMessage, RankReturned, Reported
from runfold.events.fold import fold, fold_all
from runfold.events.requests import Join, Request
from runfold.events.state import Errored, Finished, RunState
from runfold.events.transitions import (
    AttemptStarted,
    FailureDecided,
    GroupLaidOut,
    ReplicaGroupReplaced,
    RequestAccepted,
    RequestRefused,
    ResizePlanned,
    RunAccepted,
    StateChanged,
)
from runfold.replay.audit import audit
from runfold.replay.history import History, KnownHead
from runfold.replay.unarchive import read_archive, read_last
from runfold.replay.verify import verify
from support.sim.play import QUIET_S, Outcome
from support.sim.reasons import some_late, unexplained, was_late

Findings = Iterator[str]
TAKEN_OVER_WITHIN_S: Final = 2.0
ENDS: Final = ("finished", "errored", "aborted")
_assignments: Final = msgspec.json.Decoder(Assignment)
_messages: Final = msgspec.json.Decoder(FactMessage)


def broken(outcome: Outcome) -> list[str]:
    """Return every promise that does not hold."""
    found = [*outcome.world.truth.violations, *no_crashes(outcome)]
    for name in outcome.scenario.holds:
        found += [f"{name}: {finding}" for finding in IN_SOME[name](outcome)]
    for run, history in outcome.histories.items():
        if run not in outcome.world.truth.damaged:
            found += [
                f"{check.__name__}: {run}: {finding}" for check in ALWAYS for finding in check(outcome, run, history)
            ]
    return found


def no_crashes(outcome: Outcome) -> Findings:
    """No error of ours ended, or was caught and logged."""
    for task, error in outcome.world.crashes:
        yield f"crashed: {task}: {error!r}"
    for facts in outcome.world.truth.sources:
        if facts.crashed is not None:
            yield f"crashed: {facts.source} about {facts.run}: {facts.crashed!r}"


# --- of every run


def ends(outcome: Outcome, run: str, history: History) -> Findings:
    """Once all is calm every run comes to its end, and nobody owns it any more (progress)."""
    status = outcome.statuses[run]
    state = folded(history) if history.links else None
    if state is None or not state.terminal:
        yield f"it has not ended: {state.phase if state is not None else 'no entry'}"
    if status is not None and status.quarantined is not None:
        yield f"quarantined: {status.quarantined}"
    if run in outcome.world.broker.owners():
        yield "its key is still there"
    if outcome.world.broker.jobs.refused or outcome.world.broker.jobs.waiting:
        yield "a job was refused, or is still in the queue"


def stands(outcome: Outcome, run: str, history: History) -> Findings:
    """Every entry that was acknowledged stands, in the same place, byte for byte; and nothing else (promises 1, 3)."""
    if [link.data for link in history.links] != outcome.world.truth.logs.get(run, []):
        yield "what was appended is not what stands"
    for damage in history.damages:
        yield f"damage: {damage.what}"


def audits(outcome: Outcome, run: str, history: History) -> Findings:
    """The audit is clean: one writer, monotone attempts, legal edges, exact budgets, terminal final, no stale voice."""
    if not history.links:
        return
    known = [KnownHead(kept_by="test", head=history.head)]
    for finding in audit(history.with_heads(*known)).findings:
        if finding.rule != "strays" or "stray_in_log" not in outcome.scenario.trouble:
            yield f"{finding.rule}: {finding}"


def verifies(outcome: Outcome, run: str, history: History) -> Findings:
    """The same decider decides the same again."""
    if history.links:
        report = verify(history)
        if report.divergences or report.stopped_by:
            yield f"{report.stopped_by or report.first}"


def shown_in_order(outcome: Outcome, run: str, history: History) -> Findings:
    """Assignments only ever get newer; the last one says that the run is over."""
    shown = [_assignments.decode(data) for data in outcome.world.truth.assignments.get(run, [])]
    for before, after in pairwise(shown):
        # Another life may say the same again.
        if after != before and not after.newer_than(before):
            yield f"assignment ({after.epoch}, {after.n}) was written over ({before.epoch}, {before.n})"
    if not shown or shown[-1].want != "gone":
        yield "the last assignment does not say gone"


def status_tells_the_log(outcome: Outcome, run: str, history: History) -> Findings:
    """The last status is the one of the folded log."""
    status = outcome.statuses[run]
    if not history.links or status is None:
        yield "there is none"
        return
    expected = status_of(folded(history), history.head, history.entries[0].at)
    if (status.state, status.attempt, status.budgets, status.head) != (
        expected.state,
        expected.attempt,
        expected.budgets,
        expected.head,
    ):
        yield f"the status says {status.state} of attempt {status.attempt}, the log {expected.state}"


def once(outcome: Outcome, run: str, history: History) -> Findings:
    """One attempt spends at most one unit, and one for each replacement in it; units spent are those in the log.

    The end is the last thing decided.
    """
    transitions = [item for entry in history.entries for item in entry.transitions]
    attempts = [item.attempt for item in transitions if isinstance(item, AttemptStarted)]
    if attempts != list(range(1, len(attempts) + 1)):
        yield f"attempts {attempts}"
    decided = [item for item in transitions if isinstance(item, FailureDecided)]
    spent = [item for item in decided if item.budget is not None and item.decision in ("retry", "replace")]
    for attempt, units in Counter(item.failure.attempt for item in spent if item.decision == "retry").items():
        if units > 1:
            yield f"attempt {attempt} spent {units} units"
    budgets = folded(history).budgets if history.links else {}
    for budget, units in Counter(item.budget for item in spent).items():
        if budget is not None and budgets[budget].spent != units:
            yield f"budget {budget}: {budgets[budget].spent} spent, but {units} decided"
    end = [k for k, item in enumerate(transitions) if isinstance(item, StateChanged) and item.to_state in ENDS]
    if end and end != [len(transitions) - 1]:
        yield "something was decided after the end"
    for (who, attempt, rank, life), times in outcome.world.truth.entered.items():
        if who == run and times > 1:
            yield f"life {life} of rank {rank} of attempt {attempt} entered user code {times} times"


def in_bounds(outcome: Outcome, run: str, history: History) -> Findings:
    """Every group has a size that the job allows."""
    low, high = 1, 0
    for entry in history.entries:
        for item in entry.transitions:
            if isinstance(item, RunAccepted):
                low, high = item.job.scaling.min_workers, item.job.scaling.max_workers
            elif isinstance(item, AttemptStarted | ResizePlanned) and not low <= item.num_workers <= high:
                yield f"entry {entry.n}: {item.num_workers} ranks, not {low} to {high}"


def reports_folded_once(outcome: Outcome, run: str, history: History) -> Findings:
    """Each rank's reports are in the log once, in order, without a hole; all of them, where it returned in time."""
    seen: dict[tuple[int, int, int], list[int]] = {}
    returned: dict[tuple[int, int, int], int] = {}
    first: dict[tuple[int, int, int], int] = {}
    known: set[tuple[str, int, int]] = set()
    attempt = 0
    for entry in history.entries:
        for item in entry.inputs:
            # A copy that comes after its source has another incarnation is written down again, and not folded.
            if not isinstance(item, Fact) or (item.source, item.incarnation, item.number) in known:
                continue
            known.add((item.source, item.incarnation, item.number))
            if isinstance(item, Reported):
                seen.setdefault((item.attempt, item.rank, item.life), []).append(item.index)
            elif isinstance(item, RankReturned):
                returned[item.attempt, item.rank, item.life] = item.reports
        attempt = max((item.attempt for item in entry.transitions if isinstance(item, AttemptStarted)), default=attempt)
        for replaced in entry.transitions:
            if isinstance(replaced, ReplicaGroupReplaced):
                first.update({(attempt, laid.rank, laid.life): replaced.first for laid in replaced.layout})
    for (attempt, rank, life), indexes in seen.items():
        start = first.get((attempt, rank, life), 0)
        end = outcome.world.truth.reported[run, attempt, rank, life]
        if indexes != list(range(start, start + len(indexes))) or start + len(indexes) > end:
            yield f"reports of life {life} of rank {rank} of attempt {attempt}: {indexes}"
    for who, count in returned.items():
        folded_count = first.get(who, 0) + len(seen.get(who, []))
        if folded_count != count:
            yield f"rank {who[1]} of attempt {who[0]} returned after {count} reports, {folded_count} are folded"


def nothing_passed_over(outcome: Outcome, run: str, history: History) -> Findings:
    """What the inbox held up to the cursor is in the log: every fact of a source that had joined, every request."""
    truth = outcome.world.truth
    if run in truth.inboxes_lost or not history.links:
        return
    inputs = [item for entry in history.entries for item in entry.inputs]
    facts = {(item.source, item.incarnation, item.number) for item in inputs if isinstance(item, Fact)}
    requests = {item.id for item in inputs if isinstance(item, Request)}
    state = folded(history)
    cursor = state.cursor[1] if state.cursor is not None else 0
    for said in truth.inboxes.get(run, []):
        if said.message.sequence > cursor:
            continue
        if ".fact." in said.message.subject:
            for fact in _messages.decode(said.message.data).facts:
                if (fact.source, fact.incarnation, fact.number) not in facts:
                    yield f"message {said.message.sequence}: fact {fact.number} of {fact.source} was passed over"
        elif _id_of(said.message.data) not in requests:
            yield f"message {said.message.sequence}: request {_id_of(said.message.data)} was passed over"


def requests_answered_once(outcome: Outcome, run: str, history: History) -> Findings:
    """Every request in the log is answered, and once."""
    asked = {
        item.id
        for entry in history.entries
        for item in entry.inputs
        if isinstance(item, Request) and not isinstance(item, Join)
    }
    answers = Counter(
        item.id
        for entry in history.entries
        for item in entry.transitions
        if isinstance(item, RequestAccepted | RequestRefused)
    )
    if set(answers) != asked or any(count > 1 for count in answers.values()):
        yield f"asked {sorted(asked)}, answered {dict(answers)}"


def nothing_without_a_reason(outcome: Outcome, run: str, history: History) -> Findings:
    """No attempt ends because of something that did not happen (promises 6, 7)."""
    yield from unexplained(outcome.world.truth, run, history)


def archived(outcome: Outcome, run: str, history: History) -> Findings:
    """An archive holds the log whole, byte for byte, and is closed: whatever the archiver went through."""
    if not outcome.world.has_archive or not history.links:
        return
    store = outcome.archiver.store(run)
    kept = read_archive(store)
    if [link.data for link in kept.history.links] != [link.data for link in history.links] or kept.history.damages:
        yield f"{len(kept.history.links)} of {len(history.links)} entries are archived; {kept.history.trouble}"
    last = read_last(store)
    if last is None or last.head != history.head:
        yield "the archive is not closed"


def clock_is_true(outcome: Outcome, run: str, history: History) -> Findings:
    """The run's clock never runs ahead of time by more than the gaps of its take-overs may add."""
    if history.links:
        last = history.entries[-1]
        at_most = outcome.ended_s + QUIET_S + 60.0 * (last.epoch - 1)
        if last.t > at_most:
            yield f"t is {last.t} after {outcome.ended_s} s and {last.epoch} epochs"


ALWAYS: Final[tuple[Callable[[Outcome, str, History], Findings], ...]] = (
    ends,
    stands,
    audits,
    verifies,
    shown_in_order,
    status_tells_the_log,
    once,
    in_bounds,
    reports_folded_once,
    nothing_passed_over,
    requests_answered_once,
    nothing_without_a_reason,
    clock_is_true,
    archived,
)

# --- in some scenarios


def nothing_restarts(outcome: Outcome) -> Findings:
    """No rank failed, so no attempt is over before its time: whatever controllers, broker and net go through."""
    for run, history in outcome.histories.items():
        if run in outcome.world.truth.damaged:
            continue
        for entry in history.entries:
            for item in entry.transitions:
                if isinstance(item, FailureDecided) and not was_late(outcome.world.truth, run, item.failure):
                    yield f"{run}: entry {entry.n}: {item.reason}"


def everything_finishes(outcome: Outcome) -> Findings:
    """Every run ends well."""
    for run, history in outcome.histories.items():
        if run not in outcome.world.truth.damaged and history.links:
            phase = folded(history).phase
            let_go_late = isinstance(phase, Errored) and phase.failure is None and some_late(outcome.world.truth, run)
            if not isinstance(phase, Finished) and not let_go_late:
                yield f"{run}: {type(phase).__name__}: {phase.reason}"


def taken_over_soon(outcome: Outcome) -> Findings:
    """While others live and the broker serves, the runs of a controller that died have another one soon (promise 5)."""
    for death in outcome.world.truth.deaths:
        for run in death.runs:
            times = zip(outcome.world.truth.stood_s[run], outcome.histories[run].entries, strict=True)
            heirs = [at_s for at_s, entry in times if at_s > death.at_s and entry.by != death.controller]
            over = not heirs and folded(outcome.histories[run]).terminal
            if not over and (not heirs or heirs[0] > death.at_s + TAKEN_OVER_WITHIN_S):
                yield f"{run}: {death.controller} died at {death.at_s:.3f}, taken over at {heirs[:1]}"


def damage_is_found(outcome: Outcome) -> Findings:
    """The audit of a damaged log names the damage; who had to read it has not gone on with it."""
    for run in sorted(outcome.world.truth.damaged):
        if audit(outcome.histories[run]).clean:
            yield f"{run}: the audit finds nothing"


def kept_with_their_runners(outcome: Outcome) -> Findings:
    """Places that an attempt has kept have the runners of before when its ranks are laid out."""
    for run, history in outcome.histories.items():
        state: RunState | None = None
        kept: dict[str, int] = {}
        for entry in history.entries:
            before, state = state, fold(state, entry)
            for item in entry.transitions:
                if isinstance(item, AttemptStarted):
                    group = before.group if before is not None and item.kept else None
                    sound = [place for i, place in enumerate(group.places) if i not in item.vacated] if group else []
                    names = [place.source for place in sound if place.healthy]
                    kept = {name: before.sources[name].incarnation for name in names} if before is not None else {}
                elif isinstance(item, GroupLaidOut):
                    others = [name for name, number in kept.items() if state.sources[name].incarnation != number]
                    yield from (f"{run}: entry {entry.n}: another runner speaks as {name}" for name in others)


IN_SOME: Final[dict[str, Callable[[Outcome], Findings]]] = {
    "nothing_restarts": nothing_restarts,
    "everything_finishes": everything_finishes,
    "taken_over_soon": taken_over_soon,
    "damage_is_found": damage_is_found,
    "kept_with_their_runners": kept_with_their_runners,
}


def folded(history: History) -> RunState:
    """Return the state that a log folds into."""
    return fold_all(history.entries)


class _Asked(msgspec.Struct):
    id: str


def _id_of(data: bytes) -> str:
    return msgspec.json.decode(data, type=_Asked).id
