"""Telling a run's story while it goes on: what stands so far on one screen, then row by row."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Final

from runfold.awaited import supervisor_awaited
from runfold.cli.command import say
from runfold.cli.replaying import look, show_json, show_lines
from runfold.cli.running import exit_code_for
from runfold.cli.show import print_text
from runfold.client import open_client
from runfold.events.fold import fold_all
from runfold.follow import follow_run
from runfold.replay.growing import Growing
from runfold.replay.render import render_row, render_story, render_timeline
from runfold.replay.screen import on_screen
from runfold.replay.story import story
from runfold.replay.timeline import timeline
from runfold.sources import live_history, open_history

if TYPE_CHECKING:
    from runfold.client import Client
    from runfold.events.beats import RunnerBeat
    from runfold.events.state import RunState
    from runfold.follow import Told
    from runfold.locate import Where
    from runfold.replay.history import History
    from runfold.replay.rows import Row

REPORTS_SHOWN_EVERY_S: Final = 2.0


async def follow_story(where: Where, target: str, *, as_json: bool, full: bool) -> int:
    """Tell a run to its end and return the exit code that says how it ended; one that has ended is told at once."""
    for address in where.services():
        async with open_client(address) as client:
            history = await live_history(client, target)
            if history is not None:
                return await _follow(client, history, as_json=as_json, full=full)
    history = await open_history(where, target)
    _tell(history, as_json=as_json, full=full)
    return exit_code_for(fold_all(history.entries).phase)


def _tell(history: History, *, as_json: bool, full: bool) -> None:
    rows = timeline(history)
    if as_json:
        for row in rows.rows:
            show_json(row)
        return
    show_lines(render_story(story(history), look(full=full)))
    print_text("")
    show_lines(render_timeline(rows if full else on_screen(rows), look(full=full)))
    sys.stdout.flush()


class _Teller:
    """Prints the rows of entries that are new."""

    def __init__(self, after_n: int, *, as_json: bool, full: bool) -> None:
        self._after_n = after_n
        self._as_json = as_json
        self._look = look(full=full)
        self._growing = Growing()
        self._before: Row | None = None

    def entry(self, told: Told) -> None:
        """Print what an entry completes."""
        self._print(self._growing.take(told.entry), told.entry.n > self._after_n)

    def beat(self, beat: RunnerBeat) -> None:
        """Beats are not told: they are not in the log."""

    def flush(self) -> None:
        """Print the reports that wait for what follows them."""
        self._print(self._growing.flush(), self._growing.entries - 1 > self._after_n)

    def _print(self, rows: tuple[Row, ...], new: bool) -> None:
        if not new:
            return
        for row in rows:
            if self._as_json:
                show_json(row)
            else:
                show_lines(render_row(row, self._before, self._look))
            self._before = row
        sys.stdout.flush()


async def _follow(client: Client, history: History, *, as_json: bool, full: bool) -> int:
    if history.links:
        _tell(history, as_json=as_json, full=full)
    teller = _Teller(len(history.links) - 1, as_json=as_json, full=full)
    async with follow_run(client, history.run, teller) as following, supervisor_awaited(following, say):
        ended = asyncio.ensure_future(following.wait_ended())
        try:
            while not ended.done():
                await asyncio.wait({ended}, timeout=REPORTS_SHOWN_EVERY_S)
                teller.flush()
            state: RunState = ended.result()
        finally:
            ended.cancel()
    if not as_json and state.n >= len(history.links):
        whole = await live_history(client, history.run)
        if whole is not None:
            print_text("")
            show_lines(render_story(story(whole), look(full=full)))
    return exit_code_for(state.phase)
