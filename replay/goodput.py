"""Goodput: how much of a run's clock went into training that counts, and what the rest went into."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from runfold.events.base import Document
from runfold.events.entry import Entry
from runfold.events.transitions import AttemptStarted, FailureDecided, FirstCauseRevised, StateChanged
from runfold.replay.at import When, moment_of
from runfold.replay.errors import BadMoment
from runfold.replay.history import History, end_name
from runfold.replay.spans import stretches_of
from runfold.replay.uses import USES, Stretch, Use, clipped, micros

_PER_S: Final = 1_000_000


class AttemptUse(Document, frozen=True, kw_only=True):
    """What the time of one attempt went into, `from_t` to `until_t` on the run's clock, and how it ended."""

    attempt: int
    from_t: float
    until_t: float
    productive_s: float
    uses_s: dict[str, float]
    ended: str


class Goodput(Document, frozen=True, kw_only=True):
    """What the time went into: `uses_s` has every name, and its values, as decimals, sum to `clock_s` exactly.

    `goodput` is the productive share, None of no time at all. `ended` says that the run will not go on.
    """

    run: str
    since_t: float
    until_t: float
    clock_s: float
    productive_s: float
    goodput: float | None
    uses_s: dict[str, float]
    attempts: tuple[AttemptUse, ...]
    ended: bool

    @property
    def badput_s(self) -> dict[str, float]:
        """What the time went into that was not productive, the largest part first; parts of no time left out."""
        bad = {name: value for name, value in self.uses_s.items() if name != "productive" and value > 0}
        return dict(sorted(bad.items(), key=lambda item: -item[1]))


def goodput(history: History, since: When | str | None = None, until: When | str | None = None) -> Goodput:
    """Return the goodput of a run, or of a part of its clock.

    Raises `CannotRead` when there is no entry, `BadMoment` for a moment that is none, or an end before the beginning.
    """
    head = history.head
    last_t = max(0.0, history.links[head.n].entry.t)
    since_t = 0.0 if since is None else moment_of(history, since)
    until_t = last_t if until is None else moment_of(history, until)
    if since is not None and until is not None and until_t < since_t:
        raise BadMoment(f"the part ends at {until_t:g} s (--until), before it begins at {since_t:g} s (--since)")
    since_t = min(since_t, last_t)
    until_t = max(since_t, min(until_t, last_t))
    return goodput_between(history.run, stretches_of(history), history.telling, since_t, until_t)


def goodput_between(
    run: str, stretches: Iterable[Stretch], telling: Sequence[Entry], since_t: float, until_t: float
) -> Goodput:
    """Return the goodput between two moments of a run's clock; `telling`: the entries that hold more than reports."""
    stretches = tuple(clipped(stretches, micros(since_t), micros(until_t)))
    clock = micros(until_t) - micros(since_t)
    totals = _totals(stretches)
    return Goodput(
        run=run,
        since_t=since_t,
        until_t=until_t,
        clock_s=clock / _PER_S,
        productive_s=totals["productive"] / _PER_S,
        goodput=totals["productive"] / clock if clock else None,
        uses_s=_seconds(totals),
        attempts=tuple(_attempts(stretches, _ends(telling))),
        ended=_ended(telling),
    )


def _totals(stretches: Iterable[Stretch]) -> dict[Use, int]:
    totals: dict[Use, int] = dict.fromkeys(USES, 0)
    for one in stretches:
        totals[one.use] += one.length
    return totals


def _seconds(totals: dict[Use, int]) -> dict[str, float]:
    return {name: value / _PER_S for name, value in totals.items()}


def _attempts(stretches: Iterable[Stretch], ends: dict[int, str]) -> Iterable[AttemptUse]:
    """Yield the use of each attempt; what came before the first belongs to it."""
    by_attempt: dict[int, list[Stretch]] = {}
    for one in stretches:
        by_attempt.setdefault(max(one.attempt, 1), []).append(one)
    for attempt, own in by_attempt.items():
        totals = _totals(own)
        yield AttemptUse(
            attempt=attempt,
            from_t=own[0].start / _PER_S,
            until_t=own[-1].end / _PER_S,
            productive_s=totals["productive"] / _PER_S,
            uses_s=_seconds(totals),
            ended=ends.get(attempt, ""),
        )


def _ends(telling: Iterable[Entry]) -> dict[int, str]:
    """Return how each attempt ended, in words."""
    ends: dict[int, str] = {}
    attempt = 0
    for entry in telling:
        for item in entry.transitions:
            match item:
                case AttemptStarted():
                    attempt = item.attempt
                case FailureDecided(failure=failure) | FirstCauseRevised(failure=failure):
                    ends[failure.attempt] = f"{failure.kind}: {failure.error.headline}"
                case StateChanged(to_state="shutting_down" | "resizing", reason=reason):
                    ends.setdefault(attempt, reason)
                case _:
                    continue
    return ends


def _ended(telling: Iterable[Entry]) -> bool:
    return any(
        isinstance(item, StateChanged) and end_name(item.to_state) for entry in telling for item in entry.transitions
    )
