"""Goodput, differences and what-if as lines for people; `look.py` says how lines are set."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from runfold.events.counts import counted
from runfold.replay.diff import packed
from runfold.replay.escape import safe
from runfold.replay.look import PLAIN, Look, field, seconds, state_paint
from runfold.replay.render import goodput_words, headline, render_row
from runfold.replay.uses import USES

if TYPE_CHECKING:
    from runfold.replay.diff import MomentDiff, RunDiff, Side, Turn
    from runfold.replay.differ import Change
    from runfold.replay.goodput import Goodput
    from runfold.replay.rows import Row
    from runfold.replay.verify import Decided
    from runfold.replay.whatif import WhatIf

_BAR_COUNT: Final = 24
CHANGES_SHOWN_MAX_COUNT: Final = 60
VALUE_CHARS_MAX: Final = 60
_POINTERS: Final = re.compile(r"(^|\.)(cause|news|last)\.|\.traceback$")
"""Fields that say where in the log something stands, not what it is."""


def render_goodput(found: Goodput, look: Look = PLAIN) -> Iterator[str]:
    """Yield what the time went into: the whole, each use with its share, and each attempt."""
    share = "none" if found.goodput is None else f"{found.goodput:.1%}"
    so_far = "" if found.ended else " so far"
    span = f"{found.since_t:.3f} to {found.until_t:.3f} s of its clock"
    yield f"{look.paint(safe(found.run), 'bold')}  goodput {look.paint(share, 'bold', 'green')}{so_far}  ({span})"
    width = max(map(len, USES))
    for name, meaning in USES.items():
        value = found.uses_s[name]
        part = value / found.clock_s if found.clock_s else 0.0
        if not value and name != "productive":
            continue
        bar = "█" * round(part * _BAR_COUNT)
        text = f"  {name.replace('_', ' '):<{width}}  {value:>14.6f} s  {part:>6.1%}  {bar:<{_BAR_COUNT}}"
        yield f"{text}  {look.paint(meaning, 'dim')}"
    yield f"  {'':<{width}}  {found.clock_s:>14.6f} s"
    if len(found.attempts) > 1:
        for attempt in found.attempts:
            span = f"{attempt.from_t:.3f}-{attempt.until_t:.3f} s"
            ended = f": {safe(attempt.ended)}" if attempt.ended else ""
            yield f"  attempt {attempt.attempt}, {span}: {attempt.productive_s:.3f} s productive{ended}"


def render_moments(found: MomentDiff, look: Look = PLAIN) -> Iterator[str]:
    """Yield what changed between two moments, and what happened in between."""
    a, b = found.a, found.b
    span = f"from entry {a.n} ({a.t:.3f} s) to entry {b.n} ({b.t:.3f} s)"
    yield f"{look.paint(safe(found.run), 'bold')}  {span}: {_entries(b.n - a.n)}"
    yield from _changes(found.changes, look)
    before: Row | None = None
    for row in found.rows:
        yield from render_row(row, before, look)
        before = row


def _entries(number: int) -> str:
    return counted(number, "entry")


def _changes(changed: tuple[Change, ...], look: Look) -> Iterator[str]:
    wanted = changed if look.full else [change for change in changed if not _POINTERS.search(change.path)]
    shown = wanted if look.full else wanted[:CHANGES_SHOWN_MAX_COUNT]
    for change in shown:
        yield f"  {safe(change.path)}: {_value(change.before)} → {look.paint(_value(change.after), 'bold')}"
    if len(changed) > len(shown):
        yield f"  … {len(changed) - len(shown)} fields more, shown with --full"


def _value(value: object) -> str:
    text = safe(packed(value))  # type: ignore[arg-type]  # a leaf of a document is JSON
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + "…"


def render_runs(found: RunDiff, look: Look = PLAIN) -> Iterator[str]:
    """Yield two runs beside each other: configuration, where they part, what came of them."""
    yield look.paint("configuration", "bold") + ("" if found.configuration else ": the same")
    yield from _changes(found.configuration, look)
    yield look.paint("course", "bold") + f": {counted(found.alike, 'decision')} alike"
    if found.parted is None:
        yield "  they never part"
    else:
        for side, turn in ((found.left, found.parted.left), (found.right, found.parted.right)):
            yield from _turn(side, turn, look)
    yield look.paint("outcome", "bold")
    for side in (found.left, found.right):
        yield from _side(side, look)


def _turn(side: Side, turn: Turn | None, look: Look) -> Iterator[str]:
    if turn is None:
        yield f"  {safe(side.run)}: decides nothing more"
        return
    yield f"  {safe(side.run)}: entry {turn.n} at {turn.t:.3f} s, on: {safe('; '.join(turn.on)) or 'nothing'}"
    yield f"    {look.paint(safe(turn.decided.what), 'yellow')}: {safe(turn.decided.reason)}"


def _side(side: Side, look: Look) -> Iterator[str]:
    state = look.paint(side.state.upper(), "bold", state_paint(side.state))
    share = "" if side.goodput is None else f", goodput {side.goodput:.1%}"
    counts = f"{counted(side.attempts, 'attempt')}, {counted(side.reports, 'report')}{share}"
    yield f"  {safe(side.run)}: {state} after {seconds(side.duration_s)} ({counts}): {safe(side.reason)}"
    if side.first_cause is not None:
        cause = side.first_cause.cause
        who = f"rank {cause.rank} on {cause.node}" if cause.rank is not None else cause.node or "the group"
        yield f"    failed: {safe(f'attempt {side.first_cause.attempt}: {who}: {headline(cause)}')}"


def render_what_if(found: WhatIf, look: Look = PLAIN) -> Iterator[str]:
    """Yield where the run would have parted, both decisions, what it comes to, and where the facts end."""
    asked = ", ".join(f"{item.path} = {_value(item.now)} (was {_value(item.was)})" for item in found.settings)
    yield f"{look.paint(safe(found.run), 'bold')}  if {safe(asked) or 'nothing were changed'}"
    details = (
        f"; {counted(found.details, 'entry').replace('entrys', 'entries')} differ in details" if found.details else ""
    )
    parted = found.parted
    if parted is None and found.informative_until == 0:
        same = f"on which every decision would have been the same{details}"
        yield from field("parted", f"nobody knows: not to be told by these facts, {same}", look, "yellow")
    elif parted is None:
        yield from field("parted", f"never: every decision would have been the same{details}", look, "green")
    else:
        place = f"before entry {parted.n}" if parted.before_it else f"at entry {parted.n}"
        when = f"{place}, {parted.t:.3f} s, while {parted.state.upper()}{details}"
        yield from field("parted", when, look, "bold")
        yield from field("on", safe("; ".join(parted.on)) or "nothing new", look)
        yield from _decisions("recorded", parted.recorded, look)
        yield from _decisions("instead", parted.instead, look)
    yield from field("up to it", goodput_words(found.up_to), look)
    if found.after is not None:
        yield from field("after it", f"in the record: {goodput_words(found.after)}", look)
        yield from field("balance", _balance(found), look)
    yield from field("facts", f"speak for the other course up to entry {found.informative_until}: {found.why}", look)


def _decisions(name: str, decided: tuple[Decided, ...], look: Look) -> Iterator[str]:
    if not decided:
        yield from field(name, "nothing", look)
    for place, item in enumerate(decided):
        yield from field("" if place else name, safe(f"{item.kind}: {item.what}: {item.reason}"), look, "yellow")


def _balance(found: WhatIf) -> str:
    if found.ends:
        lost = f"{seconds(found.work_lost_s)} of productive work would not have been done"
        return f"the run would have ended there: {seconds(found.time_saved_s)} saved, {lost}"
    if found.work_saved_s:
        return f"the run would have gone on: {seconds(found.work_saved_s)} of kept work would not have been given up"
    return "the run would have gone on: no kept work is saved or lost up to there"
