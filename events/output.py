"""A rank's output on the wire: numbered batches of lines, at most 64 KiB each, at most four a second a rank.

A reader finds what is missing: by a gap in the numbers (older batches that the stream no longer keeps), and by
`cut_bytes` (what a rank printed faster than it is kept).
"""

from __future__ import annotations

from typing import Literal

from runfold.events.base import Document, Value

OutputSource = Literal["stdout", "stderr"]


class OutputLine(Value, frozen=True, kw_only=True):
    """A line without its line end. `time_s` is when the runner read it, in seconds since 1970.

    `partial`: the line goes on in the next one of the same source (it was too long, or not finished when it was cut).
    """

    time_s: float
    source: OutputSource
    text: str
    partial: bool = False


class OutputBatch(Document, frozen=True, kw_only=True):
    """Lines of one rank of one attempt, numbered from 1 without a hole.

    `cut_bytes`: so many bytes were printed before `lines`, after the batch before, and are not kept.
    `lines_before`: how many lines the batches before it held. `last`: the process is gone, nothing follows.
    """

    v: int = 1
    kind: Literal["output"] = "output"
    run: str
    attempt: int
    rank: int
    node: str
    number: int
    lines: tuple[OutputLine, ...]
    cut_bytes: int = 0
    lines_before: int = 0
    last: bool = False


class OutputRecord(Document, frozen=True, kw_only=True):
    """One line of output as `logs -o json` prints it; `cut_bytes` as in the batch, told by its first record."""

    run: str
    attempt: int
    rank: int
    node: str
    source: OutputSource
    time_s: float
    text: str
    partial: bool = False
    cut_bytes: int = 0


def records(batch: OutputBatch) -> tuple[OutputRecord, ...]:
    """Return the lines of a batch, each saying by itself where it is from."""
    return tuple(
        OutputRecord(
            run=batch.run,
            attempt=batch.attempt,
            rank=batch.rank,
            node=batch.node,
            source=line.source,
            time_s=line.time_s,
            text=line.text,
            partial=line.partial,
            cut_bytes=0 if place else batch.cut_bytes,
        )
        for place, line in enumerate(batch.lines)
    )
