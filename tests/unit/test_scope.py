"""Who meets with whom, and what a rank is told when it starts: by table."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from runfold.events.assignment import Assignment, PlaceWanted, Rendezvous, ReplicaGiven, Work
from runfold.events.config import BackendConfig
from runfold.events.transitions import RankLaid
from runfold.workers.link import Go
from runfold.workers.pipe import RunnerSpec
from runfold.workers.scope import Scope, given_to, rendezvous_of, scope_of, sources_of
from runfold.workers.starting import beginning, gpus_of, start_of

JOB = Work(entrypoint="job:train", checkpoint="first", first_index=7, env={"LR": "1"})
SPEC = RunnerSpec(
    url="",
    namespace="",
    run="digits",
    attempt=1,
    pool="local",
    node="node-b",
    source="node-b",
    secret=b"s",
    base_dir="/base",
    addr="10.0.0.2",
)


def assignment(size: int | None = 2, *, lives: tuple[int, ...] = (1, 1, 1, 1)) -> Assignment:
    """Ranks 0 to 2 on node-a, rank 3 on node-b."""
    places = (
        PlaceWanted(node="node-a", slots=3, source="node-a", addr="10.0.0.1", port=1 if size else 0),
        PlaceWanted(node="node-b", slots=1, source="node-b", addr="10.0.0.2", port=2 if size else 0),
    )
    layout = tuple(
        RankLaid(rank=rank, life=life, place=rank // 3, local_rank=rank % 3, node_rank=0)
        for rank, life in enumerate(lives)
    )
    return Assignment(
        run="digits",
        epoch=1,
        n=1,
        hash="",
        attempt=4,
        want="train",
        num_workers=4,
        places=places,
        layout=layout,
        rendezvous=Rendezvous(addr="10.0.0.1", port=9),
        job=JOB,
        replica_group_size=size,
    )


def test_without_groups_all_ranks_meet_at_the_runner_of_rank_0() -> None:
    told = assignment(None)
    scope = scope_of(told, 3)
    assert scope == Scope(attempt=4, first=0, size=4)
    assert rendezvous_of(told, scope) == Rendezvous(addr="10.0.0.1", port=9)
    assert sources_of(told, scope) == {0: "node-a", 1: "node-a", 2: "node-a", 3: "node-b"}
    assert given_to(told, scope) is None


@pytest.mark.parametrize(
    ("rank", "group", "ranks", "sources", "port"),
    [
        (0, 0, [0, 1], {0: "node-a", 1: "node-a"}, 1),
        (3, 1, [2, 3], {2: "node-a", 3: "node-b"}, 1),
    ],
)
def test_with_groups_ranks_meet_in_theirs(
    rank: int, group: int, ranks: list[int], sources: dict[int, str], port: int
) -> None:
    told = assignment()
    scope = scope_of(told, rank)
    assert (scope.group, list(scope.ranks), scope.life, scope.groups) == (group, ranks, 1, 2)
    assert sources_of(told, scope) == sources
    assert rendezvous_of(told, scope) == Rendezvous(addr="10.0.0.1", port=port)


def test_who_is_not_laid_out_is_met_nowhere() -> None:
    told = assignment()
    alone = replace(told, layout=told.layout[3:])
    assert rendezvous_of(alone, scope_of(alone, 3)) is None


def test_each_attempt_group_and_life_has_a_secret_of_its_own() -> None:
    lives = [assignment(), assignment(lives=(1, 1, 2, 2)), assignment(None)]
    secrets = {scope_of(told, rank).secret(b"s") for told in lives for rank in (0, 3)}
    assert len(secrets) == 4
    assert scope_of(lives[0], 0).secret(b"s") == scope_of(lives[1], 0).secret(b"s")


def test_a_later_life_begins_where_it_is_told_to() -> None:
    given = ReplicaGiven(group=1, life=2, checkpoint="later", first=5)
    told = replace(assignment(lives=(1, 1, 2, 2)), replicas=(given,))
    assert beginning(told, JOB, 3) == Go(checkpoint="later", first_index=7, first=5)
    assert beginning(told, JOB, 0) == Go(checkpoint="first", first_index=7)


def test_a_rank_is_told_who_it_is_in_its_group() -> None:
    told = assignment()
    start = start_of(SPEC, told, JOB, told.layout[3])
    assert (start.rank, start.world_size, start.local_world_size) == (3, 4, 1)
    assert (start.replica_group, start.replica_groups, start.replica_first, start.replica_size) == (1, 2, 2, 2)
    assert start.env["RUNFOLD_REPLICA_GROUP"] == "1"
    assert start.env["RUNFOLD_REPLICA_RANK"] == "1"
    assert start.addr == "10.0.0.1"


def test_a_rank_without_group_is_told_of_none() -> None:
    told = assignment(None)
    start = start_of(SPEC, told, JOB, told.layout[1])
    assert (start.world_size, start.local_world_size, start.replica_group) == (4, 3, None)
    assert "RUNFOLD_REPLICA_GROUP" not in start.env


# --- GPUs


def with_gpus(*of_slots: tuple[str, ...]) -> Assignment:
    told = assignment(None)
    return replace(told, places=(replace(told.places[0], gpus=of_slots), told.places[1]))


@pytest.mark.parametrize(
    ("kind", "rank", "own", "visible"),
    [
        ("torch", 0, ("0",), "0,1,10"),
        ("torch", 2, ("10",), "0,1,10"),
        ("torchft", 1, ("1",), "0,1,10"),
        ("none", 1, ("1",), "1"),
        ("jobs:backend", 2, ("10",), "10"),
        ("torch", 3, (), None),
    ],
)
def test_ranks_see_the_gpus_of_their_node_where_the_backend_shares_them(
    kind: str, rank: int, own: tuple[str, ...], visible: str | None
) -> None:
    told = with_gpus(("0",), ("1",), ("10",))
    start = start_of(SPEC, told, replace(JOB, backend=BackendConfig(kind=kind)), told.layout[rank])
    assert (start.gpus, start.env.get("CUDA_VISIBLE_DEVICES")) == (own, visible)


def test_what_the_job_says_of_gpus_stands() -> None:
    told = with_gpus(("0",), ("1",), ("2",))
    start = start_of(SPEC, told, replace(JOB, env={"CUDA_VISIBLE_DEVICES": "7"}), told.layout[0])
    assert start.env["CUDA_VISIBLE_DEVICES"] == "7"


def test_a_rank_has_the_gpus_of_its_slot() -> None:
    told = with_gpus(("0",), ("1",))
    assert gpus_of(told, replace(told.layout[0], slot=1)) == ("1",)
    assert gpus_of(told, told.layout[2]) == ()


def test_a_node_that_gives_gpus_gives_each_rank_one() -> None:
    told = with_gpus(("0",), ("1",))
    job = replace(JOB, backend=BackendConfig(kind="torch"))
    start = start_of(SPEC, told, job, told.layout[0])
    assert start.env["CUDA_VISIBLE_DEVICES"] == "0,1"
