"""A state while it is being observed: many inputs of one entry change it in place, then it is frozen again.

Copying a state for each of thousands of reports would cost more than reading them.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from runfold.events.base import Cause
from runfold.events.edges import GROUP_AT_WORK, state_name
from runfold.events.evidence import slim
from runfold.events.failures import cause_key
from runfold.events.gathering import gathered, left, marked
from runfold.events.judge import numbering, rank_standing, standing
from runfold.events.limits import ERRORS_INLINE_MAX_COUNT, LATE_EVIDENCE_MAX, LATE_EVIDENCE_S
from runfold.events.marks import Fired, LateEvidence
from runfold.events.state import Dropped, Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from runfold.events.beats import RankPhase
    from runfold.events.checkpoints import Checkpoints
    from runfold.events.facts import AnyFact, Fact, PlaceReplaced, Reported
    from runfold.events.failures import Failure
    from runfold.events.gathering import Seen
    from runfold.events.state import Group, Rank, Ready, RunState, Source, Verdict

# A rank goes up this ladder and never down, so that the order in which different sources speak does not matter.
_LADDER: Final[dict[RankPhase, int]] = {
    "waiting": 0,
    "starting": 1,
    "running": 2,
    "exited": 3,
    "failed": 4,
    "returned": 4,
}


class Draft:
    """The state, and what the inputs of one entry have changed of it so far."""

    def __init__(self, state: RunState, n: int, t: float, cursor: tuple[str, int] | None) -> None:
        self.state = state
        self.cursor = cursor
        self.n = n
        self.t = t
        self.k = 0
        self.group = state.group
        self.phase = state.phase
        self.pending = state.pending
        self.notice = state.notice
        self.away = state.away
        self.fired = state.fired
        self.capacity = state.capacity
        self.elastic = state.elastic
        self.taking_over = state.taking_over
        self.checkpoints = state.checkpoints
        self.tasks = state.tasks
        self.return_value = state.return_value
        self.return_blob = state.return_blob
        self.silences: dict[str, float | None] = {}
        self._late = state.late
        self._dropped: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._gaps: dict[str, int] = {}
        self._ranks: list[Rank] = list(state.group.ranks) if state.group is not None else []
        self._reports: dict[int, Reported] = {}
        self._reports_count = 0
        self._progress_count = 0
        self._moved = False
        self._metrics = state.metrics
        self._shards: list[Seen] = []
        self._marks: list[Reported] = []

    @property
    def cause(self) -> Cause:
        """The input being looked at, as the state keeps it."""
        return Cause(entry=self.n, input=self.k)

    @property
    def at_work(self) -> bool:
        """Whether a failure of the group is one that nobody asked for and nobody dealt with."""
        return self.group is not None and not self.group.handled and state_name(self.state.phase) in GROUP_AT_WORK

    def fire(self, fired: Fired) -> None:
        """Note that a timer has fired."""
        self.fired = (*(other for other in self.fired if other.timer != fired.timer), fired)

    # --- counting

    def count(self, item: Fact) -> Verdict:
        """Judge a fact by its number, and count it if it is its source's next."""
        source = self.state.sources.get(item.source)
        folded = self._numbers.get(item.source, source.folded if source is not None else 0)
        found = numbering(source, folded, item)
        if found == "folded":
            self._numbers[item.source] = item.number
        elif found == "gap":
            self._gaps[item.source] = max(item.number, self._gaps.get(item.source, 0))
        else:
            self.drop(found)
        return found

    def judge(self, item: AnyFact) -> Verdict:
        """Judge a counted fact by what it speaks of."""
        found = standing(self.state, item)
        if found != "folded":
            self.drop(found)
        return found

    def drop(self, why: str) -> None:
        """Count a voice that changes nothing."""
        self._dropped[why] = self._dropped.get(why, 0) + 1

    def report(self, item: Reported) -> None:
        """Observe a report. They come in thousands: the rules of `count` and `judge`, the common case first."""
        name = item.source
        source = self.state.sources.get(name)
        if (
            source is None
            or item.incarnation != source.incarnation
            or item.number != self._numbers.get(name, source.folded) + 1
        ):
            self.count(item)
            return
        self._numbers[name] = item.number
        found = rank_standing(self.state, self.state.group, item)
        if found == "folded":
            self.keep_report(item)
        else:
            self.drop(found)
            self.late_report(item)

    def keep_report(self, item: Reported) -> None:
        """Keep a judged report: the newest of each rank stands until the draft is frozen."""
        self._reports[item.rank] = item
        self._reports_count += 1
        if item.cursor is not None:
            self._marks.append(item)
        if item.checkpoint is not None or item.unread or item.named:
            self._shards.append((item, self.cause))
        if item.rank == 0:
            self._progress_count += 1
            if item.metrics is not None:
                self._metrics = item.metrics

    def late_report(self, item: Reported) -> None:
        """Note the files of a report that does not count: they will never be part of a whole."""
        if item.checkpoint is not None and item.attempt < self.state.attempt:
            self.checkpoints = left(self.checkpoints, (item.checkpoint,))

    # --- the group

    def change_group(self, change: Callable[[Group], Group]) -> None:
        """Change the group by a function; it is news of the group."""
        if self.group is not None:
            self.group = replace(change(self.group), news=self.cause)

    def rank(self, number: int) -> Rank:
        """Return a rank as it is by now."""
        return self._ranks[number]

    def raise_rank(self, number: int, phase: RankPhase) -> None:
        """Let a rank go up the ladder, if that is up."""
        rank = self._ranks[number]
        if _LADDER[phase] > _LADDER[rank.phase]:
            self.set_rank(replace(rank, phase=phase))

    def set_rank(self, rank: Rank) -> None:
        """Put a changed rank in its place."""
        self._moved = True
        self._ranks[rank.rank] = rank

    def lose(self, sources: frozenset[str]) -> None:
        """Mark places whose runner is gone, and their ranks: a rank dies with its runner."""
        self.change_group(
            lambda group: replace(
                group,
                places=tuple(replace(place, lost=True) if place.source in sources else place for place in group.places),
            )
        )
        for rank in self._ranks:
            # One that waits for another place has no process yet.
            if rank.source in sources and rank.phase != "waiting":
                self.raise_rank(rank.rank, "exited")

    def place_again(self, item: PlaceReplaced) -> None:
        """Put another place where one was given up; what its runner said of itself before stays said."""
        group = self.group
        if group is None or not 0 <= item.place < len(group.places) or group.places[item.place].left is None:
            return
        node, slots = item.offer.node, item.offer.slots
        new = Place(node=node, slots=slots, source=node, ready=group.early.get(node))
        places = tuple(new if i == item.place else place for i, place in enumerate(group.places))
        waits = any(place.left is not None for place in places)
        early = {name: ready for name, ready in group.early.items() if waits and name != node}
        due_t = self.t + self.state.job.timeouts.start_timeout_s
        replicas = tuple(
            replace(one, deadline_t=due_t) if one.down and any(laid.place == item.place for laid in one.laid) else one
            for one in group.replicas
        )
        self.change_group(lambda group: replace(group, places=places, early=early, replicas=replicas, waiting=None))

    def when(self, item: Fact) -> float:
        """Return when a fact happened, on the run's clock: never after it was heard of."""
        ready = _ready_of(self.group, item.source)
        return self.t if ready is None or not item.clock_s else min(self.t, max(0.0, item.clock_s + ready.offset_s))

    # --- failures

    def fail(self, failure: Failure) -> None:
        """Record a failure of the present attempt, or as late evidence when its end is decided already."""
        if not self.at_work or self.group is None:
            self.add_late(failure)
            return
        failures = list(self.group.failures)
        insort(failures, failure, key=cause_key)
        kept, failed = tuple(failures[:ERRORS_INLINE_MAX_COUNT]), self.group.failed + 1
        self.change_group(lambda group: replace(group, failures=kept, failed=failed))

    def add_late(self, failure: Failure) -> None:
        """Keep a failure that came after its attempt's end was decided: it may revise which one was first."""
        first, decided_t = self.state.failure, self.state.failure_t
        if first is None or first.attempt != failure.attempt or self.t > decided_t + LATE_EVIDENCE_S:
            return
        known = {(other.rank, other.life) for other in (first, *self.state.others) if other.rank is not None}
        if (failure.rank, failure.life) in known:
            return
        late = [*self._late]
        insort(late, LateEvidence(failure=failure, at_t=self.t), key=lambda evidence: cause_key(evidence.failure))
        # Only the one that may become the first cause is kept in full.
        rest = (replace(evidence, failure=slim(evidence.failure)) for evidence in late[1:LATE_EVIDENCE_MAX])
        self._late = (late[0], *rest)

    # --- the end

    def done(self) -> RunState:
        """Return the state with everything observed."""
        checkpoints = self._checkpoints_done()
        return replace(
            self.state,
            n=self.n,
            t=self.t,
            cursor=self.cursor,
            phase=self.phase,
            group=self._group_done(),
            sources=self._sources_done(),
            pending=self.pending,
            notice=self.notice,
            away=self.away,
            fired=self.fired,
            capacity=self.capacity,
            elastic=self.elastic,
            taking_over=self.taking_over,
            checkpoints=checkpoints,
            tasks=self.tasks,
            metrics=self._metrics,
            reports=self.state.reports + self._reports_count,
            return_value=self.return_value,
            return_blob=self.return_blob,
            late=self._late,
            dropped=self._dropped_done(),
        )

    def _checkpoints_done(self) -> Checkpoints:
        if self._marks:
            self.checkpoints = marked(self.checkpoints, self._marks)
        if not self._shards:
            return self.checkpoints
        named = {number: rank.named for number, rank in enumerate(self._ranks)}
        checkpoints = gathered(self.checkpoints, self._shards, self.t, named, self.state.tasks)
        for number, rank in enumerate(self._ranks):
            if rank.named != named[number]:
                self._ranks[number] = replace(rank, named=named[number])
        return checkpoints

    def _group_done(self) -> Group | None:
        if self.group is None or not (self._reports or self._moved):
            return self.group
        for number, item in self._reports.items():
            rank = self._ranks[number]
            step = rank.step if item.step is None else item.step
            self._ranks[number] = replace(rank, index=item.index, step=step)
        return replace(self.group, ranks=tuple(self._ranks), progress=self.group.progress + self._progress_count)

    def _sources_done(self) -> dict[str, Source]:
        if not (self._numbers or self._gaps or self.silences):
            return self.state.sources
        touched = self._numbers.keys() | self._gaps.keys() | self.silences.keys()
        sources = dict(self.state.sources)
        for name in touched:
            source = sources[name]
            folded = self._numbers.get(name, source.folded)
            sources[name] = replace(
                source,
                folded=folded,
                missing=self._gaps.get(name, 0) > folded or (source.missing and folded == source.folded),
                silence_s=self.silences.get(name, source.silence_s),
            )
        return sources

    def _dropped_done(self) -> Dropped:
        old, new = self.state.dropped, self._dropped
        if not new:
            return old
        return Dropped(
            stale=old.stale + new.get("stale", 0),
            foreign=old.foreign + new.get("foreign", 0),
            malformed=old.malformed + new.get("malformed", 0),
        )


def _ready_of(group: Group | None, source: str) -> Ready | None:
    if group is None:
        return None
    for place in group.places:
        if place.source == source:
            return place.ready
    return group.early.get(source)
