"""Bugs planted on purpose are found, each within 200 seeds, and by the promise that it breaks."""

from __future__ import annotations

import pytest

from support.sim.bugs import BUGS, planted
from support.sim.invariants import broken
from support.sim.play import simulate
from support.sim.scenario import load_scenario

SEEDS_MAX_COUNT = 200
PROMISES = {
    "skip the write-ahead wait": "which was not acknowledged to it",
    "count a stale failure": "nothing of the kind had happened",
    "resume at the wrong cursor": "was passed over",
}
"""Bug → the words by which the broken promise is told."""


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_it_is_found(bug: str) -> None:
    scenario = load_scenario("everything")
    for seed in range(SEEDS_MAX_COUNT):
        with planted(bug):
            outcome = simulate(scenario, seed)
        findings = broken(outcome)
        if any(PROMISES[bug] in finding for finding in findings):
            with_it = outcome.logs
            break
    else:
        pytest.fail(f"{SEEDS_MAX_COUNT} seeds, and nobody noticed")
    assert broken(simulate(scenario, seed)) == [], "without the bug the same seed is clean"
    assert with_it
