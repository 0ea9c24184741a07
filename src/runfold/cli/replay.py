"""`runfold replay`: a run's story from its log, or its state at any point."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption, say_error
from runfold.cli.killed import say_killed
from runfold.cli.replaying import SinceOption, TargetArgument, look, say_followed, show_json, show_lines
from runfold.cli.show import print_text
from runfold.errors import UsageError
from runfold.events.counts import counted
from runfold.events.status import Status
from runfold.events.transitions import AttemptStarted
from runfold.locate import find
from runfold.moments import live_state_at
from runfold.replay.at import moment_of, state_at
from runfold.replay.look import seconds
from runfold.replay.render import render_story, render_timeline
from runfold.replay.screen import on_screen
from runfold.replay.show import render_snapshot
from runfold.replay.story import story
from runfold.replay.timeline import timeline
from runfold.sources import glance, open_history

if TYPE_CHECKING:
    from runfold.locate import Where
    from runfold.replay.at import Snapshot
    from runfold.replay.history import History
    from runfold.replay.story import Story

LONG_ENTRIES_MIN_COUNT: Final = 20_000
"""A log so long that its header is shown before its entries are read, where it is kept beside the archive."""

AtOption = Annotated[
    str | None,
    typer.Option("--at", metavar="N|TIME", help="The state after entry N, or at a time.", show_default=False),
]
FullOption = Annotated[bool, typer.Option("--full", help="Every row, and tracebacks and output whole.")]
AttemptOption = Annotated[
    int | None, typer.Option("--attempt", metavar="N", help="Only what is of attempt N.", show_default=False)
]
RankOption = Annotated[
    int | None, typer.Option("--rank", metavar="N", help="Only what is of rank N.", show_default=False)
]
FollowOption = Annotated[bool, typer.Option("--follow", help="Go on as the run does, until it ends.")]


def command(
    target: TargetArgument,
    at: AtOption = None,
    full: FullOption = False,
    attempt: AttemptOption = None,
    rank: RankOption = None,
    since: SinceOption = None,
    follow: FollowOption = False,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Tell a run's story from its log: what was seen, what was decided on it, and why.

    TIME is seconds of the run's clock (+12.5, 12s, 1h2m), or a moment as in 2026-11-30T05:48:28Z. A row's cause is
    named by the number of another row; what is folded is shown whole with --full.
    """
    if follow and (at is not None or attempt is not None or rank is not None or since is not None):
        raise UsageError("--follow tells the whole run as it goes on; it cannot be given with the other options")
    if at is not None and (attempt is not None or rank is not None or since is not None):
        raise UsageError("--at shows the state at one moment; it cannot be given with --attempt, --rank or --since")
    where = find(data, server, context)
    if follow:
        from runfold.cli.following import follow_story

        raise typer.Exit(asyncio.run(follow_story(where, target, as_json=output == "json", full=full)))
    early = _early(where, target, full=full) if at is None and output != "json" else None
    if at is not None:
        snapshot = _snapshot(where, target, at)
        show_json(snapshot) if output == "json" else show_lines(render_snapshot(snapshot, look(full=full)))
        return
    history = asyncio.run(open_history(where, target))
    if where.was_killed(target):
        say_killed(where, [target])
    _check_part(history, attempt, rank)
    told = story(history)
    if early is not None and told != msgspec.structs.replace(early, skipped=told.skipped, trouble=told.trouble):
        say_error("the story kept beside the archive is not what its entries tell: what follows is")
        early = None
    if early is None and output != "json":
        # The header first: the rows of a long log take a moment.
        _show_header(told, full=full, now=_now(history, told))
    since_t = None if since is None else moment_of(history, since)
    rows = timeline(history, attempt=attempt, rank=rank, since_t=since_t)
    if output == "json":
        show_json({"story": told, "timeline": rows})
        return
    show_lines(render_timeline(rows if full else on_screen(rows), look(full=full)))


def _early(where: Where, target: str, *, full: bool) -> Story | None:
    """Show what can be told of a long log before it is read; return the story, if it was that."""
    found = asyncio.run(glance(where, target, LONG_ENTRIES_MIN_COUNT))
    if isinstance(found, Status):
        from runfold.cli.get import status_text  # loads what speaks to a broker

        print_text(status_text(msgspec.structs.replace(found, ranks=()), where, datetime.now(UTC)))
        print_text(f"  {counted(found.head.n + 1, 'entry')} are being read\n")
        return None
    if found is not None:
        _show_header(found, full=full)
    return found


def _snapshot(where: Where, target: str, at: str) -> Snapshot:
    if (live := asyncio.run(live_state_at(where, target, at))) is not None:
        return live
    history = asyncio.run(open_history(where, target))
    say_followed(history)
    return state_at(history, at)


def _check_part(history: History, attempt: int | None, rank: int | None) -> None:
    """Raise `UsageError` for an attempt or a rank that the run has never had."""
    sizes = [
        item.num_workers for entry in history.telling for item in entry.transitions if isinstance(item, AttemptStarted)
    ]
    if attempt is not None and not 1 <= attempt <= len(sizes):
        raise UsageError(f"--attempt: {history.run} has had {counted(len(sizes), 'attempt')}, numbered from 1")
    ranks = max(sizes, default=0)
    if rank is not None and not 0 <= rank < ranks:
        raise UsageError(f"--rank: {history.run} has had {counted(ranks, 'rank')}, numbered from 0")


def _now(history: History, told: Story) -> str:
    """Return how old a run is that goes on; its story is as old as its newest entry."""
    if history.kind != "stream" or told.ended:
        return ""
    now, last = datetime.now(UTC), history.entries[-1]
    age_s = (now - datetime.fromisoformat(told.accepted_at)).total_seconds()
    quiet_s = (now - datetime.fromisoformat(last.at)).total_seconds()
    quiet = f"{seconds(max(quiet_s, 0))} after its newest entry"
    return f"now       {seconds(max(age_s, last.t))} after it was accepted, {quiet}"


def _show_header(told: Story, *, full: bool, now: str = "") -> None:
    show_lines(render_story(told, look(full=full)))
    if now:
        print_text(now)
    print_text("")
    sys.stdout.flush()
