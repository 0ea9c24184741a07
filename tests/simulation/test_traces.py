"""Runs on a fleet whose nodes come and go as they really did, and where what fails is what really does."""

from __future__ import annotations

import pytest

from runfold.events.transitions import AttemptStarted
from support.sim.invariants import broken
from support.sim.play import Outcome, simulate, told
from support.sim.scenario import load_scenario
from support.sim.traces import FOLDER, read_changes, read_mix, read_mttf_s

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the traces stand beside the repository (../shared/traces), and are not here"
)

EVENTS_COUNT = {"p3": 344, "g4dn": 153}
ATTEMPTS_COUNT = 10


def sound(name: str, trace: str) -> Outcome:
    """What comes of a fleet under a trace, once it is seen that no promise is broken."""
    scenario = load_scenario(name)
    assert scenario.trace == trace
    outcome = simulate(scenario, 0)
    findings = broken(outcome)
    if findings:
        print(told(outcome))
        print(f"again: make simulate SCENARIO={name} SEED=0")
    assert findings == []
    return outcome


@pytest.mark.parametrize(("name", "trace"), [("spot_fleet", "p3"), ("small_spot_fleet", "g4dn")])
def test_every_run_comes_to_its_end(name: str, trace: str) -> None:
    outcome = sound(name, trace)
    transitions = [item for history in outcome.histories.values() for e in history.entries for item in e.transitions]
    assert sum(isinstance(item, AttemptStarted) for item in transitions) > ATTEMPTS_COUNT, "nothing went wrong"


SIZES_COUNT = 6


@pytest.mark.parametrize(("name", "trace"), [("elastic_fleet", "p3"), ("elastic_small_fleet", "g4dn")])
def test_elastic_runs_take_the_nodes_that_there_are_and_finish(name: str, trace: str) -> None:
    outcome = sound(name, trace)
    for history in outcome.histories.values():
        transitions = [item for entry in history.entries for item in entry.transitions]
        sizes = [item.num_workers for item in transitions if isinstance(item, AttemptStarted)]
        print(f"{history.run}: {len(sizes)} attempts of {sorted(set(sizes))} ranks")
        assert len(set(sizes)) >= SIZES_COUNT, "it did not follow the fleet"


@pytest.mark.parametrize("trace", sorted(EVENTS_COUNT))
def test_the_whole_trace_is_played(trace: str) -> None:
    changes, faster = read_changes(trace, within_s=180.0)
    assert len(changes) == EVENTS_COUNT[trace]
    assert (changes[0].at_s, round(changes[-1].at_s, 6)) == (0.0, 180.0)
    assert faster > 100


def test_the_mix_is_read_whole_and_its_time_is_that_of_the_scale() -> None:
    troubles, counts = read_mix()
    assert (len(troubles), sum(counts)) == (17, 55365)
    assert read_mttf_s() == 1.8 * 3600
