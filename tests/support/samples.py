"""A sample of every kind of input and transition, with the words that tell it."""

from __future__ import annotations

from runfold.events.base import Cause
from runfold.events.conclusions import (
    ControllerStarted,
    Decider,
    JobTaken,
    LogCopied,
    MessageMalformed,
    ProgressStopped,
    SilenceConcluded,
    TimerFired,
)
from runfold.events.entry import AnyInput
from runfold.events.facts import (
    CapacityChanged,
    CheckpointSealed,
    Placed,
    PlacementFailed,
    PlaceOffer,
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
from runfold.events.requests import (
    AbortRun,
    AdmitNode,
    CancelPreemption,
    CheckpointNow,
    DumpStacks,
    Join,
    NoticePreemption,
    ResizeRun,
    StopAtCheckpoint,
)
from runfold.events.tasks import Task
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
from support.histories import BOOM, JOB

C = Cause(input=0)
FAILURE = Failure(kind="user", attempt=1, node="n", error=BOOM, t=1.0, cause=C, rank=1)
INPUTS: list[tuple[AnyInput, str]] = [
    (Queued(source="s", incarnation=1, number=1, attempt=1, ahead=1, free=0, needed=2), "waits for room"),
    (
        Placed(source="s", incarnation=1, number=1, attempt=1, places=(PlaceOffer(node="n", slots=2),)),
        "placed on n (2)",
    ),
    (
        PlaceReplaced(source="s", incarnation=1, number=1, attempt=1, place=1, offer=PlaceOffer(node="n", slots=2)),
        "another place for place 1: n (2)",
    ),
    (
        PlacementFailed(source="s", incarnation=1, number=1, attempt=1, verdict="never", reason="8 wanted"),
        "cannot be placed",
    ),
    (PlacementFailed(source="s", incarnation=1, number=1, attempt=1, verdict="busy", reason=""), "not placed yet"),
    (PlacementFailed(source="s", incarnation=1, number=1, attempt=1, verdict="late", reason=""), "not placed in time"),
    (PlacementFailed(source="s", incarnation=1, number=1, attempt=1, verdict="failed", reason=""), "not placed"),
    (
        RunnerLost(source="s", incarnation=1, number=1, attempt=1, node="n", exit_code=1),
        "the runner on n is gone: exited with code 1",
    ),
    (CapacityChanged(source="s", incarnation=1, number=1, attempt=1, slots={"n": 4}), "slots now: n 4"),
    (
        PreemptionNoticed(source="s", incarnation=1, number=1, attempt=1, nodes=("n",), within_s=30.0),
        "n to be taken back in 30 s",
    ),
    (PreemptionNoticed(source="s", incarnation=1, number=1, attempt=1, nodes=("n",)), "n to be taken back"),
    (PreemptionCancelled(source="s", incarnation=1, number=1, attempt=1, nodes=("n",)), "n stays after all"),
    (Released(source="s", incarnation=1, number=1, attempt=1), "the group holds nothing any more"),
    (
        RunnerReady(source="s", incarnation=1, number=1, attempt=1, node="n", addr="a", port=1),
        "the runner on n is ready",
    ),
    (RankStarted(source="s", incarnation=1, number=1, attempt=1, rank=1, life=1, pid=7), "rank 1 started"),
    (Reported(source="s", incarnation=1, number=1, attempt=1, rank=1, life=1, index=0), "rank 1 reported"),
    (RankReturned(source="s", incarnation=1, number=1, attempt=1, rank=1, life=1, reports=3), "rank 1 returned"),
    (RankFailed(source="s", incarnation=1, number=1, attempt=1, rank=1, life=1, error=BOOM), "rank 1 failed (user)"),
    (
        RankExited(source="s", incarnation=1, number=1, attempt=1, rank=1, life=1, signal=11, oom=True),
        "rank 1 was ended by SIGSEGV",
    ),
    (
        RankExited(source="s", incarnation=1, number=1, attempt=1, rank=1, life=1),
        "rank 1 ended, nobody could see how",
    ),
    (
        CheckpointSealed(
            source="s", incarnation=1, number=1, attempt=1, name="c", index=1, manifest_digest="d", size_bytes=9
        ),
        "checkpoint c sealed",
    ),
    (TaskEnded(source="s", incarnation=1, number=1, attempt=1, task="t", outcome="timed_out"), "task t timed out"),
    (JobTaken(digest="d"), "job taken"),
    (ControllerStarted(controller="c", decider=Decider(version="1")), "controller c started"),
    (LogCopied(generation=2, source="file:///a", epoch=7, by="restore"), "log copied into generation 2"),
    (TimerFired(timer="start", deadline_t=60.0), "timer start was due"),
    (SilenceConcluded(source="s", silence_s=61.0, lost=True, reason="r"), "s is lost (61.0 s)"),
    (SilenceConcluded(source="s", silence_s=11.0, lost=False, reason="r"), "s is silent (11.0 s)"),
    (ProgressStopped(ranks=(0, 1, 3), quiet_s=90.0, limit_s=None), "ranks 0-1, 3 made no progress for 90.0 s"),
    (MessageMalformed(subject="x", reason="r", digest="d"), "a message on x could not be read"),
    (AbortRun(id="1", by="me", reason="enough"), "abort run asked by me"),
    (ResizeRun(id="1", num_workers=3), "resize run asked"),
    (CheckpointNow(id="1"), "checkpoint now asked"),
    (StopAtCheckpoint(id="1"), "stop at checkpoint asked"),
    (DumpStacks(id="1"), "dump stacks asked"),
    (AdmitNode(id="1", node="n"), "admit node asked"),
    (NoticePreemption(id="1", nodes=("n",)), "notice preemption asked"),
    (CancelPreemption(id="1", nodes=("n",)), "cancel preemption asked"),
    (Join(id="1", source="s", boot="b"), "s asks to join"),
]
"""Inputs and their words."""

TRANSITIONS: list[tuple[AnyTransition, str]] = [
    (RunAccepted(cause=C, reason="r", job=JOB, digest="d", jobs_sequence=1), "accepted digits"),
    (
        ControllerChanged(cause=C, reason="r", epoch=2, controller="c", decider=Decider(version="1")),
        "controller c, epoch 2",
    ),
    (StateChanged(cause=C, reason="r", from_state="running", to_state="restarting"), ""),
    (AttemptStarted(cause=C, reason="r", attempt=2, num_workers=2), "attempt 2"),
    (GroupLaidOut(cause=C, reason="r", attempt=1, layout=(), addr="a", port=1), "0 ranks laid out"),
    (FailureDecided(cause=C, reason="r", decision="retry", failure=FAILURE), "decided to retry"),
    (FailureDecided(cause=C, reason="r", decision="noop", failure=FAILURE), "decided to do nothing"),
    (
        FirstCauseRevised(cause=C, reason="r", attempt=1, failure=FAILURE, was=FAILURE),
        "first cause is now: RuntimeError: boom",
    ),
    (SourceJoined(cause=C, reason="r", source="s", boot="b", incarnation=2), "s joined as incarnation 2"),
    (RequestAccepted(cause=C, reason="r", id="1", request="abort_run"), "abort run accepted"),
    (RequestRefused(cause=C, reason="r", id="1", request="resize_run"), "resize run refused"),
    (
        CheckpointCommitted(cause=C, reason="r", name="c", index=1, attempt=1, manifest_digest="d"),
        "checkpoint c committed",
    ),
    (CheckpointValidated(cause=C, reason="r", name="c", outcome="timed_out"), "c timed out"),
    (RunContinued(cause=C, reason="r", run="a", checkpoint="c", first_index=3), "continues a from c"),
    (CheckpointsDoubted(cause=C, reason="r", names=("c", "d")), "in doubt: c, d"),
    (TaskOrdered(cause=C, reason="r", task=Task(id="seal:c", kind="seal")), "task seal:c ordered"),
    (
        TaskClosed(cause=C, reason="r", task="seal:c", task_kind="seal", outcome="timed_out"),
        "task seal:c closed: timed out",
    ),
    (Warned(cause=C, reason="r", about="overdue"), "a warning"),
    (NodeExcluded(cause=C, reason="r", node="n", failures=2), "n excluded from later attempts"),
    (NodeAdmitted(cause=C, reason="r", node="n"), "n may be used again"),
    (
        ReplicaGroupReplaced(cause=C, reason="r", group=1, life=2, layout=()),
        "replica group 1 begins life 2",
    ),
    (ResizePlanned(cause=C, reason="r", num_workers=3, deadline_t=9.0, index=0), "to be resized to 3 ranks"),
    (ResizeDropped(cause=C, reason="r", num_workers=1), "keeps its 1 rank"),
    (LogRestored(cause=C, reason="r", generation=2, source="url"), "log restored as generation 2"),
]
"""Transitions and their words; a change of state has a column of its own."""
