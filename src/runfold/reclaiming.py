"""`gc`: what the broker keeps of runs that ended long ago, and that an archive holds whole, is given back."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.errors import UsageError
from runfold.events.base import Document
from runfold.events.entry import hash_entry
from runfold.events.nats.api import Api
from runfold.events.nats.cells import snapshot_cells, status_cells
from runfold.events.nats.collected import mark_collected, show_gone
from runfold.events.nats.generations import generations, open_log
from runfold.events.nats.snapshots import RunSnapshots
from runfold.events.remains import last_of
from runfold.events.snapshot import TAIL
from runfold.events.status import Status
from runfold.replay.archive import archive_path
from runfold.replay.errors import ReplayError
from runfold.replay.source import load

if TYPE_CHECKING:
    from pathlib import Path

    from runfold.events.nats.connection import Connection

_AGE: Final = re.compile(r"(?P<count>\d{1,6}(?:\.\d+)?)(?P<unit>[smhd])")
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class Reclaimed(Document, frozen=True, kw_only=True):
    """A run that was looked at: given back, or kept and why."""

    run: str
    ended_at: str
    messages: int = 0
    kept: str | None = None


def parse_age(text: str) -> float:
    """Return an age in seconds: `30d`, `12h`, `90m`, `3600s`; raise `UsageError` for anything else."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"--older-than: {text!r} is no age; give a number and s, m, h or d, as in 30d")
    return float(found["count"]) * _UNITS[found["unit"]]


async def reclaim(admin: Connection, data_dir: Path, older_than_s: float, *, dry_run: bool = False) -> list[Reclaimed]:
    """Purge runs that ended so long ago and whose archive verifies; the last entry stays, so that no id is used twice.

    Raises:
        BrokerError: the broker did not answer; what was purged is purged, the same call goes on.
    """
    before = datetime.now(UTC) - timedelta(seconds=older_than_s)
    done: list[Reclaimed] = []
    for key, cell in sorted((await status_cells(admin).read_all()).items()):
        status = msgspec.json.decode(cell.data, type=Status) if cell.data else None
        if status is None or not status.terminal or datetime.fromisoformat(status.since) > before:
            continue
        kept = await _why_kept(admin, data_dir, status)
        purged = 0 if kept is not None or dry_run else await _give_back(admin, key)
        done.append(Reclaimed(run=key, ended_at=status.since, messages=purged, kept=kept))
    return done


async def _why_kept(admin: Connection, data_dir: Path, status: Status) -> str | None:
    """Return why a run must stay; None when its archive holds all of it."""
    log = await open_log(admin, status.run)
    last = await Api(admin).last_message(admin.names.log, log.subject)
    if last is None:
        return "its log holds nothing"
    digest = hash_entry(last.data)
    try:
        archive = await asyncio.to_thread(load, archive_path(data_dir, status.run), deep=True)
    except ReplayError as error:
        return f"it is not archived: {error}"
    if archive.damages:
        return f"its archive does not verify: {archive.trouble}"
    if archive.head.hash != digest or status.head.hash != digest:
        return "its archive, its log and its status do not end alike; see `runfold audit`"
    return None


async def _give_back(admin: Connection, run: str) -> int:
    """Give back a run's messages; return how many. Cut short it is done again: its status goes last.

    What a key held last is replaced, never purged: a broker that is killed reads its files again, and would find what
    stood there before to be the last.
    """
    names, api = admin.names, Api(admin)
    log = await open_log(admin, run)
    message = await api.last_message(names.log, log.subject)
    last = None if message is None else last_of(run, message.data)
    if last is None:
        return 0
    given_back = await show_gone(admin, last)
    given_back += await mark_collected(snapshot_cells(admin), f"{run}.{TAIL}")
    everything = f"{names.namespace}.run.{run}"
    for stream, subject in ((names.output, f"{everything}.out.>"), (names.inbox, f"{everything}.>")):
        given_back += await api.purge_all(stream, subject)
    given_back += await _purge_snapshots(admin, run)
    for generation in await generations(admin, run):
        given_back += await api.purge(names.log, names.subjects.log(run, generation), 0, keep=1)
    return given_back + await mark_collected(status_cells(admin), run)


async def _purge_snapshots(admin: Connection, run: str) -> int:
    """Purge the snapshots that are written once and stay."""
    names, api, cells = admin.names, Api(admin), snapshot_cells(admin)
    stream = names.stream_of(names.snapshots_bucket)
    numbers = await RunSnapshots(admin, run).numbers()
    return sum([await api.purge_all(stream, cells.subject(f"{run}.{n}")) for n in numbers])
