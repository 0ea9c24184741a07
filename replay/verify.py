"""Deciding again: the same inputs to the same decider must give the same transitions (promise 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from runfold.controller.decide import settle
from runfold.controller.decision import Unsettled
from runfold.controller.policies import DEFAULT, Policies
from runfold.events.base import Document
from runfold.events.conclusions import Decider
from runfold.events.edges import IllegalEdge
from runfold.events.entry import Entry, unknown_kinds
from runfold.events.fold import fold
from runfold.events.state import AnyState, RunState, Unborn
from runfold.events.transitions import AnyTransition, ControllerChanged, RunAccepted
from runfold.replay.history import History, Link
from runfold.replay.intended import Intended
from runfold.replay.words import kind_of, transition_words

DIVERGENCES_MAX_COUNT: Final = 100

Outcome = Literal["agrees", "diverges", "would_differ", "stopped"]


class Decided(Document, frozen=True, kw_only=True):
    """One decision in words: its kind, what it is, why, and whole as recorded."""

    kind: str
    what: str
    reason: str
    whole: AnyTransition


class Divergence(Document, frozen=True, kw_only=True):
    """An entry on whose inputs something else is decided now. `place`: the first transition that differs.

    `intended`: why another decider is meant to, as the log's list of intended differences says.
    """

    n: int
    t: float
    place: int
    recorded: tuple[Decided, ...]
    now: tuple[Decided, ...]
    by: Decider | None
    intended: str = ""


class VerifyReport(Document, frozen=True, kw_only=True):
    """What came of deciding again.

    `agrees`: everything was decided alike. `diverges`: the decider that wrote the entry decides otherwise now, which
    must not be. `would_differ`: another decider than the one that wrote it does; what it would do is listed.
    `divergences` are the first of them; `more` were found behind those, `more_unintended` of which nobody meant.
    `stopped`: the log could not be followed to its end; `stopped_by` says why. `unneeded`: differences that were
    intended and do not show: the list is to be shortened.
    """

    run: str
    target: str
    outcome: Outcome
    checked: int
    entries: int
    decider: Decider
    divergences: tuple[Divergence, ...]
    more: int = 0
    more_unintended: int = 0
    stopped_by: str = ""
    unneeded: tuple[Intended, ...] = ()

    @property
    def first(self) -> Divergence | None:
        """The first entry on which another decision was made."""
        return self.divergences[0] if self.divergences else None

    @property
    def unintended(self) -> tuple[Divergence, ...]:
        """The entries listed on which another decision was made that nobody meant."""
        return tuple(one for one in self.divergences if not one.intended)

    def exit_code(self, *, strict: bool = False) -> int:
        """Return 1 for what must not be; `strict` counts another decider's differences that are not intended too."""
        return 1 if self.outcome in ("diverges", "stopped") or (strict and self._is_to_be_looked_at) else 0

    @property
    def _is_to_be_looked_at(self) -> bool:
        return bool(self.unintended or self.more_unintended or self.unneeded)


def present_decider(policies: Policies = DEFAULT) -> Decider:
    """Return who decides here: this version of runfold with these policies, as `ControllerChanged` names it."""
    return Decider(version=version("runfold"), policies=policies.names)


def verify(
    history: History,
    policies: Policies = DEFAULT,
    decider: Decider | None = None,
    intended: Sequence[Intended] = (),
) -> VerifyReport:
    """Decide again on every entry's inputs and compare; `decider` names who decides now (None: `present_decider`).

    `intended` are the differences that another decider is meant to show. Stops at the first divergence of the same
    decider. Raises `CannotRead` when there is no entry.
    """
    head = history.head
    again = _Again(policies, decider or present_decider(policies), {item.entry: item.reason for item in intended})
    again.follow(history)
    stopped = again.stopped or history.trouble
    return VerifyReport(
        run=history.run,
        target=history.target,
        outcome="diverges" if again.diverged else "stopped" if stopped else "would_differ" if again.found else "agrees",
        checked=again.checked,
        entries=head.n + 1,
        decider=again.decider,
        divergences=tuple(again.found),
        more=again.more,
        more_unintended=again.more_unintended,
        stopped_by=stopped,
        unneeded=tuple(item for item in intended if item.entry < again.checked and item.entry not in again.shown),
    )


