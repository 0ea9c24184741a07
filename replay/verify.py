"""Deciding again: the same inputs to the same decider must give the same transitions (DESIGN §3.11)."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final, Literal

import msgspec

from runfold.controller.decide import decide
from runfold.controller.decision import Unsettled
from runfold.controller.policies import DEFAULT, Policies
from runfold.events.base import Document
from runfold.events.conclusions import Decider
from runfold.events.edges import IllegalEdge
from runfold.events.entry import Entry, unknown_kinds
from runfold.events.fold import fold
from runfold.events.state import AnyState, RunState, Unborn
from runfold.events.transitions import AnyTransition, ControllerChanged, RunAccepted
from runfold.replay.history import History
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
    """An entry on whose inputs something else is decided now. `place`: the first transition that differs."""

    n: int
    t: float
    place: int
    recorded: tuple[Decided, ...]
    now: tuple[Decided, ...]
    by: Decider | None


class VerifyReport(Document, frozen=True, kw_only=True):
    """What came of deciding again.

    `agrees`: everything was decided alike. `diverges`: the decider that wrote the entry decides otherwise now, which
    must not be. `would_differ`: another decider than the one that wrote it does; what it would do is listed.
    `stopped`: the log could not be followed to its end; `stopped_by` says why.
    """

    run: str
    target: str
    outcome: Outcome
    checked: int
    entries: int
    decider: Decider
    divergences: tuple[Divergence, ...]
    stopped_by: str = ""

    @property
    def first(self) -> Divergence | None:
        """The first entry on which another decision was made."""
        return self.divergences[0] if self.divergences else None

    def exit_code(self, *, strict: bool = False) -> int:
        """Return 1 for what must not be; `strict` counts another decider's differences as well."""
        return 1 if self.outcome in ("diverges", "stopped") or (strict and self.divergences) else 0


def present_decider(policies: Policies = DEFAULT) -> Decider:
    """Return who decides here: this version of runfold with these policies, as `ControllerChanged` names it."""
    return Decider(version=version("runfold"), policies=policies.names)


def verify(history: History, policies: Policies = DEFAULT, decider: Decider | None = None) -> VerifyReport:
    """Decide again on every entry's inputs and compare; `decider` names who decides now (None: `present_decider`).

    Stops at the first divergence of the same decider. Raises `CannotRead` when there is no entry.
    """
    head = history.head
    decider = decider or present_decider(policies)
    state: RunState | None = None
    wrote: Decider | None = None
    found: list[Divergence] = []
    checked, stopped = 0, history.trouble
    diverged = False
    for link in history.links:
        entry = link.entry
        wrote = _decider(entry) or wrote
        try:
            now = decide(_before(state, entry), entry.inputs, entry.t, policies).transitions
            state = fold(state, entry)
        except (IllegalEdge, Unsettled, ValueError, LookupError) as error:
            stopped = f"entry {entry.n} cannot be followed: {error}"
            break
        checked += 1
        if now != entry.transitions:
            if unknown := unknown_kinds(link.data):
                stopped = f"entry {entry.n} holds {unknown[0].known_as!r}, which this version does not know"
                break
            found.append(_divergence(entry, now, wrote))
            diverged = wrote == decider
            if diverged or len(found) >= DIVERGENCES_MAX_COUNT:
                break
    return VerifyReport(
        run=history.run,
        target=history.target,
        outcome="diverges" if diverged else "stopped" if stopped else "would_differ" if found else "agrees",
        checked=checked,
        entries=head.n + 1,
        decider=decider,
        divergences=tuple(found),
        stopped_by=stopped,
    )


def _decider(entry: Entry) -> Decider | None:
    """Return the decider that an entry names, which decided this entry as well."""
    for transition in entry.transitions:
        if isinstance(transition, ControllerChanged):
            return transition.decider
    return None


def _before(state: RunState | None, entry: Entry) -> AnyState:
    """Return the state an entry was decided on; entry 0's is the job that it accepts."""
    if state is not None:
        return state
    for transition in entry.transitions:
        if isinstance(transition, RunAccepted):
            return Unborn(job=transition.job, digest=transition.digest, jobs_sequence=transition.jobs_sequence)
    raise ValueError("entry 0 accepts no run")


def _divergence(entry: Entry, now: tuple[AnyTransition, ...], by: Decider | None) -> Divergence:
    place = next(
        (k for k, (old, new) in enumerate(zip(entry.transitions, now, strict=False)) if old != new),
        min(len(entry.transitions), len(now)),
    )
    return Divergence(
        n=entry.n,
        t=entry.t,
        place=place,
        recorded=tuple(map(_decided, entry.transitions)),
        now=tuple(map(_decided, now)),
        by=by,
    )


def _decided(item: AnyTransition) -> Decided:
    return Decided(kind=kind_of(item), what=transition_words(item) or _edge(item), reason=item.reason, whole=item)


def _edge(item: AnyTransition) -> str:
    fields = msgspec.structs.asdict(item)
    return f"{fields.get('from_state')} → {fields.get('to_state')}"
