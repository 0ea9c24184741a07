"""What if: the recorded facts decided on with other settings, up to where the run would have taken another course.

Behind that point the recorded facts are of the course that was taken, and say nothing of the other one; where that is,
and why, is part of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from runfold.controller.decide import settle
from runfold.controller.decision import Unsettled
from runfold.controller.policies import DEFAULT, Policies
from runfold.controller.timers import due_timers
from runfold.events.base import Document, Json
from runfold.events.conclusions import TimerFired
from runfold.events.edges import IllegalEdge, state_name
from runfold.events.entry import Entry
from runfold.events.facts import CapacityChanged
from runfold.events.fold import fold
from runfold.events.job import Job, decode_job
from runfold.events.state import AnyState, RunState, ShuttingDown, Unborn
from runfold.events.strict import Refused
from runfold.events.transitions import AnyTransition, StateChanged, StateName
from runfold.events.values import Unencodable, pack
from runfold.replay.at import AtClock
from runfold.replay.diff import essence, told
from runfold.replay.errors import BadSetting, CannotRead
from runfold.replay.goodput import Goodput, goodput
from runfold.replay.history import History
from runfold.replay.verify import Decided, before, in_words
from runfold.replay.words import input_words

READ_BY_DECIDER: Final = (
    "failure.",
    "scaling.num_workers",
    "scaling.elastic_resize_monitor_interval_s",
    "timeouts.resize_wait_s",
    "checkpoint.num_to_keep",
    "checkpoint.checkpoint_score_",
    "timeouts.start_timeout_s",
    "timeouts.import_timeout_s",
    "timeouts.shutdown_deadline_s",
    "timeouts.checkpoint_timeout_s",
    "timeouts.coalesce_s",
    "labels.",
    "name",
)
"""Settings that nobody but the decider acts on. Of others ranks, runners or the pool would have made other facts."""


class Setting(Document, frozen=True, kw_only=True):
    """A setting of the job: what it was, and what it is now."""

    path: str
    was: Json
    now: Json


class Parting(Document, frozen=True, kw_only=True):
    """Where the run would have taken another course: at entry `n`, or, `before_it`, at a timer that was due earlier.

    `on`: what was decided on. `recorded` and `instead`: both decisions whole, with their reasons.
    """

    n: int
    t: float
    before_it: bool
    state: StateName
    on: tuple[str, ...]
    recorded: tuple[Decided, ...]
    instead: tuple[Decided, ...]


class WhatIf(Document, frozen=True, kw_only=True):
    """The answer. `parted` is None when the run would have taken the same course all through.

    `details`: entries before it that differ in limits, counts and words alone. `up_to`: where the time went up to the
    parting; `after`: where it went behind it, in the record. `ends`: the run would have ended there. `time_saved_s`,
    `work_lost_s`: what of the record would then not have happened. `work_saved_s`: what was done and kept up to there,
    and would not have been given up. `informative_until`: the last entry whose facts can be believed for the other
    course; `why` it is the last.
    """

    run: str
    target: str
    settings: tuple[Setting, ...]
    parted: Parting | None
    details: int
    ends: bool
    up_to: Goodput
    after: Goodput | None
    time_saved_s: float
    work_lost_s: float
    work_saved_s: float
    informative_until: int
    why: str


def what_if(history: History, settings: Mapping[str, Json], policies: Policies = DEFAULT) -> WhatIf:
    """Decide a run's recorded facts again with other settings of its job, as far as they are informative.

    `settings` maps paths of the job to values: `{"failure.max_failures": 5}`. Raises `BadSetting` for one that is none,
    `CannotRead` when the log cannot be followed.
    """
    head = history.head
    first = history.entries[0]
    unborn = before(None, first) if first.transitions else None
    if not isinstance(unborn, Unborn):
        raise CannotRead(f"{history.target}: entry 0 accepts no run")
    job, changed = job_with(unborn.job, settings)
    course = _Course(replace(unborn, job=job), policies)
    for entry in history.entries:
        try:
            if course.parts(entry):
                break
        except (IllegalEdge, Unsettled, ValueError, LookupError) as error:
            raise CannotRead(f"entry {entry.n} of {history.run} cannot be followed: {error}. Try `verify`") from error
    return _answer(history, head.n, changed, course)


def job_with(job: Job, settings: Mapping[str, Json]) -> tuple[Job, tuple[Setting, ...]]:
    """Return a job with other settings, and what they were; raise `BadSetting` naming the path of the offender."""
    fields: dict[str, Json] = msgspec.to_builtins(job)
    changed: list[Setting] = []
    for path, value in settings.items():
        *parents, last = path.split(".")
        place = fields
        for parent in parents:
            inner = place.get(parent)
            if not isinstance(inner, dict):
                raise BadSetting(f"{path}: a job has no {parent!r} with parts; settings are as in failure.max_failures")
            place = inner
        try:
            now = pack(value) if parents[:1] == ["config"] else value
        except Unencodable as error:
            raise BadSetting(f"{path}: {error}") from None
        changed.append(Setting(path=path, was=place.get(last), now=now))
        place[last] = now
    try:
        # The id is the run's: some are given by the queue, and could not be asked for.
        decoded = decode_job(msgspec.json.encode({**fields, "id": None}))
    except Refused as error:
        raise BadSetting(f"{error.path.removeprefix('$.')}: {error.reason}") from None
    return replace(decoded, id=job.id), tuple(changed)


class _Course:
    """The other course: `state` as it would have been, `recorded` as it was."""

    def __init__(self, unborn: Unborn, policies: Policies) -> None:
        self.policies = policies
        self.state: AnyState = unborn
        self.recorded: RunState | None = None
        self.details = 0
        self.parted: Parting | None = None
        self.after: RunState | None = None

    def parts(self, entry: Entry) -> bool:
        """Decide on what an entry recorded; return whether another course begins here."""
        if self._earlier(entry):
            return True
        now, settled = settle(self.state, entry.inputs, entry.t, self.policies, entry.cursor)
        if not _alike(now, entry.transitions):
            self._part(entry, entry.t, tuple(told(entry)), now, settled, before_it=False)
            return True
        self.details += now != entry.transitions and entry.n > 0
        self.state = settled
        self.recorded = fold(self.recorded, entry)
        return False

    def _earlier(self, entry: Entry) -> bool:
        """Whether a timer would have been due before this entry, of which the record knows nothing."""
        if not isinstance(self.state, RunState) or self.recorded is None:
            return False
        known = {*due_timers(self.recorded, entry.t), *(item for item in entry.inputs if isinstance(item, TimerFired))}
        for timer in due_timers(self.state, entry.t):
            if timer in known:
                continue
            t = max(timer.deadline_t, self.state.t)
            now, settled = settle(self.state, (timer,), t, self.policies)
            if now:
                what, more = input_words(timer)
                self._part(entry, t, (f"{what}: {more}",), now, settled, before_it=True)
                return True
        return False

    def _part(
        self,
        entry: Entry,
        t: float,
        on: tuple[str, ...],
        now: Sequence[AnyTransition],
        settled: RunState,
        *,
        before_it: bool,
    ) -> None:
        state = state_name(self.recorded.phase) if self.recorded is not None else "initializing"
        self.after = settled
        self.parted = Parting(
            n=entry.n,
            t=t,
            before_it=before_it,
            state=state,
            on=on,
            recorded=() if before_it else tuple(map(in_words, entry.transitions)),
            instead=tuple(map(in_words, now)),
        )


def _alike(now: Sequence[AnyTransition], recorded: Sequence[AnyTransition]) -> bool:
    return list(map(essence, now)) == list(map(essence, recorded))


# --- the answer


def _answer(history: History, last_n: int, changed: tuple[Setting, ...], course: _Course) -> WhatIf:
    parted, after = course.parted, course.after
    until = parted.t if parted is not None else history.entries[last_n].t
    up_to = goodput(history, None, AtClock(t=until))
    rest = None if parted is None else goodput(history, AtClock(t=until), None)
    ends = after is not None and _ends(after)
    ended = parted is not None and any(_is_end(item) for item in parted.recorded)
    informative, why = _informative(changed, parted, last_n)
    if untold := _untold(history, changed, last_n):
        informative, why = 0, untold
    return WhatIf(
        run=history.run,
        target=history.target,
        settings=changed,
        parted=parted,
        details=course.details,
        ends=ends,
        up_to=up_to,
        after=rest,
        time_saved_s=rest.clock_s if rest is not None and ends else 0.0,
        work_lost_s=rest.productive_s if rest is not None and ends else 0.0,
        work_saved_s=up_to.productive_s if ended and not ends else 0.0,
        informative_until=informative,
        why=why,
    )


def _ends(state: RunState) -> bool:
    return state.terminal or isinstance(state.phase, ShuttingDown)


def _is_end(item: Decided) -> bool:
    return isinstance(item.whole, StateChanged) and item.whole.to_state == "shutting_down"


def _untold(history: History, settings: tuple[Setting, ...], last_n: int) -> str | None:
    """Return why nobody knows what an elastic run had done: the pool was never asked what it had room for."""
    sizes = any(isinstance(item.now, list) for item in settings if item.path == "scaling.num_workers")
    entries = history.entries[: last_n + 1]
    if not sizes or any(isinstance(item, CapacityChanged) for entry in entries for item in entry.inputs):
        return None
    return (
        "an elastic run takes the size that its pool says it has room for, and this log does not tell: the pool was "
        "not asked, for the run had a fixed size"
    )


def _informative(changed: tuple[Setting, ...], parted: Parting | None, last_n: int) -> tuple[int, str]:
    """Return the last entry whose facts speak for the other course as well, and why it is the last."""
    outside = [item.path for item in changed if not item.path.startswith(READ_BY_DECIDER)]
    if outside:
        act = "acts" if len(outside) == 1 else "act"
        what = f"{', '.join(outside)} {act} on ranks, runners or the pool"
        why = f"{what}: from entry 1 on the facts are of a run without it"
        return 0, f"{why}; what is decided on them is compared all the same"
    if parted is None:
        return last_n, "the run would have taken the same course: its facts are those of the other one too"
    last = parted.n - 1 if parted.before_it else parted.n
    return last, f"behind entry {last} the facts are of the course that was taken; what the other met, nobody saw"
