"""A run's history as it was read: its entries with their exact bytes, and whatever else stood there.

A message that is not the next link, by number and `prev`, is no entry (promise 12): it is skipped and remembered.
Messages behind the last link that claim to be later entries are what is left after a break: nothing of them is
believed, and the break is remembered with its entry and byte range.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final, Literal

import msgspec

from runfold.events.base import Value
from runfold.events.entry import GENESIS, Entry, Head, NotAnEntry, decode_entry, hash_entry
from runfold.events.facts import Reported
from runfold.events.limits import ENTRY_MAX_BYTES
from runfold.events.state import RunState
from runfold.events.transitions import EndName, StateName
from runfold.replay.errors import CannotRead

Kind = Literal["stream", "file", "archive"]
_REPORTS: Final[frozenset[type]] = frozenset({Reported})

Flaw = Literal["gap", "break", "truncated", "head", "foreign", "segment", "manifest", "blob", "output", "story"]
_OF_ENTRIES: Final[frozenset[Flaw]] = frozenset({"gap", "break", "truncated", "segment"})
"""Behind such damage there may have been entries that are lost."""


class Where(Value, frozen=True, kw_only=True):
    """Where bytes stand: a file and the range `start` to `end` (exclusive) in it, or a message of a stream."""

    file: str
    start: int = 0
    end: int = 0
    sequence: int | None = None

    def __str__(self) -> str:
        if self.sequence is not None:
            return f"message {self.sequence} of {self.file}"
        if not self.end:
            return self.file  # all of it
        return f"{self.file} bytes {self.start}-{self.end}"


class Raw(Value, frozen=True, kw_only=True):
    """Bytes that may be an entry."""

    data: bytes
    where: Where


class Link(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An entry of the chain: its exact bytes, their SHA-256 (hex), and where they stand."""

    entry: Entry
    data: bytes
    hash: str
    where: Where


class Stray(Value, frozen=True, kw_only=True):
    """A message that is no entry of the chain: `n` is the number it claims, if it claims one."""

    where: Where
    reason: str
    n: int | None = None


class Damage(Value, frozen=True, kw_only=True):
    """Something is not as it was written: what, at which entry, where, and what is lost by it."""

    flaw: Flaw
    what: str
    n: int | None = None
    where: Where | None = None


class KnownHead(Value, frozen=True, kw_only=True):
    """A head kept outside the entries: by the last line of a file, an archive, the assignment, the status."""

    kept_by: str
    head: Head


class KnownSnapshot(Value, frozen=True, kw_only=True):
    """A state kept outside the entries, as of entry `n` with that hash, so that a take-over need not fold all."""

    kept_by: str
    n: int
    hash: str
    state: RunState


