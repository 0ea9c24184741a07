"""Hearing beats on a real broker: the newest of each source, and no second that could not be observed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runfold.controller.ears import Ears
from runfold.events.beats import PoolBeat, RankBeat, RunnerBeat
from runfold.events.nats.names import Role
from support.waiting import until

if TYPE_CHECKING:
    from runfold.controller.liveness import Heard
    from runfold.events.nats.connection import Connection
    from support.broker import BrokerForTest


class Ticks:
    """What an ear has heard."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.seconds: list[float] = []

    def __call__(self, heard: Heard, tick_s: float) -> None:
        self.heard.append(heard)
        self.seconds.append(tick_s)

    async def observed(self) -> None:
        """Wait for a second that counts."""
        before = len(self.seconds)
        await until(lambda: any(self.seconds[before:]))


async def beat(connection: Connection, run: str, source: str, number: int, *, paused: bool = False) -> None:
    """Beat as a runner does."""
    said = RunnerBeat(
        run=run,
        source=source,
        incarnation=2,
        attempt=1,
        number=number,
        clock_s=0.0,
        ranks=(RankBeat(rank=0, phase="running"), RankBeat(rank=1, phase="running", paused=paused)),
    )
    await connection.publish(connection.names.subjects.beat(run, 1, source), msgspec.json.encode(said))


async def test_the_newest_beat_of_each_source_of_a_run_is_heard(broker: BrokerForTest) -> None:
    ears, worker = Ears(await broker.connect(Role.CONTROLLER)), await broker.connect(Role.WORKER)
    ticks, others = Ticks(), Ticks()
    ear, other = ears.run("digits-1"), ears.run("digits-2")
    await ear.open("local", ticks)
    await other.open("local", others)
    await ticks.observed()
    for number in range(5):
        await beat(worker, "digits-1", "node-a", number, paused=True)
    await beat(worker, "digits-1", "node-b", 7)
    subject = worker.names.subjects
    await worker.publish(subject.beat("digits-1", 1, "node-c"), b"no beat")
    pool = PoolBeat(pool="local", supervisor="s", nodes={"node-a": 2, "node-b": 2}, free=0)
    await worker.publish(subject.pool_beat("local"), msgspec.json.encode(pool))
    await until(lambda: any("node-b" in heard.beats for heard in ticks.heard))
    beats = {name: one for heard in ticks.heard for name, one in heard.beats.items()}
    assert set(beats) == {"node-a", "node-b"}
    assert (beats["node-a"].number, beats["node-a"].incarnation, beats["node-a"].paused) == (4, 2, frozenset({1}))
    assert beats["node-b"].paused == frozenset()
    await until(lambda: any(heard.nodes for heard in others.heard))
    assert [heard.nodes for heard in others.heard if heard.nodes] == [{"node-a", "node-b"}]
    assert not [heard for heard in others.heard if heard.beats]
    await ear.close()
    await other.close()
    await ears.close()


async def test_seconds_in_which_the_broker_is_away_are_not_observed(broker: BrokerForTest) -> None:
    connection = await broker.connect(Role.CONTROLLER)
    ears, ticks = Ears(connection), Ticks()
    ear = ears.run("digits-1")
    await ear.open("local", ticks)
    await ticks.observed()
    broker.kill()
    await until(lambda: not connection.is_up)
    before = len(ticks.seconds)
    await until(lambda: len(ticks.seconds) >= before + 3)
    assert ticks.seconds[before:] == [0.0] * (len(ticks.seconds) - before)
    broker.restart()
    await ticks.observed()
    assert max(ticks.seconds) <= 0.5
    await ear.close()
    await ears.close()
