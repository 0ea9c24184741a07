"""What a supervisor does about a run: given its newest assignment and what is held for it."""

from msgspec.structs import replace

from runfold.events.assignment import Assignment, PlaceWanted, StopOrder, Want
from runfold.workers.estate import LOOK_EVERY_S
from runfold.workers.placing import (
    EARLY_END_PATIENCE_S,
    Ask,
    Forget,
    Free,
    Placing,
    RunHere,
    RunnerHere,
    SayLost,
    SayReleased,
    StopRunners,
    Withdraw,
    demand_of,
    placing,
)

ALIVE = RunnerHere(node="local")
NOW = 100.0


def assignment(want: Want, attempt: int = 1, *, places: bool = True) -> Assignment:
    return Assignment(
        run="digits-1",
        epoch=1,
        n=attempt,
        hash="",
        attempt=attempt,
        want=want,
        num_workers=2,
        resources={"CPU": 1.0},
        places=(PlaceWanted(node="local", slots=2, source="local"),) if places else (),
        stop=StopOrder(reason="enough", grace_s=5.0, deadline_t=9.0) if want == "stop" else None,
    )


def ended(code: int | None = None, signal: int | None = None, *, ago_s: float = 0.0, told: int = 0) -> RunnerHere:
    return RunnerHere(node="local", ended_s=NOW - ago_s, code=code, signal=signal, reason="why", told=told)


def todo(told: Assignment, here: RunHere) -> Placing:
    return placing(told, here, NOW)


def test_a_group_to_place_is_asked_for_once() -> None:
    told = assignment("place", places=False)
    assert todo(told, RunHere()).steps == (Ask(demand=demand_of(told)),)
    assert todo(told, RunHere(asked=1)) == Placing()
    assert todo(told, RunHere(refused=1)) == Placing()


def test_what_waits_or_was_refused_is_asked_for_anew_when_it_may_use_other_nodes() -> None:
    told = replace(assignment("place", places=False), excluded_nodes=("node-b",))
    for here in (RunHere(asked=1), RunHere(refused=1, off=("node-a", "node-b"))):
        assert todo(told, here).steps == (Ask(demand=demand_of(told)),)
    assert todo(told, RunHere(asked=1, off=("node-b",))) == Placing()


def test_a_later_attempt_is_asked_for_anew() -> None:
    told = assignment("place", 2, places=False)
    assert todo(told, RunHere(asked=1)).steps == (Ask(demand=demand_of(told)),)
    assert todo(told, RunHere(refused=1)).steps == (Ask(demand=demand_of(told)),)


def test_held_places_are_left_alone() -> None:
    here = RunHere(held=1, runners=(ALIVE,))
    assert todo(assignment("place"), here) == Placing()
    assert todo(assignment("train"), here) == Placing()
    assert todo(assignment("train", 5), here) == Placing()


def test_places_of_an_older_attempt_are_cleared_before_new_ones_are_asked_for() -> None:
    here = RunHere(held=1, runners=(ALIVE,))
    assert [type(step) for step in todo(assignment("place", 2), here).steps] == [StopRunners]
    assert todo(assignment("place", 2), RunHere(held=1, runners=(ended(0),))).steps == (Free(),)


def test_a_lost_runner_is_told_at_once_and_once() -> None:
    lost = SayLost(node="local", signal=9, reason="why")
    assert todo(assignment("train"), RunHere(held=1, runners=(ended(signal=9),))).steps == (lost,)
    assert todo(assignment("place"), RunHere(held=1, runners=(ended(signal=9),))).steps == (lost,)
    assert todo(assignment("train"), RunHere(held=1, runners=(ended(signal=9, told=1),))) == Placing()


def test_a_later_attempt_on_the_same_places_hears_of_a_lost_runner_too() -> None:
    here = RunHere(held=1, runners=(ended(signal=9, told=1),))
    assert [type(step) for step in todo(assignment("train", 2), here).steps] == [SayLost]


def test_a_superseded_supervisor_ends_its_runners_and_says_nothing() -> None:
    told = assignment("train")
    here = RunHere(held=1, superseded=True, runners=(ALIVE,))
    assert [type(step) for step in todo(told, here).steps] == [StopRunners]
    assert todo(told, RunHere(held=1, superseded=True, runners=(ended(0),))).steps == (Free(),)
    assert todo(told, RunHere(superseded=True)) == Placing()


def test_a_runner_that_ended_as_if_told_to_is_given_a_moment() -> None:
    fresh = todo(assignment("train"), RunHere(held=1, runners=(ended(0),)))
    assert fresh == Placing(wake_at=NOW + EARLY_END_PATIENCE_S)
    late = todo(assignment("train"), RunHere(held=1, runners=(ended(0, ago_s=EARLY_END_PATIENCE_S),)))
    assert late.steps == (SayLost(node="local", code=0, reason="why"),)


def test_a_runner_that_found_another_in_its_place_is_no_loss_while_that_one_may_be_found() -> None:
    fresh = replace(ended(78), place_taken=True)
    assert todo(assignment("train"), RunHere(held=1, runners=(fresh,))) == Placing(wake_at=NOW + EARLY_END_PATIENCE_S)
    late = replace(fresh, ended_s=NOW - EARLY_END_PATIENCE_S)
    assert [type(step) for step in todo(assignment("train"), RunHere(held=1, runners=(late,))).steps] == [SayLost]
    assert EARLY_END_PATIENCE_S > LOOK_EVERY_S, "it is looked for meanwhile"


