"""Rules of the log itself: whole, linked, written by one, with causes and reasons."""

from __future__ import annotations

import math
from collections.abc import Iterator

from runfold.events.edges import EDGES
from runfold.events.transitions import (
    AnyTransition,
    AttemptStarted,
    ControllerChanged,
    LogRestored,
    RunAccepted,
    StateChanged,
    StateName,
)
from runfold.replay.finding import Evidence, Finding, damages
from runfold.replay.history import end_name
from runfold.replay.words import kind_of


def whole(evidence: Evidence) -> Iterator[Finding]:
    """Nothing was cut off, changed or lost of what was read."""
    yield from damages("whole", "truncated", "segment", "manifest", "blob", "output", "story", "foreign")(evidence)
    history = evidence.history
    if not history.links and not history.damages:
        yield Finding(rule="whole", what=f"no entry of a run stands in {history.target}")


def head(evidence: Evidence) -> Iterator[Finding]:
    """Heads kept outside agree with the log."""
    yield from damages("head", "head")(evidence)
    links = evidence.history.links
    for known in evidence.history.heads:
        n = known.head.n
        if n >= len(links):
            what = f"{known.kept_by} knows entry {n}; the log that can be believed ends with {len(links) - 1}"
            yield Finding(rule="head", n=len(links), what=what)
        elif links[n].hash != known.head.hash:
            what = f"entry {n} has the hash {links[n].hash[:12]}, {known.kept_by} knows {known.head.hash[:12]}"
            yield Finding(rule="head", n=n, where=links[n].where, what=what)


def strays(evidence: Evidence) -> Iterator[Finding]:
    """Nothing else stands among the entries."""
    for stray in evidence.history.strays:
        yield Finding(rule="strays", n=stray.n, where=stray.where, what=f"not the next entry: {stray.reason}")


def first_entry(evidence: Evidence) -> Iterator[Finding]:
    """Entry 0 accepts the run and names its controller."""
    if not evidence.history.links:
        return
    first = evidence.history.links[0].entry
    kinds = [type(transition) for transition in first.transitions]
    for kind in (RunAccepted, ControllerChanged):
        if kinds.count(kind) != 1:
            what = f"entry 0 holds {kinds.count(kind)} transitions {_name_of(kind)}, not 1"
            yield Finding(rule="first-entry", n=0, what=what)
    for entry, transition in evidence.transitions:
        if isinstance(transition, RunAccepted) and entry.n > 0:
            yield Finding(rule="first-entry", n=entry.n, what="the run is accepted a second time")


def _name_of(kind: type[AnyTransition]) -> str:
    return str(kind.__struct_config__.tag)


def legal_edges(evidence: Evidence) -> Iterator[Finding]:
    """Changes of state are edges of the machine."""
    state: StateName = "initializing"
    for entry, transition in evidence.transitions:
        if not isinstance(transition, StateChanged):
            continue
        before, after = transition.from_state, transition.to_state
        if before != state:
            what = f"{before} → {after}, but the state was {state}"
            yield Finding(rule="legal-edges", n=entry.n, what=what)
        elif after not in EDGES[before]:
            yield Finding(rule="legal-edges", n=entry.n, what=f"{before} → {after} is no edge of the state machine")
        state = after


def terminal_final(evidence: Evidence) -> Iterator[Finding]:
    """Nothing is decided after the end."""
    ended: StateName | None = None
    for entry, transition in evidence.transitions:
        if ended is not None and not isinstance(transition, LogRestored):
            yield Finding(rule="terminal-final", n=entry.n, what=f"{kind_of(transition)} after the run was {ended}")
        if isinstance(transition, StateChanged) and ended is None:
            ended = end_name(transition.to_state)


def reasons(evidence: Evidence) -> Iterator[Finding]:
    """Every transition says why."""
    for entry, transition in evidence.transitions:
        if not transition.reason.strip():
            yield Finding(rule="reason", n=entry.n, what=f"{kind_of(transition)} gives no reason")


def causes(evidence: Evidence) -> Iterator[Finding]:
    """Every transition points to something that stands in the log."""
    links = evidence.history.links
    for entry, transition in evidence.transitions:
        cause = transition.cause
        n = entry.n if cause.entry is None else cause.entry
        if not 0 <= n <= entry.n:
            yield Finding(rule="cause", n=entry.n, what=f"{kind_of(transition)} names entry {n} as its cause")
            continue
        there = links[n].entry
        place, items = (cause.transition, there.transitions) if cause.input is None else (cause.input, there.inputs)
        if place is None or not 0 <= place < len(items):
            what = f"{kind_of(transition)} names a cause that does not stand in entry {n}"
            yield Finding(rule="cause", n=entry.n, what=what)


def clock(evidence: Evidence) -> Iterator[Finding]:
    """The run's clock never goes back."""
    t = 0.0
    for link in evidence.history.links:
        now = link.entry.t
        if not math.isfinite(now) or now < t:
            yield Finding(rule="clock", n=link.entry.n, what=f"the run's clock goes from {t:.6f} to {now:.6f}")
        t = max(t, now) if math.isfinite(now) else t


def attempts(evidence: Evidence) -> Iterator[Finding]:
    """Attempts are counted."""
    attempt = 0
    for entry, transition in evidence.transitions:
        if isinstance(transition, AttemptStarted):
            if transition.attempt != attempt + 1:
                what = f"attempt {transition.attempt} follows attempt {attempt}"
                yield Finding(rule="attempts", n=entry.n, what=what)
            attempt = transition.attempt


def epochs(evidence: Evidence) -> Iterator[Finding]:
    """Controllers are counted."""
    epoch = 0
    for entry, transition in evidence.transitions:
        if isinstance(transition, LogRestored):
            epoch = max(epoch, transition.epoch)
        if isinstance(transition, ControllerChanged):
            if transition.epoch != epoch + 1:
                what = f"epoch {transition.epoch} follows epoch {epoch}"
                yield Finding(rule="epochs", n=entry.n, what=what)
            epoch = transition.epoch


def single_writer(evidence: Evidence) -> Iterator[Finding]:
    """Each entry is by the controller that has the run."""
    epoch, controller = 0, ""
    for link in evidence.history.links:
        entry = link.entry
        for transition in entry.transitions:
            if isinstance(transition, ControllerChanged):
                epoch, controller = transition.epoch, transition.controller
            elif isinstance(transition, LogRestored) and transition.epoch:
                epoch, controller = transition.epoch, transition.by
        if (entry.epoch, entry.by) != (epoch, controller):
            what = (
                f"written by {entry.by!r} in epoch {entry.epoch}; the run belonged to {controller!r} in epoch {epoch}"
            )
            yield Finding(rule="single-writer", n=entry.n, what=what)
