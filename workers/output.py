"""A rank's stdout and stderr: read as fast as they are written, kept in bounds, cut into numbered batches.

`OutputCut` is the part without I/O. A rank that prints more than four batches a second loses the oldest of what
waits, and that is said; the last lines are always kept, since they are what explains an end.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import msgspec

from runfold.events.limits import (
    LAST_LINES_MAX_BYTES,
    OUTPUT_BATCH_MAX_BYTES,
    OUTPUT_BATCHES_PER_S_MAX,
)
from runfold.events.output import OutputBatch, OutputLine, OutputSource

WAITING_MAX_BYTES: Final = 4 * OUTPUT_BATCH_MAX_BYTES
"""What may wait for its turn, a rank; beyond it the oldest is cut."""
BATCH_EVERY_S: Final = 1.0 / OUTPUT_BATCHES_PER_S_MAX
UNFINISHED_AFTER_S: Final = 1.0
"""A line without an end (a prompt, a progress bar) is shown after so long."""
LINE_MAX_BYTES: Final = 8 * 1024
"""Longer lines go on in the next one, marked so."""
SOON_MAX_COUNT: Final = 64
"""So many batches of a process are cut as soon as they may be."""
LINGER_S: Final = 5.0
"""How long later ones wait to be filled: a stream keeps so many batches, however little is in them."""
FILLED_BYTES: Final = OUTPUT_BATCH_MAX_BYTES // 4
"""A batch of so much does not wait."""
TAIL_MAX_BYTES: Final = 32 * 1024
"""What is remembered of the end: the last lines, and the stacks of a crash."""
_ENVELOPE_BYTES: Final = 1024
_ENCODER: Final = msgspec.json.Encoder()


class _Piece(NamedTuple):
    source: OutputSource
    read_s: float
    time_s: float
    data: bytes


class OutputCut:
    """One rank's output of one process. Times are handed in: `now` monotonic, `time_s` of the wall clock."""

    def __init__(self, run: str, attempt: int, rank: int, node: str) -> None:
        self._run = run
        self._attempt = attempt
        self._rank = rank
        self._node = node
        self._number = 0
        self._waiting: deque[_Piece] = deque()
        self._waiting_bytes = 0
        self._cut_bytes = 0
        self._tail = bytearray()
        self._lines = 0
        self._soonest_s = 0.0
        self._next_s = 0.0
        self._ended = False
        self._said_last = False

    def feed(self, source: OutputSource, data: bytes, now: float, time_s: float) -> None:
        """Take what was read of one stream."""
        self._tail += data[-TAIL_MAX_BYTES:]
        if len(self._tail) > 2 * TAIL_MAX_BYTES:
            del self._tail[:-TAIL_MAX_BYTES]
        self._waiting.append(_Piece(source, now, time_s, data))
        self._waiting_bytes += len(data)
        while self._waiting_bytes > WAITING_MAX_BYTES:
            oldest = self._waiting.popleft()
            self._waiting_bytes -= len(oldest.data)
            self._cut_bytes += len(oldest.data)

    def end(self) -> None:
        """Both streams are over."""
        self._ended = True

    @property
    def done(self) -> bool:
        """Whether all that is kept was taken, the last batch included."""
        return self._said_last

    def last_lines(self) -> str:
        """Return the end of the output: whole lines where possible, at most `last_lines_max_bytes`."""
        tail = bytes(self._tail[-LAST_LINES_MAX_BYTES:])
        if len(self._tail) > LAST_LINES_MAX_BYTES and b"\n" in tail[:-1]:
            tail = tail.partition(b"\n")[2]
        text = _text(tail)
        while len(text.encode()) > LAST_LINES_MAX_BYTES:
            text = text[len(text) // 8 + 1 :]
        return text

    def tail(self) -> str:
        """Return more of the end of the output than the last lines, as it is."""
        return _text(bytes(self._tail))

    def wake_at(self, now: float) -> float | None:
        """Return when `batch` should be asked; None for not before more is fed."""
        if self._said_last:
            return None
        if self._ended:
            return now
        if not self._waiting:
            return None
        if any(b"\n" in piece.data for piece in self._waiting) or self._waiting_bytes >= LINE_MAX_BYTES:
            return self._next_s if self._waiting_bytes < FILLED_BYTES else self._soonest_s
        return max(self._next_s, self._waiting[0].read_s + UNFINISHED_AFTER_S)

    def batch(self, now: float) -> OutputBatch | None:
        """Return the next batch if it is time for one: at the end all that waits, without regard to the rate."""
        due = self.wake_at(now)
        if due is None or now < due:
            return None
        lines = self._take_lines(now)
        last = self._ended and not self._waiting
        if not lines and not last:
            # Only unfinished lines: look again when they have waited long enough.
            self._next_s = self._soonest_s = now + BATCH_EVERY_S
            return None
        self._number += 1
        self._soonest_s = now + BATCH_EVERY_S
        self._next_s = self._soonest_s if self._number < SOON_MAX_COUNT else now + LINGER_S
        self._said_last = last
        cut, self._cut_bytes = self._cut_bytes, 0
        before, self._lines = self._lines, self._lines + len(lines)
        return OutputBatch(
            run=self._run,
            attempt=self._attempt,
            rank=self._rank,
            node=self._node,
            number=self._number,
            lines=tuple(lines),
            cut_bytes=cut,
            lines_before=before,
            last=last,
        )

    def _take_lines(self, now: float) -> list[OutputLine]:
        room = OUTPUT_BATCH_MAX_BYTES - _ENVELOPE_BYTES
        lines: list[OutputLine] = []
        unfinished: list[_Piece] = []
        for piece in self._joined():
            rest = piece.data
            while rest:
                line, taken = self._first_line(piece, rest, now)
                if line is None:
                    unfinished.append(piece._replace(data=rest))
                    break
                if (size := len(_ENCODER.encode(line)) + 1) > room:
                    room = 0
                    unfinished.append(piece._replace(data=rest))
                    break
                room -= size
                lines.append(line)
                rest = rest[taken:]
        self._waiting = deque(unfinished)
        self._waiting_bytes = sum(len(piece.data) for piece in unfinished)
        return lines

    def _joined(self) -> list[_Piece]:
        """Return what waits, with lines that were read in parts put together; order within a stream is kept."""
        joined: list[_Piece] = []
        open_at: dict[OutputSource, int] = {}
        for piece in self._waiting:
            at = open_at.get(piece.source)
            if at is not None and not joined[at].data.endswith(b"\n"):
                head, newline, rest = piece.data.partition(b"\n")
                joined[at] = joined[at]._replace(data=joined[at].data + head + newline)
                piece = piece._replace(data=rest)  # noqa: PLW2901  # what is left of it
            if piece.data:
                open_at[piece.source] = len(joined)
                joined.append(piece)
        return joined

    def _first_line(self, piece: _Piece, data: bytes, now: float) -> tuple[OutputLine | None, int]:
        """Return the first line of `data` and how many bytes it takes; None while it may still go on."""
        end = data.find(b"\n", 0, LINE_MAX_BYTES + 1)
        if end >= 0:
            return _line(piece, data[:end].removesuffix(b"\r"), partial=False), end + 1
        if len(data) > LINE_MAX_BYTES:
            cut = _character_start(data, LINE_MAX_BYTES)
            return _line(piece, data[:cut], partial=True), cut
        if self._ended:
            return _line(piece, data, partial=False), len(data)
        if now >= piece.read_s + UNFINISHED_AFTER_S:
            return _line(piece, data, partial=True), len(data)
        return None, 0


def _line(piece: _Piece, data: bytes, *, partial: bool) -> OutputLine:
    return OutputLine(time_s=piece.time_s, source=piece.source, text=_text(data), partial=partial)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _character_start(data: bytes, at: int) -> int:
    """Return the nearest place at or before `at` where a character of UTF-8 begins."""
    place = at
    while place > at - 4 and data[place] & 0xC0 == 0x80:  # a continuation byte
        place -= 1
    return place
