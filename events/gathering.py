"""Observing checkpoints: what reports, ends of tasks and timers change of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from runfold.events.checkpoints import Checkpoints, Gathering, LateFiles, Mark, with_rank
from runfold.events.facts import CheckpointSealed
from runfold.events.limits import CHECKPOINTS_GATHERING_MAX_COUNT, CHECKPOINTS_LEFT_MAX_COUNT, MARKS_MAX_COUNT
from runfold.events.tasks import SEAL, SealedAs, TaskEnd, seal_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from runfold.events.base import Cause
    from runfold.events.facts import Reported, TaskEnded
    from runfold.events.tasks import OpenTask

Seen = tuple["Reported", "Cause"]


def gathered(
    checkpoints: Checkpoints, reports: Sequence[Seen], t: float, named: dict[int, int], tasks: tuple[OpenTask, ...]
) -> Checkpoints:
    """Return the checkpoints with these reports of the present attempt, in whatever order they came.

    One that is sealed, or about to be by `tasks`, gathers nothing more, nor one that was given up. `named` counts, by
    rank, the reports with a directory named by the user; it is counted on here.
    """
    by_name = {one.name: one for one in checkpoints.gathering}
    unread, late = checkpoints.unread, checkpoints.late
    closed = {one.name for one in checkpoints.kept} | {one.task.id.removeprefix(f"{SEAL}:") for one in tasks}
    closed |= set(checkpoints.torn)
    for item, cause in sorted(reports, key=lambda seen: (seen[0].index, seen[0].rank)):
        if item.unread:
            unread = unread or cause
        if item.named:
            named[item.rank] += 1
        name = item.checkpoint
        if name is not None and name in closed and name not in checkpoints.torn:
            late = late or LateFiles(name=name, rank=item.rank, cause=cause)
        if name is None or name in closed:
            continue
        before = by_name.get(name) or Gathering(
            name=name,
            index=checkpoints.base + item.index,
            at=item.index,
            attempt=item.attempt,
            ranks="",
            since_t=t,
            cause=cause,
        )
        by_name[name] = replace(
            _with_wish(before, item),
            cause=cause,
            index=max(before.index, checkpoints.base + item.index),
            at=max(before.at, item.index),
            named=max(before.named, named[item.rank]) if item.named else before.named,
            ranks=with_rank(before.ranks, item.rank),
        )
    gathering = sorted(by_name.values(), key=lambda one: (one.index, one.name))
    given_up = gathering[:-CHECKPOINTS_GATHERING_MAX_COUNT]
    changed = replace(checkpoints, gathering=tuple(gathering[len(given_up) :]), unread=unread, late=late)
    return left(changed, (one.name for one in given_up))


def marked(checkpoints: Checkpoints, reports: Iterable[Reported]) -> Checkpoints:
    """Return the checkpoints with what reports of the present attempt say of the ranks' places in their data."""
    marks = {mark.at: dict(mark.ranks) for mark in checkpoints.marks}
    for item in reports:
        if item.cursor is not None:
            ranks = marks.setdefault(item.index, {})
            ranks[item.cursor] = with_rank(ranks.get(item.cursor, ""), item.rank)
    needed = {one.at for one in checkpoints.gathering}
    newest = sorted(marks)[-MARKS_MAX_COUNT:]
    kept = sorted({*newest, *(needed & marks.keys())})
    return replace(checkpoints, marks=tuple(Mark(at=at, ranks=dict(sorted(marks[at].items()))) for at in kept))


def _with_wish(one: Gathering, item: Reported) -> Gathering:
    """The lowest rank with files says whether the checkpoint is to be validated, and how."""
    if one.first is not None and one.first <= item.rank:
        return one
    return replace(one, first=item.rank, validation=item.validation)


def left(checkpoints: Checkpoints, names: Iterable[str]) -> Checkpoints:
    """Return the checkpoints with directories that will never be whole."""
    known = {one.name for one in checkpoints.kept}
    new = {name for name in names if name not in known}
    if not new:
        return checkpoints
    return replace(checkpoints, leftovers=tuple(sorted({*checkpoints.leftovers, *new}))[:CHECKPOINTS_LEFT_MAX_COUNT])


def overdue(checkpoints: Checkpoints, timeout_s: float, deadline_t: float, cause: Cause) -> Checkpoints:
    """Return the checkpoints with those whose time is over marked."""
    return replace(
        checkpoints,
        gathering=tuple(
            replace(one, due=cause) if one.due is None and one.since_t + timeout_s <= deadline_t else one
            for one in checkpoints.gathering
        ),
    )


# --- tasks


def id_of(item: CheckpointSealed | TaskEnded) -> str:
    """Return the id of the task that a fact says the end of."""
    return seal_id(item.name) if isinstance(item, CheckpointSealed) else item.task


def ended(tasks: tuple[OpenTask, ...], item: CheckpointSealed | TaskEnded, cause: Cause) -> tuple[OpenTask, ...]:
    """Return the tasks with the end that a fact tells; the first word on it stands."""
    if isinstance(item, CheckpointSealed):
        sealed = SealedAs(manifest_digest=item.manifest_digest, size_bytes=item.size_bytes, metrics=item.metrics)
        end = TaskEnd(outcome="done", cause=cause, sealed=sealed)
    else:
        end = TaskEnd(outcome=item.outcome, cause=cause, value=item.value, error=item.error, seen=item.seen)
    wanted = id_of(item)
    return tuple(replace(one, end=end) if one.task.id == wanted and one.end is None else one for one in tasks)


def timed_out(tasks: tuple[OpenTask, ...], deadline_t: float, cause: Cause) -> tuple[OpenTask, ...]:
    """Return the tasks with those ended whose deadline was up to `deadline_t`."""
    end = TaskEnd(outcome="timed_out", cause=cause)
    return tuple(
        replace(one, end=end)
        if one.end is None and one.task.deadline_t is not None and one.task.deadline_t <= deadline_t
        else one
        for one in tasks
    )
