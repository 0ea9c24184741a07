"""A run in one file: the exact bytes of its entries, one a line, and a last line with the head.

Every byte is covered: entries by the chain and the head, the whole by the digest in the last line, and the last line
by being exactly the bytes that this program writes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec

from runfold.events.base import Document
from runfold.events.counts import counted
from runfold.events.entry import Head
from runfold.replay.errors import ExportRefused
from runfold.replay.history import Damage, History, KnownHead, Link, Raw, Where, cut_lines, link_up


class LastLine(Document, frozen=True, kw_only=True, tag_field="kind", tag="head"):
    """The last line of an export. `sha256` is of every byte before this line."""

    v: Literal[1] = 1
    run: str
    head: Head
    entries: int
    sha256: str


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(LastLine)


def export_lines(history: History) -> Iterator[bytes]:
    """Yield the lines of an export, each with its newline: every entry's exact bytes, then the head.

    Raises `ExportRefused` at once when the log is damaged: its head would be that of what is left, and look whole.
    """
    refuse_damaged(history)
    return exported(history.run, history.head, history.links)


def refuse_damaged(history: History) -> None:
    """Raise `ExportRefused` for a damaged log; an archive that is not closed is one of a run that goes on."""
    if history.damages and not history.is_open:
        name = history.run or history.target
        raise ExportRefused(
            f"{name} was not exported: its log is damaged. {history.trouble}. "
            f"Take another copy; `runfold audit {history.target}` tells what is wrong with this one"
        )


def exported(run: str, head: Head, links: Iterable[Link]) -> Iterator[bytes]:
    """Yield the lines of an export of these entries, the newest of which is `head`."""
    whole = hashlib.sha256()
    for link in links:
        line = link.data + b"\n"
        whole.update(line)
        yield line
    yield _ENCODER.encode(LastLine(run=run, head=head, entries=head.n + 1, sha256=whole.hexdigest())) + b"\n"


def read_export(data: bytes, name: str) -> History:
    """Return the history in an exported file's bytes; `name` is what the file is called in findings.

    Damage is remembered, not raised: a file cut short still tells what is left of it.
    """
    *lines, rest = cut_lines(data, name)
    damages: list[Damage] = []
    if rest.data:
        damages.append(Damage(flaw="truncated", where=rest.where, what="the file ends in the middle of a line"))
    last = _last_line(lines, damages, name)
    linked = link_up(lines)
    if last is not None:
        damages.extend(_disagreements(last[0], last[1], data, linked.run, len(linked.links)))
    return History(
        target=name,
        kind="file",
        run=linked.run or (last[0].run if last else ""),
        links=linked.links,
        strays=linked.strays,
        damages=(*linked.damages, *damages),
        heads=(KnownHead(kept_by=f"the last line of {name}", head=last[0].head),) if last else (),
    )


def _last_line(lines: list[Raw], damages: list[Damage], name: str) -> tuple[LastLine, Where] | None:
    """Take the last line off, when it is one; say what is wrong when it is not."""
    if not lines:
        damages.append(Damage(flaw="truncated", where=Where(file=name), what="the file holds no whole line"))
        return None
    raw = lines[-1]
    try:
        last = _DECODER.decode(raw.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = f"the last line is not the head of an export ({error}): the file was cut short, or that line was changed"
        damages.append(Damage(flaw="truncated", where=raw.where, what=what))
        return None
    lines.pop()
    if _ENCODER.encode(last) != raw.data:
        what = "the last line is not as it was written: its bytes are not those of the head that it states"
        damages.append(Damage(flaw="head", where=raw.where, what=what))
    return last, raw.where


def _disagreements(last: LastLine, where: Where, data: bytes, run: str, found: int) -> Iterator[Damage]:
    """What the last line states of the lines before it, against them. The head itself is compared by the audit."""
    if last.run != run:
        what = f"the last line is of the run {last.run!r}, the entries are of {run!r}"
        yield Damage(flaw="head", where=where, what=what)
    if last.entries != found:
        stated = counted(last.entries, "entry")
        what = f"the last line states {stated}; {found} stand in the file and follow from one another"
        yield Damage(flaw="head", n=found, where=where, what=what)
    if last.sha256 != hashlib.sha256(memoryview(data)[: where.start]).hexdigest():
        what = "the lines before the last one are not the bytes that were exported"
        yield Damage(flaw="head", where=where, what=what)
