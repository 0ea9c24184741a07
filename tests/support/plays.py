"""Random plays: what anybody may say at any time, sensible or not, as Hypothesis draws it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
from hypothesis import strategies as st
from msgspec.structs import replace

from runfold.events.base import Json
from runfold.events.conclusions import (
    Conclusion,
    ControllerStarted,
    MessageMalformed,
    ProgressStopped,
    SilenceConcluded,
)
from runfold.events.config import FailureConfig, Timeouts
from runfold.events.entry import AnyInput
from runfold.events.facts import Fact
from runfold.events.failures import FailureKind
from runfold.events.requests import (
    AbortRun,
    AdmitNode,
    CancelPreemption,
    CheckpointNow,
    Join,
    NoticePreemption,
    ResizeRun,
)
from runfold.events.state import Preempting, Running, RunState, Scheduling
from runfold.events.tasks import TaskOutcome
from support.runs import DECIDER, POOL, Run

NODES: Final = ("node-a", "node-b")
KINDS: Final[tuple[FailureKind, ...]] = ("user", "peer", "oom", "load", "rendezvous", "preempted")

Line = tuple[str, int, int]
"""What is said, and two small numbers that it may use."""

SAID: Final = (
    *("place", "ready", "start", "report", "return", "release", "wait", "fail", "exit", "killed", "asked", "lost"),
    *("never", "short", "queued", "busy", "capacity", "notice", "cancel", "silent", "stuck", "hang", "malformed"),
    *("again", "shard", "shard", "named", "passed", "sealed", "sealed", "unsealed", "late shard"),
    *("abort", "resize", "request", "rejoin", "controller", "late", "stranger"),
)
ONE: Final[st.SearchStrategy[Line]] = st.tuples(st.sampled_from(SAID), st.integers(0, 3), st.integers(0, 5))
ON: Final[st.SearchStrategy[Line]] = st.just(("go on", 0, 0))
LINES: Final = st.one_of(ON, ON, ONE)
"""Every other line is the one that brings the run on, or none would come far."""

ENTRIES: Final = st.lists(LINES, min_size=1, max_size=4)
PLAYS: Final = st.lists(ENTRIES, min_size=4, max_size=16)
"""Entries of lines."""

CONFIGS: Final = st.builds(
    FailureConfig,
    max_failures=st.sampled_from([-1, 0, 1, 2]),
    controller_failure_limit=st.sampled_from([-1, 0, 1]),
    max_preemption_failures=st.sampled_from([-1, 0, 1]),
    max_hangs=st.sampled_from([0, 1]),
    preemption_grace_s=st.sampled_from([0.0, 2.0]),
    backoff_s=st.sampled_from([0.0, 0.0, 1.0]),
    reset_after_progress=st.sampled_from([None, 1]),
    repeat_limit=st.sampled_from([None, 2]),
    node_exclude_after=st.sampled_from([None, 1]),
)


@dataclass(frozen=True)
class Grouped:
    """So many ranks, in replica groups of so many."""

    workers: int
    size: int


Size = int | tuple[int, int] | Grouped
SIZES: Final[st.SearchStrategy[Size]] = st.sampled_from([1, 2, 3, (1, 3), Grouped(3, 1), Grouped(4, 2)])


def a_run(size: Size, config: FailureConfig) -> Run:
    """A run on two nodes, its sources joined."""
    timeouts = Timeouts(start_timeout_s=8.0, import_timeout_s=8.0, coalesce_s=2.0)
    if isinstance(size, Grouped):
        return Run(size.workers, nodes=NODES, failure=config, timeouts=timeouts, replica_size=size.size)
    return Run(size, nodes=NODES, failure=config, timeouts=Timeouts(start_timeout_s=8.0, import_timeout_s=8.0))


def inputs_of(run: Run, lines: list[Line]) -> list[AnyInput]:
    """What the lines say, numbered for the run as it is; what its source cannot say now is left out."""
    return [item for i, line in enumerate(lines) for item in _said(run, line, i)]


def _said(run: Run, line: Line, i: int) -> list[AnyInput]:
    what, a, b = line
    ranks, node = max(len(run.group.ranks), 1) if run.state.group is not None else 1, NODES[a % 2]
    rank, unique = a % ranks, f"{run.state.n}-{i}"
    match what:
        case "go on":
            return _next_lines(run)
        case "place" | "short" | "queued" | "busy" | "never" | "lost" | "release" | "capacity" | "notice" | "cancel":
            return [] if run.state.group is None else [_by_pool(run, what, a, b, node)]
        case "again":
            return [run.place_again(a % 2, NODES[b % 2], 2)] if run.state.group is not None else []
        case "ready":
            return [run.ready(node, port=4000 + b)] if run.state.group is not None else []
        case "start" | "report" | "return" | "fail" | "exit" | "killed" | "asked":
            return [_of_rank(run, what, rank, b)] if run.state.group is not None else []
        case "shard" | "named" | "passed" | "sealed" | "unsealed" | "late shard":
            return _of_checkpoint(run, what, rank, b, node) if run.state.group is not None else []
        case "late":
            return [run.failed(rank, "late", KINDS[b], attempt=max(run.state.attempt - 1, 0), ago_s=0.2 * b)]
        case "stranger":
            return [replace(run.queued(), source="stranger"), replace(run.queued(), attempt=run.state.attempt + 1)]
        case "silent" | "stuck" | "hang" | "malformed" | "controller":
            return [_concluded(run, what, a, b, rank, unique)]
        case "abort" | "resize" | "request" | "rejoin":
            return [_asked(run, what, a, b, node, unique)]
        case _:
            return []


def _next_lines(run: Run) -> list[AnyInput]:
    """What the sources would say now if nothing went wrong."""
    group = run.state.group
    if group is None or run.state.terminal:
        return []
    if run.name in ("restarting", "rescheduling", "resizing") and not run.state.held and run.state.job.scaling.elastic:
        return [run.room(3)]
    if isinstance(run.state.phase, Scheduling):
        if not group.places:
            return [run.placed()]
        if not group.layout:
            return [run.ready(place.node) for place in group.places if not place.healthy]
        return [run.started(rank.rank) for rank in group.ranks if not rank.started]
    if isinstance(run.state.phase, Running | Preempting):
        if again := _begin_again(run):
            return again
        return [run.returned(rank.rank) for rank in group.ranks if rank.phase == "running"]
    return [run.released()] if run.state.held else []


def _begin_again(run: Run) -> list[AnyInput]:
    """What the sources would say now of replica groups that are replaced."""
    group = run.group
    if left := [(i, place) for i, place in enumerate(group.places) if place.left is not None]:
        return [run.place_again(i, place.node, place.slots) for i, place in left]
    if unready := [place for place in group.places if place.ready is None]:
        return [run.ready(place.node) for place in unready]
    return [run.started(rank.rank) for rank in group.ranks if rank.phase == "starting"]


def _by_pool(run: Run, what: str, a: int, b: int, node: str) -> AnyInput:
    match what:
        case "place":
            return run.placed()
        case "short":
            # A pool places a group once, too small or not.
            return run.placed() if run.group.places else run.placed(1)
        case "queued":
            return run.queued(ahead=a, free=b)
        case "busy" | "never":
            return run.placement_failed(never=what == "never" and b == 0)
        case "lost":
            return run.runner_lost(node)
        case "capacity":
            return run.capacity(node_a=a, node_b=b) if b % 2 else run.room(node_a=a, node_b=b)
        case "notice":
            return run.noticed(node, within_s=float(b))
        case "cancel":
            return run.cancelled(node)
        case _:
            return run.released()


def _of_rank(run: Run, what: str, rank: int, b: int) -> AnyInput:
    match what:
        case "start":
            return run.started(rank, next_port=5000 + b)
        case "report":
            return run.reported(rank, b)
        case "return":
            return run.returned(rank)
        case "fail":
            return run.failed(rank, f"boom {b}", KINDS[b], ago_s=0.02 * b)
        case "exit":
            return run.exited(rank, b)
        case "killed":
            return run.exited(rank, signal=9, oom=b == 0)
        case _:
            return run.exited(rank, signal=15, asked=True)


def _of_checkpoint(run: Run, what: str, rank: int, b: int, node: str) -> list[AnyInput]:
    waiting = [one.task for one in run.state.tasks if one.end is None]
    match what:
        case "shard" | "named":
            return [run.shard(rank, b, f"best-{b % 2}" if what == "named" else None)]
        case "passed":
            return [run.reported(one.rank, b) for one in run.group.ranks]
        case "late shard":
            return [run.shard(rank, b, attempt=max(run.state.attempt - 1, 0))]
        case "sealed" if waiting and waiting[0].kind == "seal":
            metrics: dict[str, Json] = {"loss": b}
            return [run.sealed(str(waiting[0].arguments["name"]), metrics, node=node)]
        case _ if waiting:
            outcome: TaskOutcome = "done" if waiting[0].kind != "seal" and b else "failed"
            return [
                run.task_ended(waiting[b % len(waiting)].id, outcome, why="" if outcome == "done" else "x", node=node)
            ]
        case _:
            return []


def _concluded(run: Run, what: str, a: int, b: int, rank: int, unique: str) -> AnyInput:
    match what:
        case "silent":
            source = (*NODES, POOL)[b % 3]
            # The controller concludes the loss only of what it knows to have a place.
            known = run.state.group is not None and any(place.source == source for place in run.group.places)
            return SilenceConcluded(source=source, silence_s=10.0 * a, lost=known and b > 2, reason="silent")
        case "stuck":
            return ProgressStopped(ranks=(rank,) if b else (), quiet_s=70.0, limit_s=None)
        case "hang":
            limit_s = 60.0 + 20.0 * (b == 0)
            return ProgressStopped(ranks=(rank,), quiet_s=70.0, limit_s=limit_s, attempt=run.state.attempt)
        case "malformed":
            return MessageMalformed(subject="s", reason="not JSON", digest=unique)
        case _:
            return ControllerStarted(controller=f"ctl-{unique}", decider=DECIDER)


def _asked(run: Run, what: str, a: int, b: int, node: str, unique: str) -> AnyInput:
    match what:
        case "abort":
            return AbortRun(id=unique) if b == 0 else CheckpointNow(id=unique)
        case "resize":
            return ResizeRun(id=unique, num_workers=a)
        case "rejoin":
            run.numbers[node] = 0
            return Join(id=unique, source=node, boot=unique)
        case _:
            asked = (
                NoticePreemption(id=unique, nodes=(node,), within_s=float(b)),
                CancelPreemption(id=unique, nodes=(node,)),
                AdmitNode(id=unique, node=node),
            )
            return asked[b % 3]


# --- comparing


def speaker(item: AnyInput) -> str:
    """Whose order counts: a source's own facts, what users asked, what the controller concluded."""
    if isinstance(item, Fact):
        return item.source
    return "controller" if isinstance(item, Conclusion) else "users"


def seen_from_outside(state: RunState) -> object:
    """The state as plain values, without what depends on where in its entry an input stood."""
    return _blurred(msgspec.to_builtins(state), state.n)


def _blurred(value: Json, n: int) -> Json:
    if isinstance(value, dict):
        if value.get("entry") == n and "input" in value:
            return {"entry": n}
        return {key: _blurred(inner, n) for key, inner in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [_blurred(inner, n) for inner in value]
    return value
