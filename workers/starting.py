"""What a rank is told when it starts: who it is, among whom, and what it runs. Pure."""

from __future__ import annotations

from pathlib import Path

from runfold.events.assignment import Assignment, Work
from runfold.events.base import Json
from runfold.events.transitions import RankLaid
from runfold.workers.devices import VISIBLE, visible_gpus
from runfold.workers.link import Go, Start
from runfold.workers.pipe import RunnerSpec
from runfold.workers.scope import Scope, given_to, rendezvous_of, scope_of
from runfold.workers.tpus import TPU, VISIBLE_CHIPS, chips_environment, port_environment, slices_environment


def start_of(spec: RunnerSpec, assignment: Assignment, job: Work, laid: RankLaid) -> Start:
    """Return what a rank is told. Its local ranks are those of the ranks that it meets with."""
    scope = scope_of(assignment, laid.rank)
    met = rendezvous_of(assignment, scope)
    gpus = gpus_of(assignment, laid)
    addr = met.addr if met is not None else spec.addr
    kind, tpus = assignment.slice, assignment.resources.get(TPU, 0.0)
    return Start(
        run=spec.run,
        name=job.name,
        attempt=assignment.attempt,
        rank=laid.rank,
        life=laid.life,
        slot=laid.its_slot,
        world_size=_world_size(assignment, scope),
        local_rank=laid.local_rank,
        local_world_size=len(_neighbours(assignment, laid, scope)),
        node_rank=laid.node_rank,
        replica_group=scope.group,
        replica_groups=scope.groups,
        replica_first=scope.first,
        replica_size=scope.size,
        lighthouse=assignment.lighthouse,
        entrypoint=job.entrypoint,
        config=job.config,
        env={
            **spec.env,
            **_visible(assignment, laid, share=job.backend.shares_gpus),
            **chips_environment(spec.env.get(VISIBLE_CHIPS), spec.slots, laid.its_slot),
            **port_environment(kind, tpus, scope.size, laid.local_rank),
            **job.env,
            **slices_environment(kind, tpus, scope.size, laid.rank - scope.first, addr),
            **_variables(spec, assignment, laid, scope),
        },
        working_dir=str(Path(spec.base_dir) / (job.working_dir or ".")),
        collective_timeout_s=job.timeouts.collective_timeout_s,
        node=spec.node,
        checkpointing=job.checkpointing,
        validates=job.validation is not None,
        arguments=_own(job.arguments, laid.rank),
        backend=job.backend,
        addr=addr,
        own_addr=spec.addr,
        resources=assignment.resources,
        gpus=gpus,
        warm=job.warm_restarts,
    )


def _variables(spec: RunnerSpec, assignment: Assignment, laid: RankLaid, scope: Scope) -> dict[str, str]:
    """Return the variables that say who a rank is."""
    given: dict[str, object] = {
        "RUNFOLD_RUN": spec.run,
        "RUNFOLD_ATTEMPT": assignment.attempt,
        "RUNFOLD_RANK": laid.rank,
        "RUNFOLD_WORLD_SIZE": _world_size(assignment, scope),
        "RUNFOLD_LOCAL_RANK": laid.local_rank,
        "RUNFOLD_LOCAL_WORLD_SIZE": len(_neighbours(assignment, laid, scope)),
        "RUNFOLD_NODE_RANK": laid.node_rank,
        "RUNFOLD_NODE": spec.node,
    }
    if scope.group is not None:
        given |= {"RUNFOLD_REPLICA_GROUP": scope.group, "RUNFOLD_REPLICA_RANK": laid.rank - scope.first}
    return {name: str(value) for name, value in given.items()}


def _world_size(assignment: Assignment, scope: Scope) -> int:
    return scope.size if scope.group is None else assignment.num_workers


def beginning(assignment: Assignment, job: Work, rank: int) -> Go:
    """Return where a rank begins: like all others, or like its replica group in its present life."""
    given = given_to(assignment, scope_of(assignment, rank))
    if given is None:
        return Go(checkpoint=job.checkpoint, first_index=job.first_index)
    return Go(checkpoint=given.checkpoint, first_index=job.first_index, first=given.first)


def _neighbours(assignment: Assignment, laid: RankLaid, scope: Scope) -> list[RankLaid]:
    """Return the ranks of the scope that are on the same node."""
    places = assignment.places
    node = places[laid.place].node
    return [one for one in assignment.layout if one.rank in scope.ranks and places[one.place].node == node]


# --- GPUs


def gpus_of(assignment: Assignment, laid: RankLaid) -> tuple[str, ...]:
    """Return the ids of the GPUs that are a rank's own: those of its slot."""
    gpus = assignment.places[laid.place].gpus
    return gpus[laid.its_slot] if laid.its_slot < len(gpus) else ()


def _visible(assignment: Assignment, laid: RankLaid, *, share: bool) -> dict[str, str]:
    """Return the variable that says which GPUs a rank sees, where the pool gives any."""
    places = assignment.places
    node = places[laid.place].node
    here = [one for one in assignment.layout if places[one.place].node == node]
    own = {one.rank: gpus_of(assignment, one) for one in here}
    if not any(own.values()):
        return {}
    return {VISIBLE: visible_gpus(own, dict.fromkeys(own, node), share=share)[laid.rank]}


def _own(arguments: dict[str, Json], rank: int) -> dict[str, Json]:
    """Return this rank's share of what a gate gave: a value each; who got none has none."""
    return {name: values[rank] for name, values in arguments.items() if isinstance(values, list) and rank < len(values)}
