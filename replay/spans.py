"""A run's clock cut into stretches, each with what it went into, from the log alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from runfold.events.conclusions import (
    ControllerStarted,
    JobTaken,
    LogCopied,
    MessageMalformed,
    ProgressStopped,
    SilenceConcluded,
    TimerFired,
)
from runfold.events.entry import AnyInput, Entry
from runfold.events.facts import (
    CapacityChanged,
    CheckpointSealed,
    Fact,
    Placed,
    PlacementFailed,
    PlaceReplaced,
    PreemptionCancelled,
    PreemptionNoticed,
    Queued,
    RankExited,
    RankFailed,
    RankReturned,
    RankStarted,
    Released,
    Reported,
    RunnerLost,
    RunnerReady,
    TaskEnded,
)
from runfold.events.failures import Failure
from runfold.events.replicas import replica_size
from runfold.events.requests import Request
from runfold.events.transitions import (
    AnyTransition,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointsDoubted,
    CheckpointValidated,
    ControllerChanged,
    FailureDecided,
    FirstCauseRevised,
    GroupLaidOut,
    LogRestored,
    NodeAdmitted,
    NodeExcluded,
    ReplicaGroupReplaced,
    RequestAccepted,
    RequestRefused,
    ResizeDropped,
    ResizePlanned,
    RunAccepted,
    RunContinued,
    SourceJoined,
    StateChanged,
    TaskClosed,
    TaskOrdered,
    Warned,
)
from runfold.replay.clocks import Clocks
from runfold.replay.history import History, end_name
from runfold.replay.idle import Idle
from runfold.replay.uses import SPENT_ON, Stretch, Use, Window, carved, micros, painted
from runfold.replay.vacancy import Vacancy


def stretches_of(history: History) -> tuple[Stretch, ...]:
    """Return the run's clock from 0 to its last entry as stretches, in order and without a hole."""
    cut = Cut()
    for entry in history.entries:
        cut.take(entry)
    return tuple(cut.finish())


class _Attempt:
    """What is known of an attempt. `began` and `ended`: its ranks in user code; `kept`: up to there nothing is lost.

    `windows` has one for each report that tells what its time went into: whose count, and what of them lies in time
    that was productive, is known only at the attempt's end.
    """

    def __init__(self, number: int, starting: Use) -> None:
        self.number = number
        self.starting: Use = starting
        self.began: int | None = None
        self.ended: int | None = None
        self.failed: int | None = None
        self.failure: Failure | None = None
        self.finished = False
        self.kept = 0
        self.hangs: list[list[int]] = []
        self.stuck = False
        self.saved: dict[str, int] = {}
        self.last_report: dict[int, int] = {}
        self.windows: dict[int, list[Window]] = {}
        self.idle = Idle()

    def reported(self, item: Reported, when: int) -> None:
        """Take a report at the time it was made."""
        if item.checkpoint is not None:
            self.saved[item.checkpoint] = max(when, self.saved.get(item.checkpoint, 0))
        spent: tuple[tuple[Use, int], ...] = tuple(
            (SPENT_ON[name], micros(seconds))
            for name, seconds in item.spent_s.items()
            if name in SPENT_ON and seconds > 0
        )
        start = self.last_report.get(item.rank, self.began if self.began is not None else when)
        if spent and start < when:
            self.windows.setdefault(item.rank, []).append(Window(start=start, end=when, spent=spent))
        self.last_report[item.rank] = max(when, start)

    def stopped(self, item: ProgressStopped, now: int) -> None:
        """Take that ranks make no progress, or that all of them move again."""
        if self.stuck:
            self.hangs[-1][1] = now
        if item.ranks and not self.stuck:
            self.hangs.append([now - micros(item.quiet_s), now])
        self.stuck = bool(item.ranks)

    def stretches(self) -> Iterator[Stretch]:
        """Yield the time that the ranks were in user code."""
        if self.began is None or self.ended is None or self.began >= self.ended:
            return
        began, ended = self.began, self.ended
        failed = ended if self.failed is None else min(max(self.failed, began), ended)
        kept = failed if self.finished else min(max(self.kept, began), failed)
        parts: list[tuple[int, int, Use]] = [
            (began, kept, "productive"),
            (kept, failed, "wasted_progress"),
            (failed, ended, after_failure(self.failure)),
        ]
        rows = [Stretch(start=start, end=end, use=use, attempt=self.number) for start, end, use in parts if start < end]
        for start, end in self.hangs:
            rows = list(painted(rows, start, end, "hang"))
        for start, end, use in self.idle.spans:
            rows = list(painted(rows, start, end, use))
        windows: Sequence[Window] = max(self.windows.values(), key=_total, default=())
        for row in rows:
            yield from carved(row, windows) if row.use == "productive" else (row,)


