"""Inputs and transitions in a few words each, as rows of the timeline say them. Texts are not yet safe to show."""

from __future__ import annotations

import signal as signals
from collections.abc import Sequence
from typing import assert_never

from runfold.events.base import Json
from runfold.events.conclusions import (
    AnyConclusion,
    ControllerStarted,
    JobTaken,
    LogCopied,
    MessageMalformed,
    ProgressStopped,
    SilenceConcluded,
    TimerFired,
)
from runfold.events.counts import counted, stay
from runfold.events.entry import AnyInput
from runfold.events.facts import (
    AnyFact,
    CapacityChanged,
    CheckpointSealed,
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
from runfold.events.requests import AnyRequest, Join, Request
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
from runfold.events.values import unpack
from runfold.replay.rows import bare

METRICS_SHOWN_MAX_COUNT = 4
_NOT_PLACED = {
    "never": "cannot be placed",
    "busy": "not placed yet",
    "late": "not placed in time",
    "failed": "not placed",
}


def kind_of(item: AnyInput | AnyTransition) -> str:
    """Return the wire name of an input's or transition's kind."""
    return str(item.__struct_config__.tag)


def input_words(item: AnyInput) -> tuple[str, str]:
    """Return what an input says, and more about it (empty when there is no more)."""
    if isinstance(item, Request):
        return _request(item)
    if isinstance(item, AnyConclusion):
        return _conclusion(item)
    return _fact(item)


def _fact(item: AnyFact) -> tuple[str, str]:
    match item:
        case Queued(ahead=ahead, free=free, needed=needed):
            wanted = f"{counted(needed, 'slot')} needed, {free} free"
            return "waits for room", wanted + (f", {counted(ahead, 'run')} ahead" if ahead else "")
        case Placed(places=places):
            return "placed on " + ", ".join(f"{place.node} ({place.slots})" for place in places), ""
        case PlaceReplaced(place=number, offer=offer):
            return f"another place for place {number}: {offer.node} ({offer.slots})", ""
        case PlacementFailed(verdict=verdict, reason=reason):
            return _NOT_PLACED[verdict], reason
        case RunnerLost(node=node, reason=reason):
            return f"the runner on {node} is gone: {ended(item.exit_code, item.signal)}", reason
        case CapacityChanged(slots=slots):
            now = ", ".join(f"{node} {count}" for node, count in slots.items()) or "none"
            return f"slots now: {now}", _room(item)
        case PreemptionNoticed(nodes=nodes, within_s=within, reason=reason):
            return f"{', '.join(nodes)} to be taken back{f' in {within:g} s' if within is not None else ''}", reason
        case PreemptionCancelled(nodes=nodes):
            return stay(nodes), ""
        case Released():
            return "the group holds nothing any more", ""
        case RunnerReady(node=node, addr=addr, port=port):
            return f"the runner on {node} is ready", f"holds {addr}:{port}"
        case RankStarted(rank=rank, pid=pid):
            return f"rank {rank} started", f"pid {pid}"
        case Reported(rank=rank, index=index):
            return f"rank {rank} reported", f"index {index}"
        case RankReturned(rank=rank, reports=reports):
            return f"rank {rank} returned", f"after {counted(reports, 'report')}"
        case RankFailed(rank=rank, error=error):
            return f"rank {rank} failed ({error.kind})", f"{bare(error.type)}: {error.message}"
        case RankExited(rank=rank):
            return f"rank {rank} {ended(item.exit_code, item.signal)}", _about_exit(item)
        case CheckpointSealed(name=name, size_bytes=size):
            return f"checkpoint {name} sealed", f"{size} bytes"
        case TaskEnded(task=task, outcome=outcome, error=error):
            return f"task {task} {outcome.replace('_', ' ')}", error.headline if error else ""
        case _:
            assert_never(item)


def _room(item: CapacityChanged) -> str:
    told = [f"room for {item.fits} rank{'s' if item.fits != 1 else ''} of the run"] if item.fits is not None else []
    if item.fits is not None and item.room is not None:
        told[0] += ": " + (", ".join(f"{node} {count}" for node, count in item.room.items()) or "nowhere")
    if item.slices is not None:
        told.append(f"{item.slices} whole slice{'s' if item.slices != 1 else ''}")
    return "; ".join(told)


def _conclusion(item: AnyConclusion) -> tuple[str, str]:
    match item:
        case JobTaken():
            return "job taken", "; ".join(item.warnings)
        case ControllerStarted(controller=controller):
            return f"controller {controller} started", ""
        case LogCopied(generation=generation, source=source):
            return f"log copied into generation {generation}", f"from {source}"
        case TimerFired(timer=timer, deadline_t=deadline):
            return f"timer {timer} was due", f"at {deadline:.3f} s"
        case SilenceConcluded(source=source, silence_s=silence, lost=lost, reason=reason):
            return f"{source} {'is lost' if lost else 'is silent'} ({silence:.1f} s)", reason
        case ProgressStopped(ranks=ranks, quiet_s=quiet):
            return f"{rank_words(ranks)} made no progress for {quiet:.1f} s", ""
        case MessageMalformed(subject=subject, reason=reason):
            return f"a message on {subject} could not be read", reason
        case _:
            assert_never(item)


def _request(item: AnyRequest) -> tuple[str, str]:
    asker = f" by {item.by}" if item.by else ""
    if isinstance(item, Join):
        return f"{item.source} asks to join", ""
    return f"{kind_of(item).replace('_', ' ')} asked{asker}", str(getattr(item, "reason", ""))


def transition_words(item: AnyTransition) -> str:
    """Return what was decided; empty for a change of state, which has a column of its own."""
    match item:
        case RunAccepted(job=job):
            return f"accepted {job.name or job.entrypoint}"
        case ControllerChanged(controller=controller, epoch=epoch):
            return f"controller {controller}, epoch {epoch}"
        case StateChanged():
            return ""
        case AttemptStarted(attempt=attempt):
            return f"attempt {attempt}"
        case GroupLaidOut(layout=layout):
            return f"{counted(len(layout), 'rank')} laid out"
        case FailureDecided(decision=decision):
            return f"decided to {decision}" if decision != "noop" else "decided to do nothing"
        case ReplicaGroupReplaced(group=group, life=life):
            return f"replica group {group} begins life {life}"
        case FirstCauseRevised(failure=failure):
            return f"first cause is now: {failure.error.headline}"
        case SourceJoined(source=source, incarnation=incarnation):
            return f"{source} joined as incarnation {incarnation}"
        case RequestAccepted(request=request) | RequestRefused(request=request):
            verdict = "accepted" if isinstance(item, RequestAccepted) else "refused"
            return f"{request.replace('_', ' ')} {verdict}"
        case CheckpointCommitted(name=name):
            return f"checkpoint {name} committed"
        case CheckpointValidated(name=name, outcome=outcome):
            return f"{name} {outcome.replace('_', ' ')}"
        case RunContinued(run=run, checkpoint=checkpoint):
            return f"continues {run or 'an earlier run'}{f' from {checkpoint}' if checkpoint else ''}"
        case CheckpointsDoubted(names=names):
            return f"in doubt: {', '.join(names)}"
        case TaskOrdered(task=task):
            return f"task {task.id} ordered"
        case TaskClosed(task=name, outcome=outcome):
            return f"task {name} closed: {outcome.replace('_', ' ')}"
        case Warned():
            return "a warning"
        case NodeExcluded(node=node):
            return f"{node} excluded from later attempts"
        case NodeAdmitted(node=node):
            return f"{node} may be used again"
        case ResizePlanned(num_workers=workers):
            return f"to be resized to {workers} rank{'s' if workers != 1 else ''}"
        case ResizeDropped(num_workers=workers):
            return f"keeps its {workers} rank{'s' if workers != 1 else ''}"
        case LogRestored(generation=generation):
            return f"log restored as generation {generation}"
        case _:
            assert_never(item)


def ended(exit_code: int | None, signal: int | None) -> str:
    """Return how a process ended."""
    if signal is not None:
        return f"was ended by {signal_name(signal)}"
    return "ended, nobody could see how" if exit_code is None else f"exited with code {exit_code}"


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9; the number for one that this machine does not know."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _about_exit(item: RankExited) -> str:
    why = "after its function had returned" if item.returned else "asked to" if item.asked else ""
    memory = f"peak memory {item.peak_memory_bytes / 2**20:.0f} MiB" if item.peak_memory_bytes else ""
    return ", ".join(part for part in ("out of memory" if item.oom else "", why, memory) if part)


def rank_words(ranks: Sequence[int]) -> str:
    """Return `rank 3`, or `ranks 0-3, 7`."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in spans)
    return f"rank{'' if len(spans) == 1 and spans[0][0] == spans[0][1] else 's'} {text}"


def ranks_did(ranks: Sequence[int], what: str) -> str:
    """Return what ranks did, given in words what one of them did: `ranks 0-1 were ended by SIGTERM`."""
    did = what.partition(" ")[2].partition(" ")[2]
    if len(set(ranks)) > 1 and did.startswith("was "):
        did = f"were {did.removeprefix('was ')}"
    return f"{rank_words(ranks)} {did}"


def metric_words(metrics: dict[str, Json]) -> str:
    """Return the first few metrics, as in `loss=0.12, accuracy=0.97`."""
    shown = [f"{name}={_value(value)}" for name, value in list(metrics.items())[:METRICS_SHOWN_MAX_COUNT]]
    more = len(metrics) - METRICS_SHOWN_MAX_COUNT
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _value(packed: Json) -> str:
    try:
        value = unpack(packed)
    except ValueError:
        value = packed  # not packed by this program: shown as it stands
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= 24 else text[:23] + "…"
