"""kill -9 of a run's runner, its ranks and the supervisor, in each state that a run stays in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.commands import gone
from support.victims import Held, kill_supervisor

if TYPE_CHECKING:
    from support.commands import Commands

VICTIMS = ("runner", "supervisor", "rank")
PATIENT: dict[str, object] = {
    "timeouts.restart_grace_s": 600,
    "timeouts.stop_grace_s": 600,
    "timeouts.shutdown_deadline_s": 900,
}
QUICK: dict[str, object] = {**PATIENT, "failure.backoff_s": 0.1}


def kill(held: Held, victim: str, rank: int) -> None:
    """Kill what the test is about; what belonged to a killed runner must go with it."""
    if victim == "supervisor":
        kill_supervisor(held.runfold)
        return
    family = held.family()
    process = held.rank(rank) if victim == "rank" else held.runners()[0]
    process.kill()
    assert gone([process] if victim == "rank" else family) == []


@pytest.mark.parametrize(
    ("victim", "attempt", "spent"),
    [("runner", 2, {"worker": 1}), ("supervisor", 1, {}), ("rank", 2, {"worker": 1})],
)
def test_while_running(served: Commands, victim: str, attempt: int, spent: dict[str, int]) -> None:
    held = Held(served, f"running-{victim}", "train")
    held.reaches("running")
    kill(held, victim, 1)
    status = held.ends()
    assert (status["state"], status["return_value"], held.spent) == ("finished", attempt, spent)


@pytest.mark.parametrize(
    ("victim", "attempt", "spent"),
    [("runner", 2, {"startup": 1}), ("supervisor", 1, {}), ("rank", 2, {"worker": 1})],
)
def test_while_scheduling(served: Commands, victim: str, attempt: int, spent: dict[str, int]) -> None:
    held = Held(served, f"scheduling-{victim}", "load")
    held.rank(1)
    assert held.status["state"] == "scheduling"
    kill(held, victim, 1)
    status = held.ends()
    assert (status["state"], status["return_value"], held.spent) == ("finished", attempt, spent)


@pytest.mark.parametrize("victim", VICTIMS)
def test_while_restarting(served: Commands, victim: str) -> None:
    # A back-off has the group released first; rank 0 will not end.
    held = Held(
        served, f"restarting-{victim}", "train", "fail", "stubborn", settings={**PATIENT, "failure.backoff_s": 0.1}
    )
    held.reaches("restarting")
    family = held.family()
    kill(held, victim, 0)
    if victim == "supervisor":
        assert held.status["state"] == "restarting"
        held.rank(0).kill()
    assert gone(family) == []
    status = held.ends()
    assert (status["state"], status["return_value"], held.spent) == ("finished", 2, {"worker": 1})


@pytest.mark.parametrize("victim", VICTIMS)
def test_while_shutting_down(served: Commands, victim: str) -> None:
    held = Held(served, f"ending-{victim}", "train", "stubborn", settings=PATIENT)
    held.reaches("running")
    served.ok("abort", held.run, "--reason", "to see it end")
    held.reaches("shutting_down")
    family = held.family()
    kill(held, victim, 0)
    if victim == "supervisor":
        assert held.status["state"] == "shutting_down"
        held.rank(0).kill()
    assert gone(family) == []
    status = held.ends()
    assert (status["state"], status["attempt"], held.spent) == ("aborted", 1, {})
