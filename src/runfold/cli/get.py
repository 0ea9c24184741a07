"""`runfold get`: a run's status, or why a job was refused."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from runfold.cli.command import ContextOption, DataOption, OutputOption, RunArgument, ServerOption, say
from runfold.cli.killed import say_killed
from runfold.cli.replaying import say_followed
from runfold.cli.show import print_json, print_text, table
from runfold.controller.words import listed
from runfold.errors import NotFoundError
from runfold.events.counts import counted
from runfold.events.refusal import JobRefused
from runfold.explain import metrics_text, value_text
from runfold.folding import state_of
from runfold.locate import find
from runfold.runs import find_told, service_trouble
from runfold.unknown import refused_text, stopped_text
from runfold.whereabouts import storage_path

if TYPE_CHECKING:
    from runfold.events.status import BudgetStatus, Status
    from runfold.locate import Where
    from runfold.replay.history import History

MESSAGE_CHARS_MAX: Final = 400
VALIDATIONS: Final[dict[str, str]] = {
    "pending": "validation pending",
    "validated": "validated",
    "failed": "validation failed",
    "timed_out": "validation timed out",
}


def command(
    run: RunArgument,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Show what the log says of a run now; of job-<number> that was refused, why."""
    where = find(data, server, context)
    try:
        told = asyncio.run(find_told(where, run))
    except NotFoundError:
        _say_trouble(where, "its job may wait for that")
        raise
    _say_trouble(where, "this may be old")
    if where.was_killed(run):
        say_killed(where, [run])
    found = told.status
    if told.kept is not None:
        _say_kept(where, run, told.kept)
    if output == "json":
        print_json(found)
    elif isinstance(found, JobRefused):
        print_text(f"{refused_text(found)}\n{found.excerpt}")
    else:
        # Nobody goes on with a file or an archive: its run is as old as its newest entry.
        storage = asyncio.run(storage_path(where, found.run, told.kept))
        print_text(status_text(found, where, None if told.kept is not None else datetime.now(UTC), storage))


def _say_kept(where: Where, run: str, kept: History) -> None:
    """Say how far a file or an archive goes of a run that has not ended by it, and what is damaged."""
    ended = state_of(kept).terminal
    expected = kept.is_open and not ended and (where.stopped or where.was_killed(run))
    if not expected:
        say_followed(kept)
    if ended:
        return
    if where.stopped:
        say(f"{stopped_text(where)}.\nThis is as far as the archive goes:")
    elif not where.was_killed(run):
        say(f"{run} has not ended by entry {kept.head.n}, the last that can be read; this is how it stood then:")


def _say_trouble(where: Where, so: str) -> None:
    if trouble := asyncio.run(service_trouble(where)):
        say(f"the broker cannot store all that is said, {so}: {trouble}")


def status_text(status: Status, asked: Where, now: datetime | None = None, storage: str | None = None) -> str:
    """Return a status for people, who have it from where was `asked`.

    `now`: a run that goes on is as old as it is then, not as its newest entry was.
    """
    lines = [f"{status.run}  {status.state} since {status.since}", f"  {status.reason}"]
    facts = [f"attempt {status.attempt}", counted(status.world_size, "rank"), f"{_age_s(status, now):.1f} s"]
    lines.append("  " + ", ".join(facts))
    if status.waiting:
        lines.append(f"  waiting: {status.waiting}")
    if status.error is not None:
        who = f"rank {status.error.rank}" if status.error.rank is not None else status.error.node or "the group"
        where = f" at {status.error.where}" if status.error.where else ""
        message = value_text(status.error.message.partition("\n")[0], MESSAGE_CHARS_MAX)
        lines.append(f"  first cause: {who}, {status.error.kind}: {status.error.type}: {message}{where}")
    if status.metrics:
        lines.append(f"  metrics: {metrics_text(status.metrics)}")
    if status.checkpoint is not None:
        lines.append(f"  checkpoint: {_checkpoint(status, status.checkpoint)}")
    if storage is not None:
        lines.append(f"  storage: {storage}")
    if status.return_value is not None:
        lines.append(f"  returned: {value_text(status.return_value)}")
    if spent := [_budget(name, one) for name, one in status.budgets.items() if one.spent or one.limit > 0]:
        lines.append(f"  budgets: {', '.join(spent)}")
    if status.excluded_nodes:
        lines.append(f"  stays off: {_excluded(status, asked)}")
    lines += [f"  warning: {warning}" for warning in status.warnings]
    if status.quarantined:
        lines.append(f"  QUARANTINED: {status.quarantined}")
    if status.ranks:
        rows = [
            (f"  {rank.rank}", rank.node, rank.phase, str(rank.index) if rank.index >= 0 else "",
             "" if rank.step is None else str(rank.step))
            for rank in status.ranks
        ]  # fmt: skip
        lines.append(table(("  RANK", "NODE", "PHASE", "REPORT", "STEP"), rows))
    return "\n".join(lines)


def _checkpoint(status: Status, name: str) -> str:
    """Return the last committed checkpoint: of which report, and what is known of its worth."""
    found = next((one for one in status.checkpoints if one.name == name), None)
    if found is None:
        return name
    facts = [f"report {found.index}", f"attempt {found.attempt}"]
    facts += [VALIDATIONS[found.status]] if found.status in VALIDATIONS else []
    facts += [f"score {value_text(found.score)}"] if found.score is not None else []
    facts += ["its files may not belong together"] if found.doubtful else []
    return f"{name} ({', '.join(facts)})"


def _excluded(status: Status, asked: Where) -> str:
    nodes = status.excluded_nodes
    told = listed([f"{node} ({why})" for node, why in nodes.items()])
    over = any(why != "will be taken back" for why in nodes.values())
    return f"{told}; `{asked.hint('admit', status.run, 'NODE')}` ends that" if over else told


def _budget(name: str, one: BudgetStatus) -> str:
    return f"{name} {one.spent} of {one.limit}" if one.limit >= 0 else f"{name} {one.spent} (unlimited)"


def _age_s(status: Status, now: datetime | None) -> float:
    if now is None or status.terminal:
        return status.t
    return max(status.t, (now - datetime.fromisoformat(status.accepted_at)).total_seconds())
