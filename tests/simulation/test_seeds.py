"""Seeded simulations of everything: whatever goes wrong, every promise holds; the same seed writes the same logs."""

from __future__ import annotations

import pytest

from support.sim.invariants import broken
from support.sim.play import simulate, told
from support.sim.scenario import load_scenario, scenario_names

TWICE_EVERY = 20
"""One play in so many is played twice."""

FOUND = [("notices", 30041)]
"""Plays that broke a promise once: a place that was left waited for a node whose notice had been taken back."""

PLAYS = [*FOUND, *((name, seed) for name in scenario_names() for seed in range(load_scenario(name).seeds))]


@pytest.mark.parametrize(("number", "name", "seed"), [(k, *play) for k, play in enumerate(PLAYS)])
def test_every_promise_holds(number: int, name: str, seed: int) -> None:
    outcome = simulate(load_scenario(name), seed)
    findings = broken(outcome)
    if findings:
        print(told(outcome))
        print(f"again: make simulate SCENARIO={name} SEED={seed}")
    assert findings == []
    if number % TWICE_EVERY == 0:
        assert simulate(load_scenario(name), seed).logs == outcome.logs
