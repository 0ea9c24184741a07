"""`runfold logs`: what the ranks printed."""

from __future__ import annotations

import asyncio
import heapq
import sys
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec
import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, RunArgument, ServerOption, say
from runfold.cli.show import print_json_line, print_text
from runfold.errors import EXIT_FINDINGS, NotFoundError
from runfold.events.counts import counted
from runfold.events.job import RUN_ID
from runfold.events.nats.output import follow_output, read_output
from runfold.events.output import OutputBatch, OutputRecord, records
from runfold.locate import find
from runfold.replay.archive import archive_path
from runfold.replay.errors import CannotRead
from runfold.replay.escape import safe
from runfold.replay.outputs import kept_outputs, read_kept
from runfold.replay.store import open_store
from runfold.replay.unarchive import read_last
from runfold.runs import check_rank, clients, known_status, live_status
from runfold.unknown import stopped_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from runfold.client import Client
    from runfold.locate import Where
    from runfold.replay.store import Store

END_POLL_S: Final = 0.2
LOG_POLL_S: Final = 5.0
DRAIN_TIMEOUT_S: Final = 10.0

RankOption = Annotated[int | None, typer.Option("--rank", metavar="N", help="Only this rank's.", show_default=False)]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")]


def command(
    run: RunArgument,
    rank: RankOption = None,
    follow: FollowOption = False,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Show what the ranks printed, each line with its attempt and rank. With -o json, one record a line.

    Of an archive each attempt is shown by the times of its lines; files in it that are damaged are named, the others
    are shown, and it ends with 1.
    """
    where = find(data, server, context)
    printer = Printer(rank, as_json=output == "json")
    ranks = asyncio.run(_logs(where, run, printer, follow=follow))
    if printer.empty:
        check_rank(run, rank, ranks)  # one of an earlier, larger group has printed something
    if printer.empty and not printer.damaged and output != "json":
        whose = "its ranks" if rank is None else f"rank {rank}"
        say(f"{run}: nothing is kept of what {whose} printed; it has {counted(ranks, 'rank')}, numbered from 0")
        if where.stopped:
            say(f"{stopped_text(where)}: what is printed is archived when a run has ended.")
    if printer.damaged:
        raise typer.Exit(EXIT_FINDINGS)


class Shown(NamedTuple):
    """A line as it is shown: one that was printed, or a note that something is missing there."""

    time_s: float
    what: OutputRecord | str


class Printer:
    """Prints batches; says what is missing, by the batches' numbers and by what they say was cut."""

    def __init__(self, rank: int | None, *, as_json: bool) -> None:
        self.rank = rank
        self._as_json = as_json
        self._next: dict[tuple[int, int], tuple[int, int]] = {}
        self.unheard: BrokenPipeError | None = None
        self.empty = True
        self.damaged = False

    def take(self, data: bytes) -> None:
        """Print a batch, unless it is another rank's."""
        for shown in self._lines(data):
            self._show(shown)

    def take_attempt(self, ranks: Iterable[Iterable[bytes]]) -> None:
        """Print the batches of each rank of an attempt, their lines by time."""
        for shown in heapq.merge(*map(self._lines_of, ranks), key=lambda shown: shown.time_s):
            self._show(shown)

    def miss(self, why: str) -> None:
        """Say that something kept cannot be shown."""
        self.damaged = True
        say(why)

    def _lines_of(self, batches: Iterable[bytes]) -> Iterator[Shown]:
        for data in batches:
            yield from self._lines(data)

    def _lines(self, data: bytes) -> Iterator[Shown]:
        try:
            batch = msgspec.json.decode(data, type=OutputBatch)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        if self.rank is not None and batch.rank != self.rank:
            return
        self.empty = False
        expected, told = self._next.get((batch.attempt, batch.rank), (1, 0))
        self._next[batch.attempt, batch.rank] = (batch.number + 1, batch.lines_before + len(batch.lines))
        if batch.number > expected:
            lost = f"{batch.lines_before - told} lines" if batch.lines_before > told else "some lines"
            yield _note(batch, f"… {lost} of earlier output are no longer kept")
        if batch.cut_bytes:
            yield _note(batch, f"… {batch.cut_bytes} bytes were printed faster than they are kept")
        for record in records(batch):
            yield Shown(record.time_s, record)

    def take_lasting(self, data: bytes) -> None:
        """Print a batch; that nobody reads it is `unheard`, and nothing more is printed then."""
        if self.unheard is None:
            try:
                self.take(data)
            except BrokenPipeError as error:
                self.unheard = error

    def _show(self, shown: Shown) -> None:
        if isinstance(record := shown.what, str):
            if not self._as_json:
                print_text(record)
            return
        if self._as_json:
            print_json_line(record)
            return
        when = datetime.fromtimestamp(record.time_s, tz=UTC).strftime("%H:%M:%S.%f")[:-3]
        mark = "!" if record.source == "stderr" else "|"
        # A file gets what was printed; a terminal nothing that could take it over.
        text = safe(record.text) if sys.stdout.isatty() else record.text
        sys.stdout.write(f"{when}  {record.attempt}.{record.rank} {mark} {text}\n")
        sys.stdout.flush()


def _note(batch: OutputBatch, text: str) -> Shown:
    return Shown(batch.lines[0].time_s if batch.lines else 0.0, f"{batch.attempt}.{batch.rank}  {text}")


async def _logs(where: Where, run: str, printer: Printer, *, follow: bool) -> int:
    """Print what is kept, and return how many ranks the run has."""
    async with clients(where) as each:
        async for client in each:
            if (status := await live_status(client, run)) is None:
                continue
            if follow:
                await _follow(client, run, printer, where.hint("logs", run))
                return status.world_size
            async for batch in read_output(client.connection, run, rank="*" if printer.rank is None else printer.rank):
                printer.take(batch.data)
            return status.world_size
    ranks = (await known_status(where, run)).world_size  # NotFoundError when the archive does not know it either
    _archived(_archive(where, run), printer)
    return ranks


def _archived(store: Store, printer: Printer) -> None:
    """Print what an archive keeps, attempt after attempt, as far as it can be read; say what cannot."""
    kept = kept_outputs(store)
    if kept.trouble:
        printer.miss(f"{kept.trouble}: shown is what stands in its folder")
    wanted = [one for one in kept.files if printer.rank in (None, one.rank)]
    for _, of_attempt in groupby(wanted, key=lambda one: one.attempt):
        ranks: list[tuple[bytes, ...]] = []
        for one in of_attempt:
            try:
                ranks.append(read_kept(store, one))
            except CannotRead as error:
                printer.miss(f"{error}. What else is kept is shown")
        printer.take_attempt(ranks)


def _archive(where: Where, run: str) -> Store:
    """Return the archive of a run, or the one that stands there itself; an exported file has nothing of this."""
    if RUN_ID.fullmatch(run):
        store = open_store(archive_path(where.data_dir, run))
        if read_last(store) is not None or not Path(run).is_dir():
            return store
    elif Path(run).is_file():
        raise NotFoundError(f"{run} is an exported file, which has nothing of what the ranks printed; an archive has")
    return open_store(run)


async def _until_ended(client: Client, run: str, printer: Printer) -> None:
    while printer.unheard is None:
        status, every_s = await client.status(run), END_POLL_S
        if status is None:
            # Lost with a broker: the log tells, which may be long.
            status, every_s = await live_status(client, run), LOG_POLL_S
        if status is None or status.terminal:
            return
        await asyncio.sleep(every_s)


async def _follow(client: Client, run: str, printer: Printer, again: str) -> None:
    """Print what comes until the run has ended and everything kept of it was printed; `again` prints it once more."""
    follower = follow_output(client.connection, run, lambda batch: printer.take_lasting(batch.data))
    try:
        await _until_ended(client, run, printer)
        if printer.unheard is None and not await follower.wait_caught_up(DRAIN_TIMEOUT_S):
            silence = f"the broker gave no more within {DRAIN_TIMEOUT_S:g} s"
            say(f"{run}: {silence}, and this may not be all that was printed. Ask again: {again}")
    finally:
        await follower.close()
    if printer.unheard is not None:
        raise printer.unheard
