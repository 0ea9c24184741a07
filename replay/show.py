"""The reports of `--at`, `verify` and `audit` as lines for people; `render.py` says how lines are made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, assert_never

from runfold.events.checkpoints import ranks_in
from runfold.events.counts import counted
from runfold.events.edges import state_name
from runfold.replay.escape import safe, safe_lines
from runfold.replay.look import PLAIN, Look
from runfold.replay.words import metric_words, rank_words

if TYPE_CHECKING:
    from runfold.events.failures import Failure
    from runfold.events.state import Group, RunState
    from runfold.replay.at import RunningTimer, Snapshot
    from runfold.replay.audit import AuditReport
    from runfold.replay.verify import Decided, Divergence, VerifyReport


def render_snapshot(snapshot: Snapshot, look: Look = PLAIN) -> Iterator[str]:
    """Yield the state of a run as it was."""
    state = snapshot.state
    newest = ", the newest" if snapshot.last else ""
    when = f"after entry {snapshot.n}{newest}, {snapshot.t:.3f} s, {safe(snapshot.at)}"
    yield f"{look.paint(safe(snapshot.run), 'bold')} {when}"
    fields = [
        ("state", f"{state_name(state.phase).upper()} since {state.phase.since_t:.3f} s: {state.phase.reason}"),
        ("attempt", _attempt(state)),
        (
            "budgets",
            "; ".join(f"{name} {spent.spent} of {_limit(spent.limit)}" for name, spent in state.budgets.items()),
        ),
        ("failure", _failure(state.failure)),
        ("metrics", metric_words(state.metrics) if state.metrics else ""),
        ("reports", str(state.reports)),
        ("timers", "; ".join(_timer(timer, snapshot.t) for timer in snapshot.timers)),
        ("control", f"{state.controller}, epoch {state.epoch}"),
        ("sources", "; ".join(f"{name} {it.incarnation}, folded {it.folded}" for name, it in state.sources.items())),
        ("pending", "; ".join(type(item.request).__name__ for item in state.pending)),
        ("size", _size(state)),
        ("notice", _notice(state)),
        ("off", _kept_off(state)),
        ("dropped", _dropped(state)),
    ]
    for name, text in fields:
        if text:
            yield f"{look.paint(f'{name:<8}', 'dim')}  {safe(text)}"
    yield from _checkpoints(state, look)
    if state.group is not None:
        yield from _group(state.group, look)


def _size(state: RunState) -> str:
    """Return what is known of another size: asked for, planned, possible."""
    room, plan = state.elastic.room, state.elastic.plan
    told = [
        f"{counted(state.wanted_workers, 'rank')} asked for" if state.wanted_workers is not None else "",
        f"{counted(plan.num_workers, 'rank')} planned, from a checkpoint of report {plan.index} on" if plan else "",
        f"room for {room.fits}" if room is not None and room.fits is not None else "",
    ]
    return "; ".join(filter(None, told))


def _notice(state: RunState) -> str:
    notice = state.notice
    if notice is None:
        return ""
    when = "" if notice.unknown else f" at {notice.deadline_t:.3f} s"
    return f"{', '.join(notice.nodes)} to be taken back{when}: {notice.reason}"


def _kept_off(state: RunState) -> str:
    """Return the nodes that later groups stay off."""
    told = [f"{node} (excluded)" for node in state.excluded] + [f"{node} (taken back)" for node in state.away]
    return ", ".join(told)


def _timer(timer: RunningTimer, t: float) -> str:
    left_s = timer.due_t - t
    return f"{timer.timer} due at {timer.due_t:.3f} s, " + (f"in {left_s:.1f} s" if left_s > 0 else "now")


def _checkpoints(state: RunState, look: Look) -> Iterator[str]:
    """Yield the checkpoints that were kept, being gathered, and at work on."""
    checkpoints, latest = state.checkpoints, state.checkpoint
    kept = [
        f"{one.name}{'' if one.score is None else f' (score {one.score:g})'}{', in doubt' if one.doubtful else ''}"
        for one in checkpoints.kept
    ]
    texts = (
        ("checkpt", f"latest {latest.name}, of report {latest.index} in attempt {latest.attempt}" if latest else ""),
        ("kept", "; ".join(kept)),
        ("gather", "; ".join(f"{one.name}: {rank_words(ranks_in(one.ranks))}" for one in checkpoints.gathering)),
        ("tasks", "; ".join(one.task.id for one in state.tasks)),
    )
    for name, text in texts:
        if text:
            yield f"{look.paint(f'{name:<8}', 'dim')}  {safe(text)}"


def _attempt(state: RunState) -> str:
    if state.group is None:
        return f"{state.attempt}, no group" if state.attempt else ""
    waiting = f", waits: {state.group.waiting}" if state.group.waiting else ""
    places = ", ".join(f"{place.node} ({place.slots})" for place in state.group.places) or "no places yet"
    return f"{state.group.attempt}, {counted(state.group.num_workers, 'rank')} on {places}{waiting}"


def _group(group: Group, look: Look) -> Iterator[str]:
    if not group.ranks:
        return
    yield look.paint(f"{'rank':>8}  {'node':<16}  {'phase':<10}  {'life':>4}  {'report':>8}  {'step':>8}", "dim")
    for rank in group.ranks:
        index = "" if rank.index < 0 else str(rank.index)
        step = "" if rank.step is None else str(rank.step)
        yield f"{rank.rank:>8}  {safe(rank.node):<16}  {rank.phase:<10}  {rank.life:>4}  {index:>8}  {step:>8}".rstrip()


def _failure(failure: Failure | None) -> str:
    if failure is None:
        return ""
    who = (failure.node or "the group") if failure.rank is None else f"{rank_words((failure.rank,))} on {failure.node}"
    where = f"attempt {failure.attempt}, {who}" if failure.attempt else "before the first attempt"
    return f"{where}: {failure.error.headline} ({failure.kind})"


def _dropped(state: RunState) -> str:
    dropped = state.dropped
    if not (dropped.stale or dropped.foreign or dropped.malformed):
        return ""
    return f"stale {dropped.stale}, foreign {dropped.foreign}, malformed {dropped.malformed}"


def _limit(limit: int) -> str:
    return "unlimited" if limit < 0 else str(limit)


def render_verify(report: VerifyReport, look: Look = PLAIN) -> Iterator[str]:
    """Yield what came of deciding again; the first divergence whole, the others by their entry."""
    decider = safe(f"version {report.decider.version}")
    match report.outcome:
        case "agrees":
            what = look.paint("agrees", "bold", "green")
            more = f"{counted(report.checked, 'entry')} decided again by {decider}, all alike"
        case "diverges":
            what = look.paint("diverges", "bold", "red")
            more = f"{decider} wrote this and now decides otherwise, which must not be"
        case "would_differ":
            what = look.paint("would now decide differently", "bold", "yellow")
            found = len(report.divergences) + report.more
            intended = found - len(report.unintended) - report.more_unintended
            checked = counted(report.checked, "entry")
            more = f"{decider} on {found} of {checked} that another decider wrote"
            more += f", {intended} of them intended" if intended else ""
        case "stopped":
            what = look.paint("stopped", "bold", "red")
            more = f"after {report.checked} of {counted(report.entries, 'entry')}: {safe(report.stopped_by)}"
        case _:
            assert_never(report.outcome)
    yield f"{safe(report.run)}: {what}: {more}"
    shown = next(iter(report.unintended), None) or report.first
    if shown is not None:
        yield from _divergence(shown, look)
    for other in report.divergences:
        if other is not shown:
            meant = f": intended, {safe(other.intended)}" if other.intended else ""
            yield f"  also entry {other.n} at {other.t:.3f} s{meant}"
    if report.more:
        yield f"  also {counted(report.more, 'entry')} more, {report.more_unintended} of them not intended"
    for item in report.unneeded:
        yield f"  entry {item.entry} is listed as an intended difference and decided alike: take it off the list"


def _divergence(divergence: Divergence, look: Look) -> Iterator[str]:
    if divergence.intended:
        yield f"  intended: {safe(divergence.intended)}"
    yield f"  entry {divergence.n} at {divergence.t:.3f} s, from its transition {divergence.place} on:"
    for name, decided in (("recorded", divergence.recorded), ("now", divergence.now)):
        rest = decided[divergence.place :]
        yield f"    {look.paint(f'{name:<9}', 'dim')} {_decided(rest[0]) if rest else 'nothing more'}"
        for item in rest[1:]:
            yield f"    {'':<9} {_decided(item)}"


def _decided(item: Decided) -> str:
    return safe(f"{item.kind}: {item.what}: {item.reason}")


def render_audit(report: AuditReport, look: Look = PLAIN) -> Iterator[str]:
    """Yield every rule that is broken with what was found, what it means and what to do; one line when none is."""
    name = safe(report.run or report.target)
    broken = [rule for rule in report.rules if rule.broken]
    if not broken:
        clean = look.paint("clean", "bold", "green")
        voices = ", ".join(f"{count} {kind}" for kind, count in report.dropped.items() if count)
        rest = f"; voices that changed nothing: {voices}" if voices else ""
        kept = f"{len(report.rules)} rules kept"
        yield f"{name}: {clean}: {counted(report.entries, 'entry')}, head {report.head[:12]}, {kept}{rest}"
        return
    total = sum(rule.broken for rule in broken)
    what = look.paint(f"{total} finding{'' if total == 1 else 's'}", "bold", "red")
    yield f"{name}: {what} in {counted(report.entries, 'entry')} that can be read and follow from one another"
    for rule in broken:
        yield f"{look.paint(rule.id, 'bold')}: {rule.meaning}"
        of_rule = [finding for finding in report.findings if finding.rule == rule.id]
        for finding in of_rule:
            entry = "" if finding.n is None else f"entry {finding.n}: "
            where = "" if finding.where is None else f" [{finding.where}]"
            yield "  " + " ".join(safe_lines(f"{entry}{finding.what}{where}"))
        if rule.broken > len(of_rule):
            yield f"  … and {rule.broken - len(of_rule)} more"
        yield f"  {look.paint('do:', 'dim')} {rule.advice}"
