"""What NCCL's own RAS knows of a job that makes no progress: which ranks of a communicator are behind.

Every NCCL process answers at `NCCL_RAS_ADDR`; one answers for the whole job. The report is text for people, of which
the details of each communicator are read; whatever it says besides is kept as it is.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

import msgspec

RAS_VARIABLE: Final = "NCCL_RAS_ADDR"
RAS_TIMEOUT_S: Final = 8.0
REPORT_MAX_BYTES: Final = 256 * 1024
READ_MAX_BYTES: Final = 16 * 1024
COMMUNICATORS_MAX_COUNT: Final = 64
SHOWN_MAX_COUNT: Final = 4
_ASK: Final = b"verbose status\n"

_COMMUNICATOR: Final = re.compile(r"^#(?P<number>\d+-\d+) \((?P<hash>[0-9a-f]+)\) (?P<verdict>[A-Z][A-Z /]*)$")
_WHAT: Final = re.compile(r"^\s+Communicator ranks have different (?P<what>.+)$")
_MANY: Final = re.compile(r"^\s+(?P<count>\d+) ranks have (?P<how>.+)$")
_ONE: Final = re.compile(r"^\s+Rank (?P<rank>\d+)(?: has (?P<how>.+?))? -- GPU ")
_MISSING: Final = re.compile(r"^\s+The missing ranks?: (?P<ranks>[\d, ]+)$")
_LOST: Final = re.compile(r"^(?P<verdict>DEAD|INCOMPLETE)$")
_PROCESS: Final = re.compile(r"^\s+Process (?P<pid>\d+) on node (?P<node>\S+) managing GPUs? (?P<gpus>[\d, ]+)$")
_OPERATION: Final = re.compile(r"^launched up to operation (?P<operation>\d+)$")
_STATUS: Final = re.compile(r"^status (?P<status>[A-Z]+)$")


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """So many ranks of a communicator have come equally far, or have the same status; `ranks` are those named."""

    count: int
    ranks: tuple[int, ...] = ()
    operation: int | None = None
    status: str | None = None

    @property
    def words(self) -> str:
        """Who, and where."""
        who = f"ranks {_listed(self.ranks)}" if len(self.ranks) == self.count > 0 else f"{self.count} ranks"
        if self.count == 1 and self.ranks:
            who = f"rank {self.ranks[0]}"
        if self.status is not None:
            return f"{who} {self.status}"
        return f"{who} at operation {self.operation}" if self.operation else f"{who} with none launched"


class Communicator(msgspec.Struct, frozen=True, kw_only=True):
    """A communicator of which RAS says that something is wrong: `what` its ranks differ in, and how they stand.

    Of `missing` ranks RAS has heard nothing.
    """

    name: str
    verdict: str
    what: str = ""
    standings: tuple[Standing, ...] = ()
    missing: tuple[int, ...] = ()

    @property
    def words(self) -> str:
        """In one line."""
        told: list[str] = []
        if self.what:
            told.append(f"different {self.what}: " + ", ".join(standing.words for standing in self.standings))
        if self.missing:
            told.append(f"nothing is heard of rank{'s' if len(self.missing) > 1 else ''} {_listed(self.missing)}")
        return f"communicator {self.name} {self.verdict}, {'; '.join(told)}"


class RasReport(msgspec.Struct, frozen=True, kw_only=True):
    """What RAS said, and what was read in it. `lost` are processes of which it hears nothing, in words."""

    text: str
    communicators: tuple[Communicator, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """In one line: what is wrong, or that RAS finds nothing."""
        found = [*self.lost, *(one.words for one in self.communicators)]
        if not found:
            return "NCCL finds its communicators as they should be"
        shown = found[:SHOWN_MAX_COUNT]
        more = len(found) - len(shown)
        return "NCCL: " + "; ".join(shown) + (f" and {more} more" if more > 0 else "")


def read_report(text: str) -> RasReport:
    """Read what RAS said; lines that are none of those known are passed over."""
    reading = _Reading()
    for line in text.splitlines():
        reading.take(line)
    reading.keep()
    return RasReport(text=text, communicators=tuple(reading.found), lost=tuple(reading.lost))


class _Reading:
    """The walk through a report: which communicator, or kind of loss, the line belongs to."""

    def __init__(self) -> None:
        self.found: list[Communicator] = []
        self.lost: list[str] = []
        self._name = self._verdict = self._what = ""
        self._standings: list[Standing] = []
        self._missing: tuple[int, ...] = ()

    def take(self, line: str) -> None:
        """Take the next line."""
        if (head := _COMMUNICATOR.match(line)) is not None:
            self.keep()
            self._name, self._verdict = f"#{head['number']} ({head['hash']})", head["verdict"]
        elif (kind := _LOST.match(line)) is not None:
            self.keep()
            self._verdict = kind["verdict"]
        elif self._name:
            self._detail(line)
        elif self._verdict and (process := _PROCESS.match(line)) is not None:
            where = f"process {process['pid']} on node {process['node']} (GPU {process['gpus']})"
            self.lost = [*self.lost, f"{where} {self._verdict}"][:COMMUNICATORS_MAX_COUNT]

    def _detail(self, line: str) -> None:
        if (differs := _WHAT.match(line)) is not None:
            name, verdict = self._name, self._verdict
            self.keep()
            self._name, self._verdict, self._what = name, verdict, differs["what"]
        elif (missing := _MISSING.match(line)) is not None:
            self._missing = tuple(int(rank) for rank in missing["ranks"].replace(",", " ").split())
        elif self._what:
            _add(self._standings, line)

    def keep(self) -> None:
        """Keep the communicator read so far, if there is something about it."""
        if self._name and (self._what or self._missing) and len(self.found) < COMMUNICATORS_MAX_COUNT:
            self.found.append(
                Communicator(
                    name=self._name,
                    verdict=self._verdict,
                    what=self._what,
                    standings=tuple(self._standings),
                    missing=self._missing,
                )
            )
        self._name = self._verdict = self._what = ""
        self._standings, self._missing = [], ()


def _add(standings: list[Standing], line: str) -> None:
    if (many := _MANY.match(line)) is not None:
        standings.append(_standing(int(many["count"]), (), many["how"]))
    elif (one := _ONE.match(line)) is not None:
        rank = int(one["rank"])
        if one["how"] is not None:
            standings.append(_standing(1, (rank,), one["how"]))
        elif standings:
            last = standings[-1]
            standings[-1] = msgspec.structs.replace(last, ranks=(*last.ranks, rank))


def _standing(count: int, ranks: tuple[int, ...], how: str) -> Standing:
    launched, status = _OPERATION.match(how), _STATUS.match(how)
    return Standing(
        count=count,
        ranks=ranks,
        operation=int(launched["operation"]) if launched is not None else None,
        status=status["status"] if status is not None else None,
    )


def _listed(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:SHOWN_MAX_COUNT]))
    more = len(ranks) - SHOWN_MAX_COUNT
    return f"{shown} and {more} more" if more > 0 else shown


async def ask_ras(address: str, timeout_s: float = RAS_TIMEOUT_S) -> RasReport | None:
    """Return what RAS at `host:port` says; None when nobody answers there, or not in time."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return None
    try:
        async with asyncio.timeout(timeout_s):
            text = await _ask(host.strip("[]") or "localhost", int(port))
    except (OSError, OverflowError):  # of which a time that is over is one
        return None
    return read_report(text) if text.strip() else None


async def _ask(host: str, port: int) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_ASK)
        await writer.drain()
        data = b""
        while len(data) < REPORT_MAX_BYTES and (piece := await reader.read(READ_MAX_BYTES)):
            data += piece
    finally:
        writer.close()
    return data[:REPORT_MAX_BYTES].decode(errors="replace")
