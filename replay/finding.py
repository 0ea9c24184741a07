"""What a rule of the audit is, what it finds, and what it looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec

from runfold.events.base import Document
from runfold.events.entry import Entry
from runfold.events.transitions import AnyTransition
from runfold.replay.history import Flaw, History, Where


class Finding(Document, frozen=True, kw_only=True):
    """Something that a rule forbids: at which entry, where it stands, what it is."""

    rule: str
    what: str
    n: int | None = None
    where: Where | None = None


class Evidence:
    """A history, and what several rules need of it, made once. `walked`: what the fold found, by rule."""

    def __init__(self, history: History, walked: Mapping[str, Sequence[Finding]] | None = None) -> None:
        self.history = history
        self.walked = walked or {}

    @cached_property
    def transitions(self) -> tuple[tuple[Entry, AnyTransition], ...]:
        """Every transition with its entry, in order."""
        return tuple([(entry, item) for entry in self.history.telling for item in entry.transitions])


Check = Callable[[Evidence], Iterator[Finding]]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule: what it means, what to do when it is broken, and how it is checked.

    `advice_beside`: what to do where all entries can be read, and what is wrong stands beside them; empty: the same.
    """

    id: str
    meaning: str
    advice: str
    check: Check
    advice_beside: str = ""


def damages(rule: str, *flaws: Flaw) -> Check:
    """Return the check for what was found wrong when the log was read."""

    def check(evidence: Evidence) -> Iterator[Finding]:
        for damage in evidence.history.damages:
            if damage.flaw in flaws:
                yield Finding(rule=rule, n=damage.n, where=damage.where, what=damage.what)

    return check


def walked(rule: str) -> Check:
    """Return the check of a rule that the fold looks after."""

    def check(evidence: Evidence) -> Iterator[Finding]:
        yield from evidence.walked.get(rule, ())

    return check
