"""A state while it is being observed: many inputs of one entry change it in place, then it is frozen again.

Copying a state for each of thousands of reports would cost more than reading them.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from msgspec.structs import replace

from runfold.events.base import Cause
from runfold.events.edges import GROUP_AT_WORK, state_name
from runfold.events.evidence import slim
from runfold.events.facts import RankFact, Reported
from runfold.events.failures import cause_key
from runfold.events.gathering import gathered, left, marked
from runfold.events.judge import numbering, standing
from runfold.events.limits import ERRORS_INLINE_MAX_COUNT, LATE_EVIDENCE_MAX, LATE_EVIDENCE_S
from runfold.events.marks import Fired, LateEvidence
from runfold.events.ranks import raised, rank_told, rank_told_late, shows_a_start
from runfold.events.state import Dropped, Place, Scheduling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from runfold.events.beats import RankPhase
    from runfold.events.checkpoints import Checkpoints
    from runfold.events.conclusions import AnyConclusion
    from runfold.events.entry import AnyInput
    from runfold.events.facts import AnyFact, AnyRankFact, Fact, OtherFact, PlaceReplaced
    from runfold.events.failures import Failure
    from runfold.events.gathering import Seen
    from runfold.events.requests import AnyRequest
    from runfold.events.state import Group, Rank, Ready, RunState, Source, Verdict

    OtherInput = OtherFact | AnyRequest | AnyConclusion
    """An input that is not of a rank."""


class Draft:
    """The state, and what the inputs of one entry have changed of it so far.

    `state` is the one before the entry, and stays it. What nearly every entry changes stands in the draft itself and is
    put into a state once, by `done`; all the rest is changed in `now`, the state as it is by now.
    """

    # Most entries have few inputs, so that what each draft costs counts: 1.0 µs made and done, where attributes for
    # all that an entry may change, in a dict too large to be shared among drafts, cost 3.1 µs.
    __slots__ = (
        "_dropped", "_gaps", "_marks", "_metrics", "_moved", "_news", "_numbers", "_progress_count", "_ranks",
        "_reports", "_reports_count", "_shards", "cursor", "group", "k", "n", "now", "silences", "state", "t",
    )  # fmt: skip

    def __init__(self, state: RunState, n: int, t: float, cursor: tuple[str, int] | None) -> None:
        group = state.group
        self.state = self.now = state
        self.n = n
        self.t = t
        self.k = 0
        self.cursor = cursor
        self.group = group
        self.silences: dict[str, float | None] = {}
        self._dropped: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._gaps: dict[str, int] = {}
        self._ranks: list[Rank] = [*group.ranks] if group is not None else []
        self._reports: dict[int, Reported] = {}
        self._reports_count = 0
        self._progress_count = 0
        self._moved = False
        self._news: int | None = None
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
        others = (other for other in self.now.fired if other.timer != fired.timer)
        self.now = replace(self.now, fired=(*others, fired))

    # --- counting

    def count(self, item: Fact) -> bool:
        """Count a fact if it is its source's next; return whether it is."""
        name = item.source
        source = self.state.sources.get(name)
        folded = self._numbers.get(name, source.folded if source is not None else 0)
        found = numbering(source, folded, item)
        if found == "folded":
            self._numbers[name] = item.number
            return True
        if found == "gap":
            self._gaps[name] = max(item.number, self._gaps.get(name, 0))
        else:
            self.drop(found)
        return False

    def judge(self, item: AnyFact) -> Verdict:
        """Judge a counted fact by what it speaks of."""
        found = standing(self.state, item)
        if found != "folded":
            self.drop(found)
        return found

    def drop(self, why: str) -> None:
        """Count a voice that changes nothing."""
        self._dropped[why] = self._dropped.get(why, 0) + 1

    def see(self, inputs: Iterable[AnyInput], other: Callable[[Draft, OtherInput], None], first: int = 0) -> None:
        """Observe inputs in order, numbered from `first`; what is not of a rank is observed by `other`."""
        state, numbers, reports = self.state, self._numbers, self._reports
        sources, attempt = state.sources, state.attempt
        ranks = state.group.ranks if state.group is not None else ()
        for self.k, item in enumerate(inputs, first):
            if not isinstance(item, RankFact):
                other(self, item)
                continue
            # Reports come in thousands: here stand the rules of `count` and `judge`, the common case first, and what
            # the other cases need is asked of them.
            name, number = item.source, item.rank
            source = sources.get(name)
            if (
                source is None
                or item.incarnation != source.incarnation
                or item.number != numbers.get(name, source.folded) + 1
            ):
                self.count(item)
                continue
            numbers[name] = item.number
            rank = ranks[number] if item.attempt == attempt and 0 <= number < len(ranks) else None
            if rank is None or rank.source != name or rank.life != item.life:
                self._see_dropped(item)
            elif isinstance(item, Reported):
                reports[number] = item
                self._reports_count += 1
                if item.cursor is not None:
                    self._marks.append(item)
                if item.checkpoint is not None or item.unread or item.named:
                    self._shards.append((item, self.cause))
                if number == 0:
                    self._progress_count += 1
                    if item.metrics is not None:
                        self._metrics = item.metrics
            else:
                rank_told(self, item)

    def _see_dropped(self, item: Reported | AnyRankFact) -> None:
        """Drop a counted fact that does not speak of the ranks as they are; a stale one may still say something."""
        found = self.judge(item)
        if found != "stale":
            return
        if not isinstance(item, Reported):
            rank_told_late(self, item)
        elif item.checkpoint is not None and item.attempt < self.state.attempt:
            # These files will never be part of a whole.
            self.now = replace(self.now, checkpoints=left(self.now.checkpoints, (item.checkpoint,)))

    # --- the group

    def change_group(self, change: Callable[[Group], Group]) -> None:
        """Change the group by a function; it is news of the group."""
        if self.group is not None:
            self.put_group(change(self.group))

    def put_group(self, group: Group | None) -> None:
        """Put a changed group in its place; it is news of the group."""
        self.group = group
        self._news = self.k

    def rank(self, number: int) -> Rank:
        """Return a rank as it is by now."""
        return self._ranks[number]

    def raise_rank(self, number: int, phase: RankPhase) -> None:
        """Let a rank go up the ladder, if that is up."""
        rank = self._ranks[number]
        self.set_rank(replace(rank, phase=raised(rank, phase)))

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
        # A runner speaks for its node: what it has said holds for whatever place is there.
        stand = (place.ready for place in group.places if place.node == node and place.left is None)
        new = Place(node=node, slots=slots, source=node, ready=group.early.get(node) or next(stand, None))
        places = tuple(new if i == item.place else place for i, place in enumerate(group.places))
        waits = any(place.left is not None for place in places)
        early = {name: ready for name, ready in group.early.items() if (waits or not group.ranks) and name != node}
        due_t = self.t + self.state.job.timeouts.start_timeout_s
        replicas = tuple(
            replace(one, deadline_t=due_t, late=False)
            if one.down and any(laid.place == item.place for laid in one.laid)
            else one
            for one in group.replicas
        )
        self.change_group(lambda group: replace(group, places=places, early=early, replicas=replicas, waiting=None))
        phase = self.now.phase
        if isinstance(phase, Scheduling) and not waits:
            self.now = replace(self.now, phase=replace(phase, deadline_t=due_t))

    def hold_on(self, *, contested: bool, hopeless: bool) -> None:
        """Note until when a group that looks for another place keeps those it has: for ever, unless others need them.

        If contested, no longer than a start may take; if hopeless, no longer at all.
        """
        group, phase = self.group, self.now.phase
        if not isinstance(phase, Scheduling) or group is None or group.layout:
            return
        if all(place.left is None for place in group.places):
            return
        due_t: float | None = None
        if hopeless:
            due_t = self.t
        elif contested:
            began = phase.deadline_t is not None
            due_t = phase.deadline_t if began else self.t + self.state.job.timeouts.start_timeout_s
        self.now = replace(self.now, phase=replace(phase, deadline_t=due_t))

    def when(self, item: Fact) -> float:
        """Return when a fact happened, on the run's clock: never after it was heard of."""
        # By the clock that its runner had before this entry, where that has given its place to another one since.
        ready = _ready_of(self.group, item.source) or _ready_of(self.state.group, item.source)
        return self.t if ready is None or not item.clock_s else min(self.t, max(0.0, item.clock_s + ready.offset_s))

    # --- failures

    def fail(self, failure: Failure) -> None:
        """Record a failure of the present attempt, or as late evidence when its end is decided already."""
        group = self.group
        if not self.at_work or group is None:
            self.add_late(failure)
            return
        failures = [failure]
        if group.failures:
            failures = [*group.failures]
            insort(failures, failure, key=cause_key)
        kept = tuple(failures[:ERRORS_INLINE_MAX_COUNT])
        self.put_group(replace(group, failures=kept, failed=group.failed + 1))

    def add_late(self, failure: Failure) -> None:
        """Keep a failure that came after its attempt's end was decided: it may revise which one was first."""
        first, decided_t = self.state.failure, self.state.failure_t
        if first is None or first.attempt != failure.attempt or self.t > decided_t + LATE_EVIDENCE_S:
            return
        known = {(other.rank, other.life) for other in (first, *self.state.others) if other.rank is not None}
        if (failure.rank, failure.life) in known:
            return
        late = [*self.now.late]
        insort(late, LateEvidence(failure=failure, at_t=self.t), key=lambda evidence: cause_key(evidence.failure))
        # Only the one that may become the first cause is kept in full.
        rest = (replace(evidence, failure=slim(evidence.failure)) for evidence in late[1:LATE_EVIDENCE_MAX])
        self.now = replace(self.now, late=(late[0], *rest))

    # --- the end

    def done(self) -> RunState:
        """Return the state with everything observed."""
        now, sources, group = self.now, self.state.sources, self.group
        if self._gaps or self.silences:
            sources = self._sources_heard()
        elif self._numbers:
            sources = sources.copy()
            for name, folded in self._numbers.items():
                # What is the next of its source leaves nothing missing before it.
                sources[name] = replace(sources[name], folded=folded, missing=False)
        if self._marks or self._shards:
            now = replace(now, checkpoints=self._checkpoints_done(now.checkpoints))
        if self._dropped:
            now = replace(now, dropped=self._dropped_done())
        if group is not None and (self._reports or self._moved or self._news is not None):
            group = self._group_done(group)
        if not self._reports:
            return replace(now, n=self.n, t=self.t, group=group, sources=sources, cursor=self.cursor)
        return replace(
            now,
            n=self.n,
            t=self.t,
            group=group,
            sources=sources,
            cursor=self.cursor,
            metrics=self._metrics,
            startup_streak=self._streak(now.startup_streak),
            reports=now.reports + self._reports_count,
        )

    def _streak(self, streak: int) -> int:
        shown = streak and any(shows_a_start(self.state, item) for item in self._reports.values())
        return 0 if shown else streak

    def _checkpoints_done(self, checkpoints: Checkpoints) -> Checkpoints:
        if self._marks:
            checkpoints = marked(checkpoints, self._marks)
        if not self._shards:
            return checkpoints
        named = {number: rank.named for number, rank in enumerate(self._ranks)}
        checkpoints = gathered(checkpoints, self._shards, self.t, named, self.state.tasks)
        for number, rank in enumerate(self._ranks):
            if rank.named != named[number]:
                self._ranks[number] = replace(rank, named=named[number])
        return checkpoints

    def _group_done(self, group: Group) -> Group:
        ranks = self._ranks
        for number, item in self._reports.items():
            rank = ranks[number]
            step = rank.step if item.step is None else item.step
            ranks[number] = replace(rank, index=item.index, step=step)
        news = group.news if self._news is None else Cause(entry=self.n, input=self._news)
        return replace(group, ranks=tuple(ranks), news=news, progress=group.progress + self._progress_count)

    def _sources_heard(self) -> dict[str, Source]:
        sources = self.state.sources.copy()
        for name in self._numbers.keys() | self._gaps.keys() | self.silences.keys():
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
