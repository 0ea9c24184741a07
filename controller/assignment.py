"""The assignment: what a run's group should be doing, read off the state. Rebuilt at any time from the log alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from runfold.controller.elastic import away
from runfold.controller.gating import open_question
from runfold.controller.places import kept_without
from runfold.controller.preempting import has_saved, taken_nodes
from runfold.controller.replicas import size_of
from runfold.events.assignment import (
    Assignment,
    PlaceWanted,
    Rendezvous,
    ReplicaGiven,
    SourceGiven,
    StopOrder,
    Want,
    Work,
)
from runfold.events.gates import RESIZE, START
from runfold.events.state import (
    Aborted,
    Errored,
    Finished,
    Initializing,
    Preempting,
    Rescheduling,
    Resizing,
    Restarting,
    Running,
    Scheduling,
    ShuttingDown,
)
from runfold.events.tasks import AT_THE_POOL, STACKS, VALIDATION

if TYPE_CHECKING:
    from runfold.events.base import Json
    from runfold.events.entry import Head
    from runfold.events.state import Group, RunState
    from runfold.events.tasks import Task


def assignment(state: RunState, head: Head) -> Assignment:
    """Return the assignment that the state after `head` calls for."""
    want, group, scaling = wanted(state), state.group, state.job.scaling
    base = Assignment(
        run=state.run,
        epoch=state.epoch,
        n=head.n,
        hash=head.hash,
        attempt=state.attempt,
        want=want,
        pool=state.job.pool,
        priority=state.job.priority,
        accepted_at=state.accepted_at,
        folded={name: source.folded for name, source in state.sources.items()},
        joined=_joined(state),
        tasks=_tasks(state) if want != "gone" else (),
        resources=scaling.worker_resources,
        placement_strategy=scaling.placement_strategy,
        excluded_nodes=tuple(sorted(away(state))),
        label_selector=scaling.label_selector,
        room_for=_room_for(state) if want != "gone" else 0,
        runtime_env=_runtime_env(state, want),
        accelerator_type=scaling.accelerator_type,
        slice=scaling.slice,
    )
    if want == "gone" or group is None:
        return replace(base, job=work(state)) if base.tasks else base
    return replace(
        base,
        num_workers=group.num_workers,
        places=_places(state),
        kept=group.kept,
        layout=group.layout if want == "train" else (),
        rendezvous=Rendezvous(addr=group.addr, port=group.port) if want == "train" else None,
        label_selector=group.label_selector or scaling.label_selector,
        job=None if want == "stop" and not state.tasks else work(state),
        stop=_stop_order(state) if want == "stop" else None,
        replica_group_size=size_of(state),
        replicas=_replicas(group) if want == "train" else (),
        lighthouse=group.lighthouse if want == "train" else "",
    )


def wanted(state: RunState) -> Want:
    """Return what the group should be doing, in one word."""
    match state.phase:
        case Scheduling():
            return "train" if state.group is not None and state.group.layout else "place"
        case Running() | Preempting():
            return "train"
        case Restarting() | Rescheduling() if state.phase.kept:
            return "place"
        case Restarting() if _asking(state, state.phase):
            return "train"  # what lives is kept until the gate that is asked has answered
        case Initializing() | Restarting() | Rescheduling() | Resizing() | ShuttingDown():
            return "stop"
        case Finished() | Errored() | Aborted():
            return "gone"
        case _:
            assert_never(state.phase)


def _asking(state: RunState, phase: Restarting) -> bool:
    """Whether a gate is asked about the next attempt, and the places are kept for it."""
    asked = open_question(state, RESIZE) or open_question(state, START)
    return asked and phase.not_before_t <= phase.since_t and kept_without(state, phase.failure, 0.0) == ()


def _runtime_env(state: RunState, want: Want) -> dict[str, Json]:
    """Return what is to be prepared on a cluster's nodes, where anything is begun there: ranks, or a validation."""
    validates = want != "gone" and any(one.task.kind == VALIDATION and one.end is None for one in state.tasks)
    return state.job.runtime_env if want in {"place", "train"} or validates else {}


def _room_for(state: RunState) -> int:
    """Return for how many ranks the run wants to know what there is room for; 0: nothing here depends on it."""
    job = state.job
    asks = job.scaling.elastic or job.failure.node_exclude_after is not None or state.notice is not None
    waits = state.group is not None and any(place.left is not None for place in state.group.places)
    # Whether nodes that it stays off have gone and come is what the pool then tells.
    waits |= bool(state.away) and isinstance(state.phase, Scheduling | Restarting | Rescheduling)
    return job.scaling.max_workers if asks or waits else 0


