"""A group on several nodes: a runner each, one meeting point, and the ports that are held for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.events.assignment import Rendezvous
from runfold.events.facts import RankFailed, RankReturned, RankStarted, RunnerLost, RunnerReady
from support.processes import name_of

if TYPE_CHECKING:
    from support.pool import PoolForTest

MEET = """
import time
def train():
    context = runfold.get_context()
    met = runfold.all_gather(context.get_world_rank())
    if context.get_attempt() == 1 and context.get_world_rank() == 3:
        raise RuntimeError("once")
    runfold.barrier()
    return [met, context.get_local_rank(), context.get_node_rank(), context.get_local_world_size()]
"""


async def test_ranks_of_two_nodes_meet_and_meet_again_at_the_next_held_port(wide_pool: PoolForTest) -> None:
    run = await wide_pool.run("digits-1", MEET, num_workers=4)
    assert len(wide_pool.named("runfold-runner")) == 2
    run.train()
    await run.heard(RankFailed, rank=3)
    first = next(fact for fact in run.of(RunnerReady) if fact.node == run.places[0].node)
    following = (await run.heard(RankStarted, rank=0)).next_port
    assert following is not None
    assert following != first.port
    run.train(attempt=2, rendezvous=Rendezvous(addr=first.addr, port=following))
    await run.heard(RankReturned, count=4, attempt=2)
    values = {fact.rank: fact.value for fact in run.of(RankReturned)}
    assert values == {
        0: [[0, 1, 2, 3], 0, 0, 2],
        1: [[0, 1, 2, 3], 1, 0, 2],
        2: [[0, 1, 2, 3], 0, 1, 2],
        3: [[0, 1, 2, 3], 1, 1, 2],
    }


async def test_a_meeting_point_that_nobody_holds_is_a_failed_rendezvous(wide_pool: PoolForTest) -> None:
    run = await wide_pool.run("digits-1", MEET, num_workers=4)
    run.train(rendezvous=Rendezvous(addr="127.0.0.1", port=1))
    told = await run.heard(RankFailed, rank=0)
    assert told.error.kind == "rendezvous"


async def test_the_loss_of_one_node_is_told_and_breaks_the_others_collectives(wide_pool: PoolForTest) -> None:
    run = await wide_pool.run(
        "digits-1",
        """
        import time
        def train():
            if runfold.get_context().get_node_rank() == 1: time.sleep(600)
            runfold.barrier()
        """,
        num_workers=4,
    )
    run.train()
    await run.heard(RankStarted, count=4)
    started = run.of(RankStarted)
    far = next(fact.source for fact in started if fact.rank == 3)
    parents = {process.pid: process for process in wide_pool.named("runfold-runner")}
    runner = next(p for pid, p in parents.items() if any(name_of(c) == "rank-3" for c in p.children(recursive=True)))
    runner.kill()
    lost = await run.heard(RunnerLost)
    assert lost.node == far
    told = await run.heard(RankFailed, rank=0)
    assert told.error.kind == "peer"