class _Again:
    """Deciding again, entry by entry. `wrote` is who decided the entry being looked at."""

    def __init__(self, policies: Policies, decider: Decider, intended: Mapping[int, str]) -> None:
        self.policies = policies
        self.decider = decider
        self.intended = intended
        self.state: RunState | None = None
        self.wrote: Decider | None = None
        self.found: list[Divergence] = []
        self.more = self.more_unintended = 0
        self.shown: set[int] = set()  # the entries whose difference was intended, and is there
        self.checked = 0
        self.stopped = ""
        self.diverged = False

    def follow(self, history: History) -> None:
        """Decide on every entry, as far as the log can be followed."""
        for link in history.links:
            try:
                differs = self._differs(link.entry)
            except (IllegalEdge, Unsettled, ValueError, LookupError) as error:
                self.stopped = f"entry {link.entry.n} cannot be followed: {error}"
                return
            self.checked += 1
            if differs is not None and not self._note(link, differs):
                return

    def _differs(self, entry: Entry) -> tuple[AnyTransition, ...] | None:
        """Return what is decided now, if it is not what was; go on as the log does."""
        self.wrote = _decider(entry) or self.wrote
        decided, settled = settle(before(self.state, entry), entry.inputs, entry.t, self.policies, entry.cursor)
        if decided == entry.transitions:
            # What was decided alike has folded alike, which need not be done again.
            self.state = settled if self.state is not None else replace(settled, accepted_at=entry.at)
            return None
        self.state = fold(self.state, entry)
        return decided

    def _note(self, link: Link, now: tuple[AnyTransition, ...]) -> bool:
        """Remember a difference; return whether to go on."""
        if unknown := unknown_kinds(link.data):
            self.checked -= 1
            self.stopped = f"entry {link.entry.n} holds {unknown[0].known_as!r}, which this version does not know"
            return False
        self.diverged = self.wrote == self.decider
        reason = "" if self.diverged else self.intended.get(link.entry.n, "")
        if link.entry.n in self.intended:
            self.shown.add(link.entry.n)
        if len(self.found) < DIVERGENCES_MAX_COUNT or self.diverged:
            self.found.append(_divergence(link.entry, now, self.wrote, reason))
        else:
            self.more += 1
            self.more_unintended += not reason
        return not self.diverged


def _decider(entry: Entry) -> Decider | None:
    """Return the decider that an entry names, which decided this entry as well."""
    for transition in entry.transitions:
        if isinstance(transition, ControllerChanged):
            return transition.decider
    return None


def before(state: RunState | None, entry: Entry) -> AnyState:
    """Return the state an entry was decided on; entry 0's is the job that it accepts."""
    if state is not None:
        return state
    for transition in entry.transitions:
        if isinstance(transition, RunAccepted):
            return Unborn(job=transition.job, digest=transition.digest, jobs_sequence=transition.jobs_sequence)
    raise ValueError("entry 0 accepts no run")


def _divergence(entry: Entry, now: tuple[AnyTransition, ...], by: Decider | None, intended: str) -> Divergence:
    place = next(
        (k for k, (old, new) in enumerate(zip(entry.transitions, now, strict=False)) if old != new),
        min(len(entry.transitions), len(now)),
    )
    return Divergence(
        n=entry.n,
        t=entry.t,
        place=place,
        recorded=tuple(map(in_words, entry.transitions)),
        now=tuple(map(in_words, now)),
        by=by,
        intended=intended,
    )


def in_words(item: AnyTransition) -> Decided:
    """Return a decision in words."""
    return Decided(kind=kind_of(item), what=transition_words(item) or _edge(item), reason=item.reason, whole=item)


def _edge(item: AnyTransition) -> str:
    fields = msgspec.structs.asdict(item)
    return f"{fields.get('from_state')} → {fields.get('to_state')}"