def _places(state: RunState) -> tuple[PlaceWanted, ...]:
    places = state.group.places if state.group is not None else ()
    sources = state.sources
    return tuple(
        PlaceWanted(
            node=place.node,
            slots=place.slots,
            source=place.source,
            incarnation=sources[place.source].incarnation if place.source in sources else None,
            addr=place.ready.addr if place.door and place.ready is not None else "",
            port=place.door,
            gpus=place.ready.gpus if place.ready is not None else (),
            left=place.left,
        )
        for place in places
    )


def _replicas(group: Group) -> tuple[ReplicaGiven, ...]:
    return tuple(
        ReplicaGiven(group=one.group, life=one.life, checkpoint=one.start, first=one.first)
        for one in group.replicas
        if not one.down
    )


def _joined(state: RunState) -> tuple[SourceGiven, ...]:
    return tuple(
        SourceGiven(source=name, boot=source.boot, incarnation=source.incarnation)
        for name, source in state.sources.items()
    )


def work(state: RunState) -> Work:
    """Return what the ranks run."""
    job, group = state.job, state.group
    return Work(
        entrypoint=job.entrypoint,
        config=job.config,
        env=job.env,
        secret_env=job.secret_env,
        working_dir=job.working_dir,
        name=job.name or "",
        storage_path=job.storage_path,
        metrics_ranks=job.metrics_ranks,
        backend=job.backend,
        timeouts=job.timeouts,
        checkpoint=group.start if group is not None else None,
        storage_name=job.storage_name or state.run,
        storage_options=job.storage_options,
        storage_filesystem=job.storage_filesystem,
        checkpointing=job.checkpoint,
        first_index=state.checkpoints.base,
        waits=group is not None and group.waits,
        wanted=_wanted(state),
        validation=job.validation,
        hooks=job.hooks,
        datasets=job.datasets,
        warm_restarts=job.warm_restarts,
        arguments=group.arguments if group is not None else {},
        taken=taken_nodes(state),
    )


def _wanted(state: RunState) -> str | None:
    """Return the request that asks for a checkpoint; a resize and nodes about to be taken back ask too."""
    wanted = state.checkpoints.wanted
    if wanted is not None:
        return wanted.id
    if (plan := state.elastic.plan) is not None:
        return f"resize-{plan.n}"
    # Each time another wish, or ranks that answered the one before would take it for that.
    # Once it is there nothing more is waited for, as who stops the service has to know.
    asks = isinstance(state.phase, Preempting) and not has_saved(state, state.phase)
    return f"preemption-{state.phase.since_t:.6f}" if asks else None


def _tasks(state: RunState) -> tuple[Task, ...]:
    """Give the tasks to the runner of rank 0, or to the first that there is; what has ended is nobody's.

    The supervisor does those that need no group, and all of them once there is none, or once every rank has returned
    and no runner is left: what is on its way to be committed then is not lost.
    """
    group = state.group
    runner = ""
    if group is not None and group.places:
        first = group.layout[0].place if group.layout else 0
        places = [group.places[first], *group.places]
        runner = next((place.source for place in places if place.healthy), "")
    if group is not None and (group.released or (not runner and _returned(group))):
        runner = state.supervisor
    return tuple(replace(one.task, source=_doer(state, one.task, runner)) for one in state.tasks if one.end is None)


def _returned(group: Group) -> bool:
    return bool(group.ranks) and all(rank.phase == "returned" for rank in group.ranks)


def _doer(state: RunState, task: Task, runner: str) -> str:
    if task.kind == STACKS:
        return str(task.arguments.get("source", ""))
    return state.supervisor if task.kind in AT_THE_POOL else runner


def _stop_order(state: RunState) -> StopOrder:
    """Say how patiently to stop. An abort of a run that was ending anyway leaves no patience."""
    phase, timeouts = state.phase, state.job.timeouts
    if isinstance(phase, ShuttingDown):
        hurried = state.ending is not None and state.ending.next != phase.next
        grace_s = 0.0 if hurried else timeouts.stop_grace_s
        return StopOrder(reason=phase.reason, grace_s=grace_s, deadline_t=phase.deadline_t)
    deadline_t = phase.since_t + timeouts.shutdown_deadline_s
    return StopOrder(reason=phase.reason, grace_s=timeouts.restart_grace_s, deadline_t=deadline_t)
