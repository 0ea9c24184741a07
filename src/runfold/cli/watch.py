"""`runfold watch`: follow a run until it ends."""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, TextIO

import typer

from runfold.awaited import supervisor_awaited
from runfold.cli.command import ContextOption, DataOption, OutputOption, RunArgument, ServerOption, say
from runfold.cli.running import exit_code_for
from runfold.cli.show import print_json_line, print_text
from runfold.client import open_client
from runfold.controller.status import status
from runfold.errors import EXIT_INTERRUPTED, NotFoundError, UnreachableError
from runfold.events.entry import Head
from runfold.events.fold import fold
from runfold.explain import ending_text
from runfold.follow import Told, follow_run, quarantine_told
from runfold.locate import find
from runfold.progress import progress
from runfold.room import shortage_told
from runfold.run import wait_refused
from runfold.sources import open_history
from runfold.unknown import not_running_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runfold.client import Client, Receipt
    from runfold.events.beats import RunnerBeat
    from runfold.events.state import RunState
    from runfold.follow import Following, Onlooker
    from runfold.locate import Where
    from runfold.replay.history import History


def command(
    run: RunArgument,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Follow a run until it ends; one that has ended is told from its beginning. With -o json, one status a line."""
    where = find(data, server, context)
    with goes_on(where, run):
        raise typer.Exit(asyncio.run(watch_run(where, run, stream=sys.stdout, as_json=output == "json")))


@contextmanager
def goes_on(where: Where, run: str) -> Iterator[None]:
    """Say on Ctrl-C that only the looking on has ended, and end as a program does that SIGINT has ended."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"{run} goes on; follow it again with: {where.hint('watch', run)}")
        raise typer.Exit(EXIT_INTERRUPTED) from None


async def watch_run(
    where: Where, run: str, *, stream: TextIO, as_json: bool = False, submitted: Receipt | None = None
) -> int:
    """Follow a run to its end, and return the exit code that tells how it ended.

    `submitted` is the receipt of a run that may not exist yet.
    """
    for address in where.services():
        async with open_client(address) as client:
            # A status may be lost with a broker, the log is not.
            if submitted is None and await client.status(run) is None and not await client.has_log(run):
                continue
            state = await _follow(client, run, stream, as_json, submitted)
            return _end(where, state, stream, as_json)
    if submitted is not None:
        raise NotFoundError(f"the service went away before {run} could be followed")
    state = _tell(await open_history(where, run), stream, as_json)
    if not state.terminal:
        why = not_running_text(where, run)
        raise UnreachableError(f"{run} had not ended; this is as far as the archive goes.\n{why}.")
    return _end(where, state, stream, as_json)


async def _follow(client: Client, run: str, stream: TextIO, as_json: bool, submitted: Receipt | None) -> RunState:
    digest = submitted.digest if submitted is not None else None
    with nullcontext(JsonLines()) if as_json else progress(stream, lasting=False) as onlooker:
        async with (
            quarantine_told(client, run, say),
            shortage_told(client, say),
            follow_run(client, run, onlooker, digest=digest) as following,
            supervisor_awaited(following, say),
        ):
            return await _ended(client, following, submitted)


async def _ended(client: Client, following: Following, submitted: Receipt | None) -> RunState:
    if submitted is None:
        return await following.wait_ended()
    ended = asyncio.ensure_future(following.wait_ended())
    refused = asyncio.ensure_future(wait_refused(client, submitted, following))
    try:
        await asyncio.wait({ended, refused}, return_when=asyncio.FIRST_COMPLETED)
        if refused.done():
            refused.result()
        return await ended
    finally:
        refused.cancel()
        ended.cancel()
        await asyncio.gather(refused, ended, return_exceptions=True)


def _tell(history: History, stream: TextIO, as_json: bool) -> RunState:
    """Tell a run that has ended, entry by entry, as if it were watched."""
    state: RunState | None = None

    def tell(onlooker: Onlooker) -> None:
        nonlocal state
        for link in history.links:
            state = fold(state, link.entry)
            onlooker.entry(Told(link.entry, state, Head(n=link.entry.n, hash=link.hash)))

    if as_json:
        tell(JsonLines())
    else:
        with progress(stream, lasting=False) as shown:
            tell(shown)
    if state is None:
        raise NotFoundError(f"nothing of the run {history.run} can be read: {history.trouble}")
    return state


def _end(where: Where, state: RunState, stream: TextIO, as_json: bool) -> int:
    if not as_json:
        print_text(f"\n{ending_text(state, where)}", stream)
    return exit_code_for(state.phase)


class JsonLines:
    """Prints the status after each entry, as JSON on one line."""

    def entry(self, told: Told) -> None:
        """Print the status after an entry."""
        print_json_line(status(told.state, told.head, told.state.accepted_at))

    def beat(self, beat: RunnerBeat) -> None:
        """Beats are not printed."""
