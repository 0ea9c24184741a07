"""kill -9 of a run's runner, its ranks, and the processes of the service, in each state that a run stays in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runfold.events.transitions import FailureDecided
from support.processes import gone
from support.victims import Held, kill_role, supervisor

if TYPE_CHECKING:
    from support.commands import Commands

SERVICE = ("supervisor", "controller", "broker")
VICTIMS = ("runner", "rank", *SERVICE)
UNNOTICED: list[tuple[str, int, dict[str, int]]] = [(role, 1, {}) for role in SERVICE]
"""What the death of a process of the service costs a run: nothing."""
PATIENT: dict[str, object] = {
    "timeouts.restart_grace_s": 600,
    "timeouts.stop_grace_s": 600,
    "timeouts.shutdown_deadline_s": 900,
}
QUICK: dict[str, object] = {**PATIENT, "failure.backoff_s": 0.1}


def kill(held: Held, victim: str, rank: int) -> None:
    """Kill what the test is about; what belonged to a killed runner must go with it."""
    if victim in SERVICE:
        kill_role(held.runfold, victim)
        return
    family = held.family()
    process = held.rank(rank) if victim == "rank" else held.runners()[0]
    process.kill()
    assert gone([process] if victim == "rank" else family) == []


@pytest.mark.parametrize(
    ("victim", "attempt", "spent"),
    [("runner", 2, {"worker": 1}), ("rank", 2, {"worker": 1}), *UNNOTICED],
)
def test_while_running(served: Commands, victim: str, attempt: int, spent: dict[str, int]) -> None:
    held = Held(served, f"running-{victim}", "train")
    held.reaches("running")
    kill(held, victim, 1)
    status = held.ends()
    assert (status["state"], status["return_value"], held.spent) == ("finished", attempt, spent)


@pytest.mark.parametrize(
    ("victim", "attempt", "spent"),
    [("runner", 2, {"startup": 1}), ("rank", 2, {"worker": 1}), *UNNOTICED],
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
    if victim in SERVICE:
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
    if victim in SERVICE:
        assert held.status["state"] == "shutting_down"
        held.rank(0).kill()
    assert gone(family) == []
    status = held.ends()
    assert (status["state"], status["attempt"], held.spent) == ("aborted", 1, {})


SHORT: dict[str, object] = {
    "timeouts.unreachable_after_s": 1.5,
    "timeouts.lost_after_s": 10,
    "timeouts.lost_alone_after_s": 15,
    "timeouts.restart_grace_s": 0.5,
}


def silent(held: Held) -> object:
    """The sources that are shown as silent."""
    timeouts = held.status["timeouts"]
    assert isinstance(timeouts, dict)
    return list(timeouts.get("unreachable_after_s", {}).get("counted_s", {}))


def test_a_runner_that_is_stopped_is_shown_and_when_it_goes_on_nothing_has_happened(served: Commands) -> None:
    held = Held(served, "paused", "train", settings={**SHORT, "timeouts.lost_alone_after_s": 600})
    held.reaches("running")
    (runner,) = held.runners()
    runner.suspend()
    held.waits_until(lambda: silent(held) == ["local"])
    runner.resume()
    held.waits_until(lambda: not silent(held))
    status = held.ends()
    assert (status["state"], status["attempt"], held.spent) == ("finished", 1, {})


def test_a_runner_that_stays_stopped_is_lost_in_the_end_with_all_that_it_held(served: Commands) -> None:
    held = Held(served, "stopped", "train", settings=SHORT)
    held.reaches("running")
    family = held.family()
    held.runners()[0].suspend()
    held.waits_until(lambda: held.status["attempt"] != 1)
    assert gone(family) == []
    status = held.ends()
    assert (status["state"], status["attempt"], held.spent) == ("finished", 2, {"worker": 1})
    lost = [said.failure for entry in held.entries() for said in entry.transitions if isinstance(said, FailureDecided)]
    assert [failure.kind for failure in lost] == ["node"]


def test_a_supervisor_that_is_stopped_loses_nobody(served: Commands) -> None:
    held = Held(served, "unsupervised", "train", settings=SHORT)
    held.reaches("running")
    process = supervisor(served)
    process.suspend()
    held.waits_until(lambda: silent(held) == ["pool-local"])
    process.resume()
    held.waits_until(lambda: not silent(held))
    assert held.ends()["attempt"] == 1


def test_a_sigterm_to_a_runner_is_a_notice_that_its_node_goes(served: Commands) -> None:
    held = Held(served, "noticed", "train")
    held.reaches("running")
    held.runners()[0].terminate()
    held.reaches("preempting")
    assert "SIGTERM to the runner on local" in str(held.status["reason"])
    status = held.ends()
    assert (status["state"], status["attempt"], held.spent) == ("finished", 1, {})
