"""Every kind of input and transition has words; none is left out."""

from __future__ import annotations

import typing

import pytest

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
    RequestAccepted,
    RequestRefused,
    RunAccepted,
    RunContinued,
    SourceJoined,
    StateChanged,
    TaskClosed,
    TaskOrdered,
    Warned,
)
from runfold.replay.words import ended, input_words, kind_of, metric_words, rank_words, transition_words
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
        PlacementFailed(source="s", incarnation=1, number=1, attempt=1, verdict="never", reason="8 wanted"),
        "cannot be placed",
    ),
    (PlacementFailed(source="s", incarnation=1, number=1, attempt=1, verdict="busy", reason=""), "not placed yet"),
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
    (PreemptionCancelled(source="s", incarnation=1, number=1, attempt=1, nodes=("n",)), "n stay after all"),
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
    (LogRestored(cause=C, reason="r", generation=2, source="url"), "log restored as generation 2"),
]


@pytest.mark.parametrize(("item", "words"), INPUTS, ids=lambda value: value if isinstance(value, str) else "")
def test_inputs_in_words(item: AnyInput, words: str) -> None:
    assert input_words(item)[0] == words


@pytest.mark.parametrize(("item", "words"), TRANSITIONS, ids=lambda value: value if isinstance(value, str) else "")
def test_transitions_in_words(item: AnyTransition, words: str) -> None:
    assert transition_words(item) == words


def test_no_kind_is_left_out() -> None:
    def names(union: object) -> set[str]:
        return {kind.__name__ for kind in typing.get_args(union)}

    assert {type(item).__name__ for item, _ in INPUTS} == names(AnyInput)
    assert {type(item).__name__ for item, _ in TRANSITIONS} == names(AnyTransition)
    assert kind_of(TRANSITIONS[0][0]) == "run_accepted"


def test_what_is_said_beside_an_exit() -> None:
    left = RankExited(
        source="s", incarnation=1, number=1, attempt=1, rank=1, life=1, exit_code=0, asked=True, peak_memory_bytes=2**21
    )
    assert input_words(left) == ("rank 1 exited with code 0", "asked to, peak memory 2 MiB")
    assert ended(None, 9) == "was ended by SIGKILL"
    assert ended(None, 250) == "was ended by signal 250"


@pytest.mark.parametrize(
    ("ranks", "words"),
    [((3,), "rank 3"), ((0, 1, 2), "ranks 0-2"), ((5, 0, 1), "ranks 0-1, 5"), ((2, 4), "ranks 2, 4")],
)
def test_ranks_in_words(ranks: tuple[int, ...], words: str) -> None:
    assert rank_words(ranks) == words


def test_metrics_in_words() -> None:
    assert metric_words({"loss": 0.123456, "nan": {"float": "nan"}, "n": 3}) == "loss=0.1235, nan=nan, n=3"
    assert metric_words({str(k): k for k in range(6)}) == "0=0, 1=1, 2=2, 3=3 and 2 more"
    assert metric_words({"text": "x" * 99}) == f"text={'x' * 23}…"
