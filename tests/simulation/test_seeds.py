"""Seeded simulations: whatever the weather, the invariants hold, and the same seed writes the same log."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import msgspec
import pytest

from runfold.events.assignment import Assignment
from runfold.events.facts import RankReturned, Reported
from runfold.events.transitions import AttemptStarted, ControllerChanged, FailureDecided, RunAccepted, StateChanged
from runfold.replay.audit import audit
from runfold.replay.verify import verify
from support.hosting import heads_acknowledged
from support.simulation import Outcome, simulate

SEEDS_COUNT = 200
TWICE_EVERY = 20
"""One seed in so many is played twice."""


def check(seed: int) -> Outcome:
    """Play a seed and hold every invariant against it."""
    outcome = simulate(seed)
    once(outcome)
    heads_acknowledged(outcome.run.happened)
    shown_in_order(outcome)
    reports_folded_once(outcome)
    history = outcome.history
    assert not history.strays
    assert not history.damages
    assert audit(history).findings == ()
    report = verify(history)
    assert not report.divergences, report
    assert outcome.status.terminal
    assert outcome.status.quarantined is None
    assert outcome.world.jobs.refusals == {}
    return outcome


def once(outcome: Outcome) -> None:
    """What must happen once happened once; no attempt spent two units; terminal is last."""
    transitions = [item for entry in outcome.history.entries for item in entry.transitions]
    assert Counter(type(item) for item in transitions)[RunAccepted] == 1
    attempts = [item.attempt for item in transitions if isinstance(item, AttemptStarted)]
    assert attempts == list(range(1, len(attempts) + 1))
    spent = Counter(item.failure.attempt for item in transitions if isinstance(item, FailureDecided) and item.budget)
    assert all(count == 1 for count in spent.values())
    epochs = [item.epoch for item in transitions if isinstance(item, ControllerChanged)]
    assert epochs == list(range(1, len(epochs) + 1))
    ends = [k for k, item in enumerate(transitions) if isinstance(item, StateChanged) and item.to_state in ENDS]
    assert ends == [len(transitions) - 1]


ENDS = ("finished", "errored", "aborted")


def shown_in_order(outcome: Outcome) -> None:
    """Assignments only ever get newer; the last says gone."""
    shown = [msgspec.json.decode(data, type=Assignment) for data in outcome.run.happened.of("assignment")]
    assert all(after.newer_than(before) for before, after in pairwise(shown))
    assert shown[-1].want == "gone"


def reports_folded_once(outcome: Outcome) -> None:
    """Each rank's reports are in the log once, in order, without a hole; all of them, where it returned in time."""
    seen: dict[tuple[int, int], list[int]] = {}
    returned: dict[tuple[int, int], int] = {}
    for entry in outcome.history.entries:
        for item in entry.inputs:
            if isinstance(item, Reported):
                seen.setdefault((item.attempt, item.rank), []).append(item.index)
            elif isinstance(item, RankReturned):
                returned[item.attempt, item.rank] = item.reports
    for who, indexes in seen.items():
        assert indexes == list(range(len(indexes)))
        assert len(indexes) <= outcome.reported[who]
    for who, count in returned.items():
        assert len(seen.get(who, [])) == count


@pytest.mark.parametrize("seed", range(SEEDS_COUNT))
def test_seed(seed: int) -> None:
    try:
        outcome = check(seed)
        if seed % TWICE_EVERY == 0:
            assert simulate(seed).log == outcome.log
    except BaseException:
        print(f"\nagain: PYTHONSAFEPATH=1 .venv/bin/pytest 'tests/simulation/test_seeds.py::test_seed[{seed}]'")
        raise
