"""`runfold replay`: a run's story from its log, or its state at any point."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption
from runfold.cli.replaying import SinceOption, TargetArgument, look, show_json, show_lines
from runfold.cli.show import print_text
from runfold.errors import UsageError
from runfold.locate import find
from runfold.replay.at import moment_of, state_at
from runfold.replay.render import render_story, render_timeline
from runfold.replay.screen import on_screen
from runfold.replay.show import render_snapshot
from runfold.replay.story import story
from runfold.replay.timeline import timeline
from runfold.sources import open_history

if TYPE_CHECKING:
    from runfold.replay.history import History

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
    where = find(data, server, context)
    if follow:
        from runfold.cli.following import follow_story

        raise typer.Exit(asyncio.run(follow_story(where, target, as_json=output == "json", full=full)))
    history = asyncio.run(open_history(where, target))
    if at is not None:
        snapshot = state_at(history, at)
        show_json(snapshot) if output == "json" else show_lines(render_snapshot(snapshot, look(full=full)))
        return
    _tell(history, attempt, rank, since, full=full, as_json=output == "json")


def _tell(
    history: History, attempt: int | None, rank: int | None, since: str | None, *, full: bool, as_json: bool
) -> None:
    since_t = None if since is None else moment_of(history, since)
    told = story(history)
    if not as_json:
        # The header first: the rows of a long log take a moment.
        show_lines(render_story(told, look(full=full)))
        print_text("")
    rows = timeline(history, attempt=attempt, rank=rank, since_t=since_t)
    if as_json:
        show_json({"story": told, "timeline": rows})
        return
    show_lines(render_timeline(rows if full else on_screen(rows), look(full=full)))
