"""The state as it was: at an entry, or at a moment of the run's clock or of the calendar."""

from __future__ import annotations

import re
from bisect import bisect_right
from datetime import UTC, datetime
from typing import Final, assert_never

from runfold.controller.timers import running_timers
from runfold.events.base import Document, Value
from runfold.events.conclusions import Timer
from runfold.events.edges import IllegalEdge
from runfold.events.entry import Entry
from runfold.events.fold import fold
from runfold.events.state import RunState
from runfold.replay.errors import BadMoment, CannotRead
from runfold.replay.history import History, Link

_NUMBER: Final = re.compile(r"\d{1,15}")
_CLOCK: Final = re.compile(r"\+?(?=\d)(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s?)?")
FORMS: Final = "an entry's number (17), seconds of the run's clock (12.5s, +5m, 1h30m) or a time (2026-11-30T05:48:28Z)"


class AtEntry(Value, frozen=True, kw_only=True):
    """After entry `n`."""

    n: int


class AtClock(Value, frozen=True, kw_only=True):
    """At `t` seconds of the run's clock."""

    t: float


class AtTime(Value, frozen=True, kw_only=True):
    """At a time of the calendar."""

    at: datetime


When = AtEntry | AtClock | AtTime


class RunningTimer(Document, frozen=True, kw_only=True):
    """A timer that ran: which one, and when it would be due on the run's clock."""

    timer: Timer
    due_t: float


class Snapshot(Document, frozen=True, kw_only=True):
    """The state after entry `n`, the newest at the moment asked for; `last` says that no entry follows.

    `timers`: those that ran then.
    """

    run: str
    n: int
    t: float
    at: str
    hash: str
    last: bool
    timers: tuple[RunningTimer, ...]
    state: RunState


def parse_when(text: str) -> When:
    """Return the moment a person means; raise `BadMoment` naming the forms.

    A whole number is an entry's. `+17`, `17s` and `17.0` are seconds of the run's clock.
    """
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return AtEntry(n=int(text))
    clock = _CLOCK.fullmatch(text)
    if clock is not None:
        return AtClock(t=sum(float(clock[unit] or 0) * seconds for unit, seconds in (("h", 3600), ("m", 60), ("s", 1))))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise BadMoment(f"{text!r} is no moment of a run: give {FORMS}") from None
    return AtTime(at=at if at.tzinfo is not None else at.replace(tzinfo=UTC))


def state_at(history: History, when: When | str | int) -> Snapshot:
    """Return the state at a moment; a moment between two entries has the state of the earlier.

    Raises `BadMoment` when the run had not begun, `CannotRead` when an entry up to there does not fold.
    """
    head = history.head
    moment = AtEntry(n=when) if isinstance(when, int) else parse_when(when) if isinstance(when, str) else when
    n = _entry_at(history, moment)
    state: RunState | None = None
    for link in history.links[: n + 1]:
        try:
            state = fold(state, link.entry)
        except (IllegalEdge, ValueError, LookupError) as error:
            raise CannotRead(f"entry {link.entry.n} of {history.run} cannot be folded: {error}. Try `audit`") from error
    if state is None:
        raise CannotRead(f"{history.target} holds no entry")
    link = history.links[n]
    return shown_state(state, link.entry, link.hash, last=n == head.n)


def shown_state(state: RunState, entry: Entry, digest: str, *, last: bool) -> Snapshot:
    """Return the state after an entry as it is shown; `last`: no entry follows."""
    return Snapshot(
        run=entry.run,
        n=entry.n,
        t=entry.t,
        at=entry.at,
        hash=digest,
        last=last,
        timers=tuple(RunningTimer(timer=timer, due_t=due_t) for timer, due_t in running_timers(state)),
        state=state,
    )


def final_state(history: History) -> Snapshot:
    """Return the state after the newest entry."""
    return state_at(history, AtEntry(n=history.head.n))


def moment_of(history: History, when: When | str) -> float:
    """Return a moment as seconds of the run's clock: an entry's, or one between two entries.

    A time of the calendar is counted from the last entry before it, and from the first when it lies before that.
    """
    moment = parse_when(when) if isinstance(when, str) else when
    if isinstance(moment, AtClock):
        return moment.t
    if isinstance(moment, AtEntry):
        return history.links[_entry_at(history, moment)].entry.t
    link = history.links[max(bisect_right(history.links, moment.at, key=_time_of) - 1, 0)]
    return max(0.0, link.entry.t + max(0.0, (moment.at - _time_of(link)).total_seconds()))


def _time_of(link: Link) -> datetime:
    try:
        at = datetime.fromisoformat(link.entry.at)
    except ValueError:
        raise CannotRead(f"entry {link.entry.n} says to be of {link.entry.at!r}, which is no time") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _entry_at(history: History, moment: When) -> int:
    last = history.links[-1].entry
    match moment:
        case AtEntry(n=n):
            if not 0 <= n <= last.n:
                raise BadMoment(f"{history.run} has no entry {n}: its entries are 0 to {last.n}")
            return n
        case AtClock(t=t):
            # Entry 0 opens the clock, so there is none before it.
            return max(bisect_right(history.links, t, key=lambda link: link.entry.t) - 1, 0)
        case AtTime(at=at):
            found = bisect_right(history.links, at, key=_time_of) - 1
            if found < 0:
                began = history.links[0].entry.at
                raise BadMoment(f"{history.run} did not exist at {at.isoformat()}: it began {began}")
            return found
        case _:
            assert_never(moment)
