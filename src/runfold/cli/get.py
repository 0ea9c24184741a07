"""`runfold get`: a run's status, or why a job was refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from runfold.cli.command import ContextOption, DataOption, OutputOption, RunArgument, ServerOption, say
from runfold.cli.show import print_json, print_text, table
from runfold.errors import NotFoundError
from runfold.events.refusal import JobRefused
from runfold.explain import counted, metrics_text, value_text
from runfold.locate import find
from runfold.runs import find_status, service_trouble

if TYPE_CHECKING:
    from runfold.events.status import Status
    from runfold.locate import Where

MESSAGE_CHARS_MAX: Final = 400


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
        found = asyncio.run(find_status(where, run))
    except NotFoundError:
        _say_trouble(where, "its job may wait for that")
        raise
    _say_trouble(where, "this may be old")
    if output == "json":
        print_json(found)
    elif isinstance(found, JobRefused):
        print_text(f"job-{found.sequence} was refused at {found.at}: {found.path}: {found.reason}\n{found.excerpt}")
    else:
        print_text(status_text(found))


def _say_trouble(where: Where, so: str) -> None:
    if trouble := asyncio.run(service_trouble(where)):
        say(f"the broker cannot store all that is said, {so}: {trouble}")


def status_text(status: Status) -> str:
    """Return a status for people."""
    lines = [f"{status.run}  {status.state} since {status.since}", f"  {status.reason}"]
    facts = [f"attempt {status.attempt}", counted(status.world_size, "rank"), f"{status.t:.1f} s"]
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
    if status.return_value is not None:
        lines.append(f"  returned: {value_text(status.return_value)}")
    spent = [f"{name} {b.spent}/{'∞' if b.limit < 0 else b.limit}" for name, b in status.budgets.items()]
    lines.append(f"  budgets: {', '.join(spent)}")
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
