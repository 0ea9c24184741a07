"""What a supervisor does about places that a group at work has given up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from runfold.events.assignment import Assignment, Mark, PlaceWanted
from runfold.events.facts import PlaceOffer
from runfold.events.transitions import RankLaid
from runfold.workers.desk import Desk, Site
from runfold.workers.mending import Dismiss, GiveUp, Mend, waits_of
from runfold.workers.placing import (
    SEPARATOR,
    Free,
    RunHere,
    RunnerHere,
    SayLost,
    SayReleased,
    demand_of,
    placing,
)
from runfold.workers.plan import Ordered, plan
from runfold.workers.pools.local import Demand, Granted, Slots, Waiting
from runfold.workers.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable

    from runfold.events.facts import AnyFact, RunnerLost
    from runfold.workers.facts import Facts
    from runfold.workers.pipe import RunnerSpec
    from runfold.workers.pools.pool import Watched

NOW = 10.0


def assignment(left: int | None = 7) -> Assignment:
    return Assignment(
        run="digits",
        epoch=1,
        n=9,
        hash="",
        attempt=1,
        want="train",
        num_workers=4,
        resources={"CPU": 1.0},
        excluded_nodes=("node-z",),
        places=(
            PlaceWanted(node="node-a", slots=2, source="node-a"),
            PlaceWanted(node="node-b", slots=2, source="node-b", left=left),
        ),
        layout=(RankLaid(rank=0, life=1, place=0, local_rank=0, node_rank=0),),
    )


ALIVE = (RunnerHere(node="node-a"), RunnerHere(node="node-b"))
GONE = (RunnerHere(node="node-a"), RunnerHere(node="node-b", ended_s=1.0, code=9, told=1))


def test_for_a_place_that_was_left_another_is_asked_for_off_the_nodes_of_the_group() -> None:
    (step,) = placing(assignment(), RunHere(held=1, runners=ALIVE), NOW).steps
    assert isinstance(step, Mend)
    assert (step.place, step.left) == (1, 7)
    assert step.demand == Demand(
        run="digits/place-1",
        attempt=1,
        num_workers=2,
        resources={"CPU": 1.0},
        strategy="STRICT_PACK",
        mends=True,
        of="digits",
        excluded=("node-a", "node-b", "node-z"),
    )
    (_, step) = placing(assignment(), RunHere(held=1, runners=GONE), NOW).steps
    assert isinstance(step, Mend)
    assert step.demand.excluded == ("node-a", "node-z"), "where nothing of the group lives any more is as good as any"


def test_it_is_asked_for_once_and_again_when_it_is_left_again() -> None:
    here = RunHere(held=1, runners=ALIVE, mended=((1, 7),))
    assert placing(assignment(), here, NOW).steps == ()
    assert [type(step) for step in placing(assignment(left=8), here, NOW).steps] == [Mend]


def test_while_it_waits_it_is_asked_for_anew_when_other_nodes_may_be_used() -> None:
    """A node whose notice is taken back: the group waited for nodes to come back, and this is one."""
    here = RunHere(held=1, runners=GONE[:1], mended=((1, 7),), mends_off={"digits/place-1": ("node-a", "node-z")})
    assert placing(assignment(), here, NOW).steps == ()
    (step,) = placing(replace(assignment(), excluded_nodes=()), here, NOW).steps
    assert isinstance(step, Mend)
    assert step.demand.excluded == ("node-a",)
    placed = replace(here, mends_off={})
    assert placing(replace(assignment(), excluded_nodes=()), placed, NOW).steps == (), "it has its place"


def test_what_a_runner_held_that_is_gone_is_given_back() -> None:
    here = RunHere(held=1, runners=GONE, mended=((1, 7),))
    assert placing(assignment(), here, NOW).steps == (GiveUp(node="node-b"),)


def test_a_place_that_was_left_is_no_orphan() -> None:
    here = RunHere(held=1, runners=ALIVE[:1], mended=((1, 7),))
    assert placing(assignment(), here, NOW).steps == ()


def test_a_group_that_has_left_nothing_is_let_be() -> None:
    assert placing(assignment(left=None), RunHere(held=1, runners=ALIVE), NOW).steps == ()


def test_one_selector_for_all_holds_for_another_place_too() -> None:
    everywhere = replace(assignment(), label_selector={"zone": "a"})
    (step,) = placing(everywhere, RunHere(held=1, runners=ALIVE), NOW).steps
    assert isinstance(step, Mend)
    assert step.demand.selectors == ({"zone": "a"},)


def test_the_runner_of_a_place_that_was_left_leaves_it() -> None:
    todo = plan("node-b", assignment(), None, [], {}, NOW)
    assert (
        todo.steps
        == plan("node-b", None, Ordered(reason="the group has no place here any more", grace_s=1.0), [], {}, 0).steps
    )


def test_slots_of_one_node_are_given_back_alone() -> None:
    slots = Slots({"node-a": {"CPU": 1.0}, "node-b": {"CPU": 1.0}})
    slots.ask(Demand(run="a", attempt=1, num_workers=2, resources={"CPU": 1.0}))
    slots.grant()
    slots.part("a", "node-b")
    slots.part("unknown", "node-b")
    assert slots.free == 1
    slots.ask(Demand(run="b", attempt=1, num_workers=1, resources={"CPU": 1.0}))
    assert slots.grant()[0].places == (PlaceOffer(node="node-b", slots=1),)
    slots.release("a")
    assert slots.free == 1


def test_who_holds_places_already_comes_before_who_waits_for_them() -> None:
    slots = Slots({"node-a": {"CPU": 1.0}, "node-b": {"CPU": 1.0}})
    slots.ask(Demand(run="first", attempt=1, num_workers=2, resources={"CPU": 1.0}, accepted_at="1"))
    slots.grant()
    slots.part("first", "node-b")
    slots.ask(Demand(run="waits", attempt=1, num_workers=2, resources={"CPU": 1.0}, accepted_at="0", priority=9))
    slots.ask(Demand(run="first/place-1", attempt=1, num_workers=1, resources={"CPU": 1.0}, mends=True))
    assert [granted.demand.run for granted in slots.grant()] == ["first/place-1"]


# --- in the book of the pool


def mended() -> Slots:
    """A run of two places, of which the second was left; another stands for it on node-c."""
    slots = Slots({node: {"CPU": 2.0} for node in ("node-a", "node-b", "node-c")})
    whole = Demand(run="digits", attempt=1, num_workers=4, resources={"CPU": 1.0}, strategy="SPREAD")
    slots.ask(replace(whole, excluded=("node-c",)))
    slots.grant()
    slots.part("digits", "node-b")
    (step,) = placing(assignment(), RunHere(held=1, runners=GONE, mended=()), NOW).steps[1:]
    assert isinstance(step, Mend)
    slots.ask(replace(step.demand, excluded=("node-a", "node-b")))
    assert slots.grant()[0].places == (PlaceOffer(node="node-c", slots=2),)
    return slots


def test_another_place_is_the_runs_own_as_its_first_ones_are() -> None:
    slots = mended()
    whole = Demand(run="digits", attempt=1, num_workers=6, resources={"CPU": 1.0})
    assert (slots.room(whole).room, slots.room(whole).fits) == ({"node-a": 2, "node-b": 2, "node-c": 2}, 6)
    assert slots.room(replace(whole, run="other")).fits == 2
    slots.release("digits")
    assert slots.free == 6


def test_another_place_beyond_what_its_node_has_by_now_is_left_by_its_run() -> None:
    slots = mended()
    slots.resize("node-c", 0)
    assert slots.overdrawn() == [("digits", "node-c")]
    slots.part("digits", "node-c")
    assert (slots.overdrawn(), slots.free) == ([], 2)


def test_a_run_that_waits_for_another_place_has_what_is_free_all_the_same() -> None:
    slots = mended()
    slots.part("digits", "node-c")
    slots.resize("node-c", 1)
    slots.ask(Demand(run="other", attempt=1, num_workers=2, resources={"CPU": 1.0}))
    slots.grant()
    waits = Demand(run="digits/place-1", attempt=1, num_workers=2, resources={"CPU": 1.0}, strategy="STRICT_PACK")
    slots.ask(replace(waits, mends=True, of="digits", excluded=("node-a",)))
    assert slots.grant() == []
    assert slots.room(Demand(run="digits", attempt=1, num_workers=6, resources={"CPU": 1.0})).fits == 3
    assert slots.room(Demand(run="third", attempt=1, num_workers=6, resources={"CPU": 1.0})).fits == 0


def test_a_run_that_waits_for_several_places_waits_for_all_of_them() -> None:
    waits = {
        "digits/place-1": Waiting(ahead=0, free=1, needed=2),
        "digits/place-2": Waiting(ahead=1, free=1, needed=1),
        "other": Waiting(ahead=2, free=4, needed=8),
        "other/validation-1": Waiting(ahead=3, free=4, needed=1),
    }
    assert waits_of(waits, SEPARATOR) == {
        "digits": Waiting(ahead=0, free=1, needed=3),
        "other": Waiting(ahead=2, free=4, needed=8),
    }


# --- a group that waits for its place


def waiting(*left: int, attempt: int = 2) -> Assignment:
    """A group of three places that has left some of them, and keeps the others."""
    places = tuple(
        PlaceWanted(node=f"node-{name}", slots=2, source=f"node-{name}", left=7 if i in left else None)
        for i, name in enumerate("abc")
    )
    told = replace(assignment(), want="place", kept=True, attempt=attempt, num_workers=6, places=places, layout=())
    return replace(told, excluded_nodes=())


ON_ALL = (*GONE, RunnerHere(node="node-c"))


def test_a_group_that_waits_has_its_turn_by_priority_and_says_what_it_is_whole() -> None:
    gave_up, step = placing(waiting(1), RunHere(held=1, runners=ON_ALL), NOW).steps
    assert gave_up == GiveUp(node="node-b")
    assert isinstance(step, Mend)
    assert (step.demand.mends, step.demand.whole) == (False, demand_of(waiting(1)))
    assert step.demand.excluded == ("node-a", "node-c")
    behind = replace(step.demand, run="digits/place-1", priority=0)
    assert Demand(run="urgent", attempt=1, num_workers=1, resources={}, priority=1).order < behind.order


def test_what_has_ended_on_a_place_that_was_left_is_no_loss() -> None:
    """Nor is one that is gone from where nobody knows of a place; one on a place that is kept is."""
    gone = tuple(RunnerHere(node=f"node-{name}", ended_s=1.0, signal=9, told=1) for name in "bcx")
    here = RunHere(held=1, runners=(RunnerHere(node="node-a"), *gone), mended=((1, 7),))
    steps = placing(waiting(1), here, NOW).steps
    assert [step for step in steps if isinstance(step, SayLost)] == [SayLost(node="node-c", signal=9)]
    assert GiveUp(node="node-x") in steps


def test_no_other_place_is_asked_for_where_a_runner_of_the_group_lives() -> None:
    """One that was left and ends, and one that was found for another place this instant."""
    runners = (*ALIVE, RunnerHere(node="node-d"))
    here = RunHere(held=1, runners=runners, granted=("node-d",), mended=((1, 7),))
    (step,) = (step for step in placing(waiting(1, 2), here, NOW).steps if isinstance(step, Mend) and step.place == 2)
    assert step.demand.excluded == ("node-a", "node-b", "node-d")


def test_a_runner_on_a_place_of_which_the_log_never_heard_is_dismissed() -> None:
    here = RunHere(held=1, runners=(*ON_ALL, RunnerHere(node="node-x")), mended=((1, 7),))
    assert Dismiss(node="node-x") in placing(waiting(1), here, NOW).steps
    granted = replace(here, granted=("node-x",))
    assert Dismiss(node="node-x") not in placing(waiting(1), granted, NOW).steps, "the log hears of it soon"


def test_a_search_goes_on_in_the_attempt_after() -> None:
    here = RunHere(held=1, runners=ON_ALL[:1], mended=((1, 7),), mends_off={"digits/place-1": ("node-a", "node-c")})
    lost = replace(here, runners=(ON_ALL[0], ON_ALL[2]))
    assert placing(waiting(1, attempt=3), lost, NOW).steps == ()


def test_who_only_asked_for_places_takes_that_back_when_the_run_is_over() -> None:
    stop = replace(waiting(1), want="stop")
    assert placing(stop, RunHere(mended=((1, 7),), runners=()), NOW).steps == (Free(), SayReleased())


def test_a_place_that_its_run_does_not_take_is_free_again_and_nothing_else_of_what_the_run_holds() -> None:
    """The supervisor is told that a runner of the group lives where another place was found."""
    slots = mended()
    before = slots.free
    (step,) = placing(assignment(), RunHere(held=1, runners=GONE, mended=()), NOW).steps[1:]
    assert isinstance(step, Mend)
    slots.ask(replace(step.demand, excluded=("node-a", "node-c")))
    (other,) = slots.grant()
    assert (other.places, slots.free) == ((PlaceOffer(node="node-b", slots=2),), before - 2)
    desk = SimpleNamespace(mend=lambda *_: False)
    one = SimpleNamespace(
        _slots=SimpleNamespace(grant=lambda: [other], given_up=list, waiting=slots.waiting, take_back=slots.take_back),
        _desks={"digits": desk},
        _wake=asyncio.Event(),
    )
    Supervisor._grant(cast("Supervisor", one))
    assert (slots.free, one._wake.is_set()) == (before, True)
    slots.take_back(other)
    assert slots.free == before, "given back once, however often that is said"
    slots.release("digits")
    slots.take_back(other)
    assert slots.free == 6


def test_places_of_one_run_are_on_nodes_of_their_own() -> None:
    """Two that are found at once too: a runner speaks under the name of its node."""
    slots = Slots({"node-a": {"CPU": 1.0}, "node-b": {"CPU": 4.0}})
    whole = Demand(run="digits", attempt=1, num_workers=1, resources={"CPU": 1.0}, excluded=("node-b",))
    slots.ask(whole)
    slots.grant()
    for number in (1, 2):
        wish = replace(whole, run=f"digits/place-{number}", of="digits", excluded=("node-a",), whole=whole)
        slots.ask(wish)
    assert [one.demand.run for one in slots.grant()] == ["digits/place-1"]


# --- a place on the node of another that was left


class Runner:
    """A runner that lives until it is told to stop."""

    def __init__(self, node: str) -> None:
        self.node, self.alive, self.told, self.secret = node, True, 0, b"s"

    def stop(self, reason: str, grace_s: float, said_by: Mark | None = None) -> None:
        self.alive = False


def swapped() -> Assignment:
    """Two places were left; for the first another was found on the node of the second, which is still looked for."""
    return replace(
        waiting(1, attempt=2),
        places=(
            PlaceWanted(node="node-b", slots=2, source="node-b"),
            PlaceWanted(node="node-b", slots=2, source="node-b", left=7),
        ),
    )


def at_a_desk() -> tuple[Desk, list[Runner], list[AnyFact]]:
    """A desk where the place was just found, its runners and what it says."""
    said: list[AnyFact] = []
    runners: list[Runner] = []

    def start(spec: RunnerSpec, _: Callable[[], None]) -> Watched:
        runners.append(Runner(spec.node))
        return cast("Watched", runners[-1])

    facts = SimpleNamespace(source="pool-local", boot="b", say=said.append, superseded=False)
    site = Site(url="", namespace="", pool="local", base_dir="")
    desk = Desk(replace(waiting(1), job=None), cast("Facts", facts), site, start, lambda: None)
    demand = replace(demand_of(waiting(1)), run="digits/place-0")
    assert desk.mend(0, Granted(demand=demand, places=(PlaceOffer(node="node-b", slots=2),)))
    return desk, runners, said


def again(place: int, left: int) -> Mend:
    return Mend(place=place, left=left, demand=replace(demand_of(swapped()), run=f"digits/place-{place}"))


def test_what_is_found_on_the_node_of_a_place_that_was_left_is_not_taken_for_that() -> None:
    """Asking anew for the place that was left ends no runner of the other, nor are its slots given back."""
    desk, (runner,), _ = at_a_desk()
    desk.mends(again(1, 7))
    assert runner.alive, "the log has not heard of it yet"
    desk.assignment = swapped()
    desk.mends(again(1, 7))
    assert runner.alive
    here = RunHere(held=1, runners=(RunnerHere(node="node-b", ended_s=1.0, signal=9, told=2),), mended=((1, 7),))
    assert not [step for step in placing(swapped(), here, NOW).steps if isinstance(step, GiveUp)]
    places = (replace(swapped().places[0], left=9), swapped().places[1])
    desk.assignment = replace(swapped(), places=places)
    desk.mends(again(0, 9))
    assert not runner.alive, "now the group has left that one too"


def test_a_runner_that_is_started_where_places_were_taken_away_ends_for_reasons_of_its_own() -> None:
    desk, _, said = at_a_desk()
    desk.take_away("node-b", "the capacity was set to 0")
    desk.give_up("node-b")
    desk.lost(SayLost(node="node-b", signal=9, reason="killed"))
    lost = cast("RunnerLost", said[-1])
    assert (lost.reason, lost.taken) == ("killed", False)
