"""Progress for people: live on a terminal, plain lines when piped. Told by the log; beats add what changes between."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from runfold.controller.words import entry_words
from runfold.events.base import Value
from runfold.events.counts import counted
from runfold.events.facts import PlacementFailed, Queued, Reported
from runfold.events.transitions import (
    CheckpointValidated,
    ControllerChanged,
    FailureDecided,
    RequestAccepted,
    RunAccepted,
    RunContinued,
    StateChanged,
)
from runfold.explain import metrics_text
from runfold.follow import Onlooker
from runfold.replay.escape import safe
from runfold.replay.words import input_words
from runfold.unheard import print_lasting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runfold.events.beats import RunnerBeat
    from runfold.events.entry import Entry
    from runfold.events.transitions import AnyTransition
    from runfold.follow import Told

REPORT_LINES_BURST_MAX: Final = 20
"""So many plain lines of reports may come at once; then two a second, and it is said how many were left out."""
REPORT_LINE_EVERY_S: Final = 0.5


class Line(Value, frozen=True):
    """One line of progress: time on the run's clock, what it is about, what is said."""

    t: float
    about: str
    text: str

    def __str__(self) -> str:
        return f"{self.t:9.3f} s  {self.about:<13} {safe(self.text)}".rstrip()


def decided_lines(entry: Entry, reason: str = "") -> Iterator[Line]:
    """Yield what an entry decided, as far as somebody who watches wants to know.

    A reason is said once; `reason` is what was said last.
    """
    for item in entry.inputs:
        if isinstance(item, Queued) or (isinstance(item, PlacementFailed) and item.verdict == "busy"):
            yield Line(entry.t, "waiting", input_words(item)[1])
    for transition in entry.transitions:
        again = transition.reason == reason
        if (said := _said(transition)) is not None:
            about, text = said
            yield Line(entry.t, about, text.removesuffix(reason).removesuffix(": ") if again else text)
            reason = transition.reason


def last_reason(entry: Entry, before: str) -> str:
    """Return the reason that was said last, after an entry."""
    reasons = [transition.reason for transition in entry.transitions if _said(transition) is not None]
    return reasons[-1] if reasons else before


def _said(transition: AnyTransition) -> tuple[str, str] | None:
    match transition:
        case RunAccepted(job=job):
            what = entry_words(job.entrypoint, job.name or "")
            return "accepted", f"{job.id}: {what} on {counted(job.scaling.max_workers, 'rank')}"
        case StateChanged(to_state="shutting_down" as state, next=next_state, reason=reason):
            return state, f"then {next_state}: {reason}"
        case StateChanged(to_state=state, reason=reason):
            return state, reason
        case FailureDecided(decision=decision, reason=reason):
            return f"failure:{decision}" if decision == "noop" else decision, reason
        case RequestAccepted(request=request, reason=reason):
            return request, reason
        case CheckpointValidated(outcome="failed" | "timed_out", reason=reason):
            return "validation", reason
        case RunContinued(run=run, checkpoint=checkpoint) if checkpoint is not None:
            return "continues", f"begins from {checkpoint}{f' of {run}' if run else ''}"
        case ControllerChanged(epoch=epoch, reason=reason) if epoch > 1:
            return "controller", reason
        case _:
            return None


def report_lines(entry: Entry) -> list[Line]:
    """Return the entry's reports, each once: as rank 0 made it.

    The metrics of other ranks stand in the log too where they came with files, or were asked for.
    """
    return [
        Line(entry.t, f"report {item.index}", metrics_text(item.metrics))
        for item in entry.inputs
        if isinstance(item, Reported) and item.rank == 0 and item.metrics is not None
    ]


class Progress(Onlooker, Protocol):
    """Progress that also shows what ranks print."""

    def printed(self, line: str) -> None:
        """Show a line that was printed."""
        ...


class PlainProgress:
    """Plain lines on a stream: every decision at once, every report while they come slowly enough to be read.

    `lasting`: the run is ours, and goes on when nobody reads the stream any more; otherwise that is `BrokenPipeError`.
    """

    def __init__(self, stream: TextIO, *, lasting: bool = True) -> None:
        self._stream = stream
        self._lasting = lasting
        self._allowed = float(REPORT_LINES_BURST_MAX)
        self._allowed_at_s = time.monotonic()
        self._held: Line | None = None
        self._left_out = 0
        self._reason = ""

    def entry(self, told: Told) -> None:
        """Print what the entry says."""
        for line in report_lines(told.entry):
            self._report(line)
        decided = list(decided_lines(told.entry, self._reason))
        self._reason = last_reason(told.entry, self._reason)
        if decided:
            self._flush()
        for line in decided:
            self._print(str(line))

    def beat(self, beat: RunnerBeat) -> None:
        """Beats are not printed: a pipe wants what is new."""

    def printed(self, line: str) -> None:
        """Print a line that a rank has printed."""
        self._print(line)

    def _report(self, line: Line) -> None:
        if self._held is not None:
            self._left_out += 1
        self._held = line
        now = time.monotonic()
        earned = (now - self._allowed_at_s) / REPORT_LINE_EVERY_S
        self._allowed, self._allowed_at_s = min(self._allowed + earned, float(REPORT_LINES_BURST_MAX)), now
        if self._allowed >= 1:
            self._allowed -= 1
            self._flush()

    def _flush(self) -> None:
        """Print the newest report held back, and how many before it were not printed."""
        if self._held is None:
            return
        more = f"  ({counted(self._left_out, 'report')} before it not shown)" if self._left_out else ""
        self._print(f"{self._held}{more}")
        self._held, self._left_out = None, 0

    def _print(self, text: str) -> None:
        if self._lasting:
            print_lasting(text, self._stream)
        else:
            print(text, file=self._stream, flush=True)


@contextmanager
def progress(stream: TextIO | None = None, *, lasting: bool = True) -> Iterator[Progress]:
    """Show progress for as long as the block lasts: live when the stream is a terminal, plain lines otherwise."""
    out = sys.stdout if stream is None else stream
    if not out.isatty():
        yield PlainProgress(out, lasting=lasting)
        return
    from runfold.live import LiveProgress

    with LiveProgress(out) as live:
        yield live