class History(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What was read of a run, believed (`links`) and not (`strays`, `damages`)."""

    target: str
    kind: Kind
    run: str
    links: tuple[Link, ...]
    strays: tuple[Stray, ...] = ()
    damages: tuple[Damage, ...] = ()
    heads: tuple[KnownHead, ...] = ()
    snapshots: tuple[KnownSnapshot, ...] = ()

    def __repr__(self) -> str:
        # asyncio puts the result of what it ran into words: those of a long log would take seconds.
        return f"<{self.kind} {self.target!r}: {len(self.links)} entries of {self.run!r}>"

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The entries, in order."""
        return tuple([link.entry for link in self.links])

    @cached_property
    def telling(self) -> tuple[Entry, ...]:
        """The entries that hold more than reports: few, in a long run."""
        return tuple([entry for entry in self.entries if tells(entry)])

    @property
    def head(self) -> Head:
        """Number and hash of the newest entry; raise `CannotRead` when there is none."""
        if not self.links:
            raise CannotRead(f"{self.target}: no entry of a run could be read. {self.trouble}".rstrip())
        last = self.links[-1]
        return Head(n=last.entry.n, hash=last.hash)

    @property
    def trouble(self) -> str:
        """The first damage in one line; empty when there is none."""
        if not self.damages:
            return ""
        first = self.damages[0]
        more = f" (and {len(self.damages) - 1} more)" if len(self.damages) > 1 else ""
        return f"{first.what}{f' [{first.where}]' if first.where else ''}{more}"

    @property
    def followed(self) -> str:
        """In one line how far the log can be followed, and why no further; empty when nothing is damaged."""
        if not self.damages:
            return ""
        last = self.head.n
        if self.loses_entries:
            return f"{self.target}: the log can be followed only to entry {last}: {self.trouble}"
        return f"{self.target}: damaged, and all of its entries, to {last}, can be read: {self.trouble}"

    @property
    def loses_entries(self) -> bool:
        """Whether entries are damaged or missing, or may be, behind those that can be followed."""
        known = (known.head.n for known in self.heads)
        return any(damage.flaw in _OF_ENTRIES for damage in self.damages) or max(known, default=-1) >= len(self.links)

    @property
    def is_open(self) -> bool:
        """Whether this is an archive in which nothing is wrong but that it is not closed, as of a run that goes on."""
        flaws = {damage.flaw for damage in self.damages}
        return self.kind == "archive" and flaws == {"truncated"}

    def with_heads(self, *heads: KnownHead) -> History:
        """Return this history knowing further heads, as kept by the assignment and the status."""
        return msgspec.structs.replace(self, heads=(*self.heads, *heads))

    def with_snapshots(self, *snapshots: KnownSnapshot) -> History:
        """Return this history knowing states of it that were kept elsewhere."""
        return msgspec.structs.replace(self, snapshots=(*self.snapshots, *snapshots))


def tells(entry: Entry) -> bool:
    """Whether an entry holds more than reports."""
    return bool(entry.transitions) or not _REPORTS.issuperset(map(type, entry.inputs))


def end_name(state: StateName) -> EndName | None:
    """Return a state as the name of an end; None when it is none."""
    match state:
        case "finished" | "errored" | "aborted":
            return state
        case _:
            return None


class Linked(msgspec.Struct, frozen=True, kw_only=True):
    """The chain found in a row of messages."""

    run: str
    links: tuple[Link, ...]
    strays: tuple[Stray, ...]
    damages: tuple[Damage, ...]


class _Claim(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that is not the next link, with the hash of its bytes."""

    stray: Stray
    entry: Entry
    hash: str


class Linking:
    """Finds the chain from entry 0 in messages, given one after the other.

    `run` is the run they must be of; None takes it from entry 0.
    """

    def __init__(self, run: str | None = None) -> None:
        self._run = run
        self._links: list[Link] = []
        self._strays: list[Stray] = []
        self._tail: list[Stray | _Claim] = []
        self._prev = GENESIS

    def take(self, raws: Iterable[Raw]) -> None:
        """Take the next messages."""
        links, strays, tail, run, prev = self._links, self._strays, self._tail, self._run, self._prev
        n = len(links)
        for raw in raws:
            entry = _read(raw)
            if isinstance(entry, str):
                tail.append(Stray(where=raw.where, reason=entry))
                continue
            digest = hash_entry(raw.data)
            if entry.n == n and entry.prev == prev and (run is None or entry.run == run):
                links.append(Link(entry=entry, data=raw.data, hash=digest, where=raw.where))
                if tail:
                    strays.extend(map(_stray, tail))
                    tail.clear()
                run = entry.run
                n, prev = n + 1, digest
            else:
                tail.append(_Claim(stray=_why_not(entry, raw, run, n, prev), entry=entry, hash=digest))
        self._run, self._prev = run, prev

    def linked(self) -> Linked:
        """Return the chain, what was skipped, and where the chain breaks off."""
        lost = _break(self._links, self._strays, self._tail, self._run)
        strays = self._strays if lost is not None else [*self._strays, *map(_stray, self._tail)]
        return Linked(
            run=self._run or "",
            links=tuple(self._links),
            strays=tuple(strays),
            damages=() if lost is None else (lost,),
        )


def link_up(raws: Iterable[Raw], run: str | None = None) -> Linked:
    """Return the chain from entry 0 in these messages, what was skipped, and where the chain breaks off."""
    linking = Linking(run)
    linking.take(raws)
    return linking.linked()


def cut_lines(data: bytes, file: str) -> list[Raw]:
    """Return the lines of these bytes, each with its range; a last line may lack its newline."""
    raws: list[Raw] = []
    start = 0
    for line in data.split(b"\n"):
        end = start + len(line)
        raws.append(Raw(data=line, where=Where(file=file, start=start, end=end)))
        start = end + 1
    return raws


def _read(raw: Raw) -> Entry | str:
    if len(raw.data) > ENTRY_MAX_BYTES:
        return f"{len(raw.data)} bytes, more than entry_max_bytes ({ENTRY_MAX_BYTES})"
    try:
        return decode_entry(raw.data)
    except NotAnEntry as error:
        return str(error)
    except RecursionError:
        return "not an entry: nested too deeply"


def _stray(item: Stray | _Claim) -> Stray:
    return item.stray if isinstance(item, _Claim) else item


def _why_not(entry: Entry, raw: Raw, run: str | None, n: int, prev: str) -> Stray:
    if run is not None and entry.run != run:
        reason = f"an entry of the run {entry.run!r}, not of {run!r}"
    elif entry.n < n:
        reason = f"says to be entry {entry.n}, which stands already"
    elif entry.n > n:
        reason = f"says to be entry {entry.n}, where entry {n} belongs"
    else:
        reason = f"says to follow {entry.prev[:12]}, but the entry before it has the hash {prev[:12]}"
    return Stray(where=raw.where, reason=reason, n=entry.n)


def _break(
    links: Sequence[Link], strays: Sequence[Stray], tail: Sequence[Stray | _Claim], run: str | None
) -> Damage | None:
    """Return the break of the chain, if what stands behind its last link claims to go on with it."""
    n = len(links)
    later = [
        item
        for item in tail
        if isinstance(item, _Claim) and item.entry.n >= n and (run is None or item.entry.run == run)
    ]
    if not later:
        return None
    first = tail[0] if isinstance(tail[0], Stray) else later[0]
    where = _stray(first).where
    highest = max(item.entry.n for item in later)
    lost = f"{len(later)} later entries, up to {highest}, are not believed" if len(later) > 1 else "it is not believed"
    if isinstance(first, Stray):
        return Damage(flaw="break", n=n, where=where, what=f"entry {n} cannot be read: {first.reason}; {lost}")
    if first.entry.n > n:
        moved = next((f" (one says to be it at {stray.where}: out of order)" for stray in strays if stray.n == n), "")
        what = f"entry {n} is missing{moved}: entry {first.entry.n} follows; {lost}"
        return Damage(flaw="gap", n=n, where=where, what=what)
    if n == 0:
        return Damage(flaw="break", n=0, where=where, what=f"entry 0 names a predecessor, so it was changed; {lost}")
    before = links[-1]
    what = (
        f"entry {n} does not follow entry {n - 1} ({before.where}): it names {first.entry.prev[:12]}, the bytes there "
        f"have {before.hash[:12]}, so one of the two was changed after it was written; {lost}"
    )
    return Damage(flaw="break", n=n, where=where, what=what)