def _total(windows: Sequence[Window]) -> int:
    return sum(length for window in windows for _, length in window.spent)


def after_failure(failure: Failure | None) -> Use:
    """Return what the time goes into that a failure costs."""
    return "preemption" if failure is not None and failure.kind == "preempted" else "recovery"


class Cut:
    """The walk through the entries. `since` is where the open stretch begins, `use` what it goes into."""

    def __init__(self) -> None:
        self.clocks = Clocks()
        self.rows: list[Stretch | _Attempt] = []
        self.attempts: dict[int, _Attempt] = {}
        self.attempt = _Attempt(0, "initialisation")
        self.since = 0
        self.now = 0
        self.use: Use = "initialisation"
        self.placing = False
        self.resizing = False
        self.vacancy = Vacancy()
        self.released = True
        self.size: int | None = None
        self.running = False
        self.ending = False
        self.over = False

    def take(self, entry: Entry) -> None:
        """Take an entry."""
        self.now = max(self.now, micros(entry.t))
        attempt = self.attempt
        for item in entry.inputs:
            if type(item) is not Reported:
                if self.running and self.size is not None and isinstance(item, Fact) and item.attempt == attempt.number:
                    attempt.idle.hear(item, self.now)
                self.vacancy.hear(item)
                self._see(entry, item)
            elif item.attempt == attempt.number:
                if item.spent_s or item.checkpoint is not None:
                    attempt.reported(item, micros(self.clocks.when(entry, item)))
                else:
                    attempt.last_report[item.rank] = self.now
        for transition in entry.transitions:
            self.vacancy.decide(transition)
            self._decide(transition)

    def finish(self) -> Iterator[Stretch]:
        """Yield all stretches; a run that goes on is productive up to now."""
        if self.running:
            self._leave("recovery", kept=True)
        self._turn(self.use)
        for row in self.rows:
            if isinstance(row, Stretch):
                yield row
            else:
                yield from row.stretches()

    def _turn(self, use: Use) -> None:
        """Close the open stretch at the present moment, and open one of another use."""
        if self.since < self.now and not self.running:
            self.rows.append(Stretch(start=self.since, end=self.now, use=self.use, attempt=self.attempt.number))
        self.since, self.use = self.now, use

    def _leave(self, use: Use, *, kept: bool = False) -> None:
        """The ranks are in user code no more."""
        self.attempt.ended, self.attempt.finished = self.now, kept
        if self.attempt.stuck:
            self.attempt.hangs[-1][1] = self.now
        self.attempt.idle.close(self.now)
        self.running = False
        self.since, self.use = self.now, use

    # --- what was seen

    def _see(self, entry: Entry, item: AnyInput) -> None:
        match item:
            case RunnerReady():
                self.clocks.hear(entry, item)
            case Queued() | PlacementFailed(verdict="busy") if self.placing and item.attempt == self.attempt.number:
                self._turn("waiting_for_capacity")
            case Placed() if self.placing and item.attempt == self.attempt.number:
                self._turn(self.attempt.starting)
            case CapacityChanged():
                self._await_room()
            case Released():
                self.released = self.released or item.attempt == self.attempt.number
                self._await_room()
            case ProgressStopped() if self.running:
                self.attempt.stopped(item, self.now)
            case CheckpointSealed():
                attempt = self.attempts.get(item.attempt)
                if attempt is not None:
                    attempt.saved.setdefault(item.name, micros(self.clocks.when(entry, item)))
            case Queued() | PlacementFailed() | Placed() | PlaceReplaced() | ProgressStopped():
                return  # heard of too late, or of another attempt: that time has its use
            case RankStarted() | Reported() | RankReturned() | RankFailed() | RankExited() | RunnerLost():
                return  # what is decided on them has a use, or has none
            case PreemptionNoticed() | PreemptionCancelled() | TaskEnded() | Request():
                return
            case (
                JobTaken() | ControllerStarted() | LogCopied() | TimerFired() | SilenceConcluded() | MessageMalformed()
            ):
                return
            case _:
                assert_never(item)

    # --- what was decided

    def _decide(self, item: AnyTransition) -> None:
        match item:
            case RunAccepted(job=job):
                self.size = replica_size(job.scaling, job.backend)
            case StateChanged():
                self._change(item)
            case AttemptStarted(attempt=number):
                if self.running:
                    self._leave("recovery")  # nothing legal: the parts are to be the whole all the same
                starting = "initialisation" if number == 1 else self._after_attempt()
                self.attempt = self.attempts[number] = _Attempt(number, starting)
                self.released = False
            case FailureDecided(failure=failure, decision="retry" | "raise"):
                self.attempt.failure, self.attempt.failed = failure, micros(failure.t)
            case CheckpointCommitted(attempt=number, name=name):
                attempt = self.attempts.get(number)
                if attempt is not None:
                    attempt.kept = max(attempt.kept, attempt.saved.get(name, self.now))
            case FailureDecided(failure=failure, decision="replace", replicas=replicas) if self.size is not None:
                self.attempt.idle.went_down(replicas, self.size, after_failure(failure), self.now)
            case GroupLaidOut(layout=layout):
                self.attempt.idle.laid_out(len(layout))
            case FailureDecided() | FirstCauseRevised():
                return  # the change of state that comes with them begins another use
            case ReplicaGroupReplaced():
                return  # while others train on, that is all there is to say; see `Idle`
            case ControllerChanged() | LogRestored() | SourceJoined() | RequestAccepted():
                return
            case RequestRefused() | CheckpointValidated() | CheckpointsDoubted() | RunContinued() | TaskOrdered():
                return
            case TaskClosed() | Warned() | NodeExcluded() | NodeAdmitted() | ResizePlanned() | ResizeDropped():
                return
            case _:
                assert_never(item)

    def _is_between(self) -> bool:
        """Whether no group is being placed or at work, and another is to be."""
        return not (self.placing or self.running or self.ending or self.over)

    def _await_room(self) -> None:
        """Wait for room if there is none, from when the places of the last group are free; till then it ends."""
        if not self._is_between():
            return
        if not self.vacancy.lacks():
            if self.use == "waiting_for_capacity":
                self._turn(self._after_attempt())
        elif self.released:
            self._turn("waiting_for_capacity")

    def _after_attempt(self) -> Use:
        """Return what the time between two attempts goes into: after a failure, or a change of size."""
        if self.attempt.number == 0:
            return self.attempt.starting
        return "resize" if self.resizing and self.attempt.failure is None else after_failure(self.attempt.failure)

    def _change(self, item: StateChanged) -> None:
        self.placing = item.to_state == "scheduling"
        self.ending = item.to_state == "shutting_down"
        self.resizing = item.to_state == "resizing" or (self.resizing and self.placing)
        if self.over or (self.running and item.to_state in ("running", "preempting")):
            return
        use = self._use_after(item)
        if self.running:
            self._leave(use, kept=item.next == "finished")
        else:
            self._turn(use)
        if item.to_state == "running":
            self.running, self.attempt.began = True, self.now
            self.rows.append(self.attempt)
        self.over = end_name(item.to_state) is not None
        self._await_room()

    def _use_after(self, item: StateChanged) -> Use:
        match item.to_state:
            case "initializing":
                return "initialisation"
            case "scheduling":
                return self.attempt.starting
            case "shutting_down" | "finished" | "errored" | "aborted":
                return "teardown"
            case "running" | "preempting":
                return "productive"
            case "rescheduling" | "restarting":
                return after_failure(item.failure)
            case "resizing":
                return "resize"
