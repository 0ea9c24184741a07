"""`runfold observe`: tell callbacks of a run, from its first entry or from where they were."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, RunArgument, ServerOption
from runfold.cli.show import print_text
from runfold.client import open_client
from runfold.errors import EXIT_FINDINGS, UsageError
from runfold.events.fold import fold
from runfold.follow import follow_run
from runfold.locate import STORAGE_FOLDER, find
from runfold.observers import Observers, finished
from runfold.outcome import named_blob
from runfold.parcels import load_callback, named_callbacks
from runfold.result import result_of
from runfold.sources import live_history, open_history

if TYPE_CHECKING:
    from runfold.events.beats import RunnerBeat
    from runfold.events.entry import Entry
    from runfold.events.state import RunState
    from runfold.follow import Told
    from runfold.locate import Where

CallbacksArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CALLBACK]...", help="module:name of each callback, beside RUNFOLD_CALLBACKS."),
]
PositionOption = Annotated[
    Path | None,
    typer.Option("--position", metavar="FILE", help="Where they were, and are noted to be.", show_default=False),
]
LimitOption = Annotated[int, typer.Option("--failure-limit", metavar="N", help="callback_failure_limit.", min=1)]


def command(
    run: RunArgument,
    callbacks: CallbacksArgument = None,
    position: PositionOption = None,
    failure_limit: LimitOption = 3,
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Tell callbacks of a run to its end, each thing once and in order; one that raises too often is told no more."""
    everyone = [*named_callbacks(), *(load_callback(name) for name in callbacks or ())]
    if not everyone:
        raise UsageError("name a callback: `runfold observe RUN module:name`, or set RUNFOLD_CALLBACKS")
    where = find(data, server, context)
    observers = Observers(
        everyone, where.data_dir / STORAGE_FOLDER, failure_limit=failure_limit, position=_read(position)
    )
    told_before = observers.position
    state = asyncio.run(_observe(where, run, observers, position))
    if told_before < state.n:
        blob = asyncio.run(named_blob(where, run, state.return_blob)) if state.return_blob is not None else None
        observers.happen(finished(state, result_of(state, blob=blob, where=where)))
    failed = ", ".join(f"{name} {count}" for name, count in observers.failures.items())
    if failed:
        print_text(f"callbacks raised: {failed}")
        raise typer.Exit(EXIT_FINDINGS)


class _Telling:
    """Tells observers in the event loop: nothing else is to be done here."""

    def __init__(self, observers: Observers, position: Path | None) -> None:
        self._observers = observers
        self._position = position

    def entry(self, told: Told) -> None:
        """Tell of an entry, then note it."""
        self.tell(told.entry, told.state)

    def tell(self, entry: Entry, state: RunState) -> None:
        """Tell of an entry, then note it."""
        before = self._observers.position
        self._observers.tell(entry, state)
        if self._position is not None and self._observers.position != before:
            _note(self._position, self._observers.position)

    def beat(self, beat: RunnerBeat) -> None:
        """Beats are not in the log."""


async def _observe(where: Where, run: str, observers: Observers, position: Path | None) -> RunState:
    telling = _Telling(observers, position)
    for address in where.services():
        async with open_client(address) as client:
            if await live_history(client, run) is not None:
                async with follow_run(client, run, telling) as following:
                    return await following.wait_ended()
    state: RunState | None = None
    history = await open_history(where, run)
    for entry in history.entries:
        state = fold(state, entry)
        telling.tell(entry, state)
    if state is None:
        raise UsageError(f"{run}: its log holds no entries")
    return state


def _read(position: Path | None) -> int:
    if position is None or not position.exists():
        return -1
    text = position.read_text(encoding="utf-8").strip()
    if not text.removeprefix("-").isdigit():
        raise UsageError(f"--position {position}: holds no number of an entry but {text[:40]!r}")
    return int(text)


def _note(position: Path, n: int) -> None:
    beside = position.with_name(f"{position.name}.new")
    beside.write_text(f"{n}\n", encoding="utf-8")
    beside.replace(position)
