"""Liveness: who is silent, who makes no progress. Pure: observed time in, conclusions out.

Silence and standstill are counted in *observed* time: seconds in which everything that was said could be heard. The
shell says how many those are; here nothing knows a clock. What a conclusion changes stands in the state, so that the
same thing is concluded once, whoever looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from runfold.events.base import Value
from runfold.events.conclusions import ProgressStopped, SilenceConcluded
from runfold.events.edges import GROUP_AT_WORK, state_name
from runfold.events.state import Preempting, Running

if TYPE_CHECKING:
    from runfold.events.state import Group, Place, Rank, RunState, Source

HEARD_WITHIN_BEATS: Final = 3.0
"""Within so many beats must a runner have been heard for the standstill of its ranks to count."""
PROGRESS_MIN_S: Final = 60.0
PROGRESS_GAPS: Final = 10
"""Without a report for so many times its median gap, and `progress_min_s` at least, a rank is said to stand still."""
GAPS_KEPT_COUNT: Final = 15
_DIGITS: Final = 3


class Voice(Value, frozen=True, kw_only=True):
    """A source as it is heard.

    `silence_s` grows while it is not. `clock_s` grows while it is, and nothing that it said is missing: by this the
    standstill of its ranks is measured. `number` is the highest that it has given to a fact.
    """

    incarnation: int = 0
    silence_s: float = 0.0
    heard: bool = False
    clock_s: float = 0.0
    number: int = 0
    folded: int = 0
    paused: frozenset[int] = frozenset()


class Pace(Value, frozen=True, kw_only=True):
    """How a rank reports: its last index, its source's clock then, the gaps between its last reports.

    `limit_s`: without a report for so long it is said to stand still; None while no gap is known.
    """

    life: int
    index: int
    moved_s: float
    gaps: tuple[float, ...] = ()
    limit_s: float | None = None


class Watch(Value, frozen=True, kw_only=True):
    """What is known of a run's signs of life, by this controller alone: nothing of it is in the log.

    `nodes` are those that the pool's supervisor listed last; None before it was heard.
    """

    voices: dict[str, Voice] = {}
    paces: dict[int, Pace] = {}
    attempt: int = 0
    nodes: frozenset[str] | None = None


class Beat(Value, frozen=True, kw_only=True):
    """What matters of a runner's beat."""

    incarnation: int
    number: int
    paused: frozenset[int] = frozenset()
    unsaid_s: float = 0.0


class Heard(Value, frozen=True, kw_only=True):
    """What was heard since the last tick: the newest beat of each runner, the nodes of the pool if its beat came.

    `unsaid_s`: for how long one of them has something to say of the run that the broker does not take.
    """

    beats: Mapping[str, Beat] = {}
    nodes: frozenset[str] | None = None
    unsaid_s: float = 0.0


Conclusions = tuple[SilenceConcluded | ProgressStopped, ...]


def tick(watch: Watch, state: RunState, heard: Heard, tick_s: float) -> tuple[Watch, Conclusions]:
    """Let `tick_s` of observed time pass; 0 when nothing can be said about it. Return what is concluded by now."""
    group = state.group
    voices = {name: _voice(watch, state, heard, name, tick_s) for name in _attended(state)}
    nodes = heard.nodes if heard.nodes is not None else watch.nodes
    paces: dict[int, Pace] = {}
    if group is not None and _in_user_code(state, group):
        paces = _paces(watch.paces if watch.attempt == group.attempt else {}, group, voices, tick_s)
    watch = Watch(voices=voices, paces=paces, attempt=state.attempt, nodes=nodes)
    if state.terminal or tick_s <= 0:
        return watch, ()
    return watch, (*_silences(watch, state), *_standstill(watch, state, group))


def _in_user_code(state: RunState, group: Group) -> bool:
    """Whether the ranks could report: before that their start has a deadline, and what comes after is their end."""
    return isinstance(state.phase, Running | Preempting) and not group.waits and not group.handled


def _attended(state: RunState) -> list[str]:
    """Return the sources that should be heard: the pool's supervisor, and the runners of the group."""
    places = state.group.places if state.group is not None else ()
    names = (state.supervisor, *(place.source for place in places))
    return [name for name in dict.fromkeys(names) if name in state.sources]


# --- silence


def _voice(watch: Watch, state: RunState, heard: Heard, name: str, tick_s: float) -> Voice:
    source = state.sources[name]
    voice = watch.voices.get(name, Voice())
    if voice.incarnation != source.incarnation:
        voice = Voice(incarnation=source.incarnation, folded=source.folded)
    beat = heard.beats.get(name)
    if beat is not None and beat.incarnation == source.incarnation:
        voice = replace(voice, number=beat.number, paused=beat.paused)
        spoke = True
    else:
        spoke = source.folded > voice.folded or (name == state.supervisor and heard.nodes is not None)
    silence_s = 0.0 if spoke else voice.silence_s + tick_s
    recent_s = HEARD_WITHIN_BEATS * state.job.timeouts.beat_every_s
    counts = silence_s <= recent_s and source.folded >= voice.number
    return replace(
        voice,
        folded=source.folded,
        silence_s=silence_s,
        heard=voice.heard or spoke,
        clock_s=voice.clock_s + (tick_s if counts else 0.0),
    )


def _silences(watch: Watch, state: RunState) -> list[SilenceConcluded]:
    places = {place.source: place for place in state.group.places} if state.group is not None else {}
    said = [
        _silence(watch, state, name, state.sources[name], voice, places.get(name))
        for name, voice in watch.voices.items()
    ]
    return [one for one in said if one is not None]


