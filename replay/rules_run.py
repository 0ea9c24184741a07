"""Rules of the run: what was counted, and what became of its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

from runfold.events.entry import Entry
from runfold.events.facts import CheckpointSealed, TaskEnded
from runfold.events.failures import Budget
from runfold.events.tasks import DELETE, SEAL, Task, seal_id
from runfold.events.transitions import (
    AttemptStarted,
    CheckpointCommitted,
    FailureDecided,
    RunAccepted,
    SourceJoined,
    TaskClosed,
    TaskOrdered,
)
from runfold.replay.finding import Evidence, Finding, walked

_SPENDING = frozenset({"retry", "replace"})


def budgets(evidence: Evidence) -> Iterator[Finding]:
    """A failed attempt spends at most one unit of one budget, within its limit; so does each replacement in it."""
    spent: dict[Budget, int] = {}
    charged: set[int] = set()
    resets = False
    for entry, transition in evidence.transitions:
        if isinstance(transition, RunAccepted):
            resets = transition.job.failure.reset_after_progress is not None
        if not isinstance(transition, FailureDecided) or transition.budget is None:
            continue
        name, attempt, retried = transition.budget, transition.failure.attempt, transition.decision in _SPENDING
        before = spent.get(name, 0)
        if retried and attempt in charged:
            yield Finding(rule="budgets", n=entry.n, what=f"attempt {attempt} is charged a second time")
        # Only a retry spends, or a replacement; what ends the run states what was spent before it.
        expected = {before + retried, int(retried)} if resets else {before + retried}
        if transition.spent not in expected:
            what = f"the {name} budget goes from {before} to {transition.spent} on a {transition.decision}"
            yield Finding(rule="budgets", n=entry.n, what=what)
        if retried and 0 <= transition.limit < transition.spent:
            what = f"a retry on {transition.spent} of {transition.limit} of the {name} budget"
            yield Finding(rule="budgets", n=entry.n, what=what)
        charged.update({attempt} if transition.decision == "retry" else ())
        spent[name] = transition.spent


def incarnations(evidence: Evidence) -> Iterator[Finding]:
    """Starts of a source are counted."""
    given: dict[str, int] = {}
    for entry, transition in evidence.transitions:
        if isinstance(transition, SourceJoined):
            before = given.get(transition.source, 0)
            if transition.incarnation != before + 1:
                what = f"{transition.source} is given incarnation {transition.incarnation} after {before}"
                yield Finding(rule="incarnations", n=entry.n, what=what)
            given[transition.source] = transition.incarnation


class _Lineage:
    """What stands of checkpoints so far."""

    def __init__(self) -> None:
        self.attempt = 0
        self.ordered: dict[str, int] = {}
        self.sealed: dict[str, set[str]] = {}
        self.committed: dict[str, int] = {}


def lineage(evidence: Evidence) -> Iterator[Finding]:
    """A checkpoint counts only after its seal, once; ranks begin from what counts (which the fold looks after)."""
    yield from walked("lineage")(evidence)
    seen = _Lineage()
    for link in evidence.history.links:
        entry = link.entry
        for item in entry.inputs:
            if isinstance(item, CheckpointSealed):
                seen.sealed.setdefault(item.name, set()).add(item.manifest_digest)
        for transition in entry.transitions:
            match transition:
                case AttemptStarted(attempt=attempt):
                    seen.attempt = attempt
                case TaskOrdered(task=task) if task.kind == SEAL:
                    seen.ordered[task.id] = entry.n
                case TaskOrdered(task=task) if task.kind == DELETE:
                    for name in names_in(task):
                        seen.committed.pop(name, None)
                case CheckpointCommitted():
                    yield from _committed(seen, entry, transition)
                case _:
                    continue


def _committed(seen: _Lineage, entry: Entry, item: CheckpointCommitted) -> Iterator[Finding]:
    def found(what: str) -> Finding:
        return Finding(rule="lineage", n=entry.n, what=f"checkpoint {item.name} is committed {what}")

    if item.manifest_digest not in seen.sealed.get(item.name, ()):
        yield found("and nobody said that its manifest was sealed, or as another one")
    if seen.ordered.get(seal_id(item.name), entry.n) >= entry.n:
        yield found("and its seal was not ordered by an earlier entry")
    if item.name in seen.committed and not item.named:
        yield found(f"a second time: entry {seen.committed[item.name]} had committed it")
    if not 1 <= item.attempt <= seen.attempt:
        yield found(f"of attempt {item.attempt}, which had not begun")
    seen.committed[item.name] = entry.n


def retention(evidence: Evidence) -> Iterator[Finding]:
    """Deletions follow the commit that calls for them (which the fold looks after), and somebody says that they did."""
    yield from walked("retention")(evidence)
    tasks: dict[str, Task] = {}
    links = evidence.history.links
    for entry, transition in evidence.transitions:
        match transition:
            case TaskOrdered(task=task):
                tasks[task.id] = task
            case TaskClosed(task=name, task_kind="delete", outcome="done", cause=cause):
                n = entry.n if cause.entry is None else cause.entry
                inputs = links[n].entry.inputs if 0 <= n < len(links) else ()
                told = inputs[cause.input] if cause.input is not None and 0 <= cause.input < len(inputs) else None
                if not isinstance(told, TaskEnded) or told.task != name:
                    what = f"{name} is closed as done, and no fact says that the directories are gone"
                    yield Finding(rule="retention", n=entry.n, what=what)
                if name not in tasks:
                    yield Finding(rule="retention", n=entry.n, what=f"{name} is closed and was never ordered")
            case _:
                continue


def names_in(task: Task) -> tuple[str, ...]:
    """Return the directories that a task names."""
    names = task.arguments.get("names")
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()
