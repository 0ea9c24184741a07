"""Ten minutes without a broker, under many seeds: what `make test` plays a few of. The real ones are beside it."""

from __future__ import annotations

import pytest

from support.sim.invariants import broken
from support.sim.play import simulate
from support.sim.scenario import load_scenario

SEEDS_COUNT = 300


@pytest.mark.soak
def test_ten_minutes_without_a_broker_cost_nothing() -> None:
    scenario = load_scenario("broker_is_gone")
    assert scenario.trouble["broker_dies"].lasts_s == (600.0, 600.0)
    found = {seed: findings for seed in range(SEEDS_COUNT) if (findings := broken(simulate(scenario, seed)))}
    assert not found, [f"make simulate SCENARIO=broker_is_gone SEED={seed}" for seed in found]