def test_a_runner_of_which_nobody_saw_how_it_ended_may_have_been_told_to_and_is_given_that_moment_too() -> None:
    fresh = replace(ended(None), unseen=True)
    assert todo(assignment("train"), RunHere(held=1, runners=(fresh,))) == Placing(wake_at=NOW + EARLY_END_PATIENCE_S)
    assert todo(assignment("stop"), RunHere(held=1, runners=(fresh,))).steps == (Free(), SayReleased())
    late = replace(fresh, ended_s=NOW - EARLY_END_PATIENCE_S)
    assert todo(assignment("train"), RunHere(held=1, runners=(late,))).steps == (SayLost(node="local", reason="why"),)


def test_places_that_nobody_here_holds_are_told_as_lost_once_an_attempt() -> None:
    steps = todo(assignment("train"), RunHere()).steps
    assert [(type(step), step.node, step.orphan) for step in steps if isinstance(step, SayLost)] == [
        (SayLost, "local", True)
    ]
    assert todo(assignment("train"), RunHere(orphans=1)) == Placing()
    assert todo(assignment("place"), RunHere()).steps == steps
    assert todo(assignment("place"), RunHere(orphans=1)) == Placing()
    assert todo(assignment("train", 2), RunHere(orphans=1)).steps != ()


def test_a_stop_ends_the_runners_and_then_gives_back_and_says_so() -> None:
    told = assignment("stop")
    alive = todo(told, RunHere(held=1, runners=(ALIVE,)))
    assert alive.steps == (StopRunners(reason="enough", grace_s=5.0),)
    assert todo(told, RunHere(held=1, runners=(ended(0),))).steps == (Free(), SayReleased())
    assert todo(told, RunHere(released=1)) == Placing()


def test_a_stop_of_a_run_that_waits_takes_it_out_of_the_queue() -> None:
    assert todo(assignment("stop", places=False), RunHere(asked=1)).steps == (Withdraw(), SayReleased())


def test_a_stop_of_a_run_that_was_never_seen_here_is_answered() -> None:
    assert todo(assignment("stop"), RunHere()).steps == (SayReleased(),)


def test_a_run_that_is_gone_is_cleared_and_forgotten() -> None:
    assert [type(step) for step in todo(assignment("gone"), RunHere(held=1, runners=(ALIVE,))).steps] == [StopRunners]
    assert todo(assignment("gone"), RunHere(held=1, runners=(ended(0),))).steps == (Free(), Forget())
    assert todo(assignment("gone"), RunHere(asked=1)).steps == (Withdraw(), Forget())


# --- heirs

SURE = RunHere(settled_s=NOW)


def test_an_heir_concludes_nothing_before_the_log_names_it() -> None:
    heir = RunHere(unsure=True, settled_s=NOW)
    assert todo(assignment("place", places=False), heir) == Placing()
    assert todo(assignment("train"), heir) == Placing()


def test_a_runner_may_turn_up_for_a_while() -> None:
    waiting = RunHere(settled_s=NOW + 1)
    assert todo(assignment("train"), waiting) == Placing(wake_at=NOW + 1)
    assert todo(assignment("stop"), waiting) == Placing(wake_at=NOW + 1)
    assert todo(assignment("gone"), waiting) == Placing(wake_at=NOW + 1)
    assert [type(step) for step in todo(assignment("train"), SURE).steps] == [SayLost]
    assert todo(assignment("stop"), SURE).steps == (SayReleased(),)


def test_places_of_the_log_that_an_adopted_runner_holds_are_left_alone() -> None:
    heir = RunHere(held=1, adopted=True, runners=(ALIVE,), settled_s=NOW + 1)
    assert todo(assignment("place"), heir) == Placing()
    assert todo(assignment("train", 3), heir) == Placing()


def test_adopted_places_that_the_log_does_not_know_are_cleared_and_asked_for_again() -> None:
    told = assignment("place", places=False)
    heir = RunHere(held=1, adopted=True, runners=(ALIVE,))
    assert [type(step) for step in todo(told, heir).steps] == [StopRunners]
    assert todo(told, RunHere(held=1, adopted=True, runners=(ended(),))).steps == (Free(),)
    assert todo(told, SURE).steps == (Ask(demand=demand_of(told)),)


def test_a_place_without_a_runner_is_told_as_lost_beside_one_that_has_one() -> None:
    told = assignment("train")
    both = replace(told, places=(*told.places, PlaceWanted(node="other", slots=2, source="other")))
    heir = RunHere(held=1, adopted=True, runners=(ALIVE,))
    lost = todo(both, heir).steps
    assert [step.node for step in lost if isinstance(step, SayLost)] == ["other"]
    assert todo(both, RunHere(held=1, adopted=True, runners=(ALIVE,), orphans=1)) == Placing()


def test_an_adopted_runner_that_left_in_order_may_have_been_told_to() -> None:
    left = RunnerHere(node="local", ended_s=NOW, orderly=True)
    wait = todo(assignment("train"), RunHere(held=1, adopted=True, runners=(left,)))
    assert wait == Placing(wake_at=NOW + EARLY_END_PATIENCE_S)


def test_nothing_is_released_while_a_stray_lives() -> None:
    assert [type(step) for step in todo(assignment("stop"), RunHere(strays=True)).steps] == [StopRunners]