def _silence(
    watch: Watch, state: RunState, name: str, source: Source, voice: Voice, place: Place | None
) -> SilenceConcluded | None:
    if place is not None and (place.lost or not place.healthy):
        return None  # its end is known, or it has not begun: its start has a deadline of its own
    silence_s = round(voice.silence_s, _DIGITS)
    if place is not None and state_name(state.phase) in GROUP_AT_WORK:
        why = _lost(watch, state, place, silence_s)
        if why is not None:
            return _concluded(name, source, silence_s, why, lost=True)
    after_s = state.job.timeouts.unreachable_after_s
    if silence_s >= after_s and source.silence_s is None:
        return _concluded(
            name, source, silence_s, f"{name} was not heard for {silence_s:g} s (unreachable_after_s is {after_s:g})"
        )
    if voice.heard and voice.silence_s <= 0 and source.silence_s is not None:
        return _concluded(name, source, 0.0, f"{name} is heard again")
    return None


def _concluded(name: str, source: Source, silence_s: float, reason: str, *, lost: bool = False) -> SilenceConcluded:
    return SilenceConcluded(source=name, silence_s=silence_s, lost=lost, reason=reason, incarnation=source.incarnation)


def _lost(watch: Watch, state: RunState, place: Place, silence_s: float) -> str | None:
    """Return why a runner is lost, and its node with it; None while there is no evidence, or not enough of it."""
    timeouts = state.job.timeouts
    who = f"the runner on {place.node} was silent for {silence_s:g} s of observed time"
    if silence_s >= timeouts.lost_alone_after_s:
        return f"{who} (lost_alone_after_s is {timeouts.lost_alone_after_s:g})"
    if silence_s < timeouts.lost_after_s:
        return None
    pool = watch.voices.get(state.supervisor)
    limit = f"lost_after_s is {timeouts.lost_after_s:g}"
    if pool is not None and pool.silence_s >= timeouts.lost_after_s:
        return f"{who}, and so was {state.supervisor} ({limit})"
    if watch.nodes is not None and place.node not in watch.nodes:
        return f"{who}, and {state.supervisor} no longer lists the node ({limit})"
    return None


# --- progress


def _paces(old: dict[int, Pace], group: Group, voices: Mapping[str, Voice], tick_s: float) -> dict[int, Pace]:
    changed: dict[int, Pace] = {}
    for rank in group.ranks:
        voice, pace = voices.get(rank.source), old.get(rank.rank)
        if voice is None or rank.phase != "running":
            continue
        if pace is None or pace.life != rank.life:
            changed[rank.rank] = Pace(life=rank.life, index=rank.index, moved_s=voice.clock_s)
        elif rank.index != pace.index:
            changed[rank.rank] = _moved(pace, rank, voice.clock_s)
        elif rank.rank in voice.paused:
            # Its clock stands still.
            changed[rank.rank] = replace(pace, moved_s=min(pace.moved_s + tick_s, voice.clock_s))
    return {**old, **changed} if changed else old


def _moved(pace: Pace, rank: Rank, clock_s: float) -> Pace:
    gaps = pace.gaps
    if pace.index >= 0:
        gaps = (*gaps, (clock_s - pace.moved_s) / max(1, rank.index - pace.index))[-GAPS_KEPT_COUNT:]
    limit_s = max(PROGRESS_MIN_S, PROGRESS_GAPS * median(gaps)) if gaps else None
    return Pace(life=pace.life, index=rank.index, moved_s=clock_s, gaps=gaps, limit_s=limit_s)


def _standstill(watch: Watch, state: RunState, group: Group | None) -> list[ProgressStopped]:
    """Say which ranks stand still, if that is not what the state says already."""
    if group is None or not _in_user_code(state, group):
        return []
    quiet = _quiet(watch, group)
    timeout_s = state.job.timeouts.progress_timeout_s
    over = _over(quiet, watch, timeout_s) if timeout_s is not None else {}
    found = over or {
        rank: quiet_s
        for rank, quiet_s in quiet.items()
        if (limit_s := watch.paces[rank].limit_s) is not None and quiet_s >= limit_s
    }
    limit_s = timeout_s if over else None
    before = group.stuck
    if before is None and not found:
        return []
    if before is not None and (set(before.ranks), before.limit_s) == (set(found), limit_s if found else before.limit_s):
        return []
    quiet_s = round(max(found.values(), default=0.0), _DIGITS)
    return [ProgressStopped(ranks=tuple(sorted(found)), quiet_s=quiet_s, limit_s=limit_s, attempt=group.attempt)]


def _quiet(watch: Watch, group: Group) -> dict[int, float]:
    """Return for how long each running rank has not reported."""
    paces, voices = watch.paces, watch.voices
    return {
        rank.rank: voices[rank.source].clock_s - pace.moved_s
        for rank in group.ranks
        if rank.phase == "running" and (pace := paces.get(rank.rank)) is not None and rank.source in voices
    }


def _over(quiet: dict[int, float], watch: Watch, timeout_s: float) -> dict[int, float]:
    """Return the ranks over the limit. One that never reports is so only when the whole group stands still."""
    over = {rank: quiet_s for rank, quiet_s in quiet.items() if quiet_s >= timeout_s}
    if len(over) == len(quiet):
        return over
    return {rank: quiet_s for rank, quiet_s in over.items() if watch.paces[rank].index >= 0}
