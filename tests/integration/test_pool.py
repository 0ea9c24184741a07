"""From an assignment to ranks in user code and back, with a real broker and real processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.events.facts import RankReturned, RankStarted, Released, Reported

if TYPE_CHECKING:
    from support.pool import PoolForTest


async def test_a_group_is_placed_trained_and_released(pool: PoolForTest) -> None:
    run = await pool.run(
        "digits-1",
        """
        def train(config):
            for step in range(3):
                runfold.report({"loss": 1.0 / (step + 1), "step": step})
            runfold.barrier()
            return runfold.get_context().get_world_rank()
        """,
    )
    run.train()
    await run.heard(RankReturned, count=2)
    assert {(fact.rank, fact.value) for fact in run.of(RankReturned)} == {(0, 0), (1, 1)}
    assert {fact.rank for fact in run.of(RankStarted)} == {0, 1}
    first = run.of(Reported, rank=0)
    assert [(fact.index, fact.step) for fact in first] == [(0, 0), (1, 1), (2, 2)]
    assert first[0].metrics == {"loss": 1.0, "step": 0}
    assert all(fact.metrics is None for fact in run.of(Reported, rank=1))
    ended = await run.ended(2)
    assert [(fact.exit_code, fact.returned) for fact in ended] == [(0, True), (0, True)]
    run.stop()
    await run.heard(Released)
    assert not pool.named("runfold-runner")
    run.want("gone")
