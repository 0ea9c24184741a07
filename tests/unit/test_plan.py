"""What a runner does next: given an assignment and what runs here."""

from msgspec.structs import replace

from runfold.events.assignment import Assignment, PlaceWanted, StopOrder, Want, Work
from runfold.events.config import Timeouts
from runfold.events.transitions import RankLaid
from runfold.workers.plan import EndRank, Held, Leave, Ordered, Plan, StartRank, may_have_tasks, plan

GRACE_S = Timeouts().restart_grace_s


def assignment(want: Want, attempt: int = 1, *, ranks: int = 2, life: int = 1, source: str = "local") -> Assignment:
    return Assignment(
        run="digits-1",
        epoch=1,
        n=attempt,
        hash="",
        attempt=attempt,
        want=want,
        places=(PlaceWanted(node="other", slots=1, source="other"), PlaceWanted(node="n", slots=2, source=source)),
        layout=(
            RankLaid(rank=0, life=1, place=0, local_rank=0, node_rank=0),
            *(RankLaid(rank=i + 1, life=life, place=1, local_rank=i, node_rank=1) for i in range(ranks)),
        ),
        job=Work(entrypoint="m:f"),
        stop=StopOrder(reason="enough", grace_s=5.0, deadline_t=9.0) if want == "stop" else None,
    )


def held(rank: int, attempt: int = 1, *, asked_s: float | None = None, killed: bool = False) -> Held:
    return Held(attempt=attempt, rank=rank, life=1, slot=rank - 1, asked_s=asked_s, killed=killed)


def asked(
    told: Assignment | None,
    *here: Held,
    ordered: Ordered | None = None,
    newest: dict[int, tuple[int, int]] | None = None,
    now: float = 100.0,
) -> Plan:
    started = {one.rank: (one.attempt, one.life) for one in here} if newest is None else newest
    return plan("local", told, ordered, here, started, now)


def started(todo: Plan) -> list[tuple[int, int]]:
    return [(step.attempt, step.laid.rank) for step in todo.steps if isinstance(step, StartRank)]


def ended(todo: Plan) -> list[tuple[int, bool]]:
    return [(step.rank, step.kill) for step in todo.steps if isinstance(step, EndRank)]


def test_before_it_is_told_anything_it_waits() -> None:
    assert asked(None) == Plan()
    assert asked(assignment("place")) == Plan()


def test_it_starts_the_ranks_of_its_own_place() -> None:
    assert started(asked(assignment("train"))) == [(1, 1), (1, 2)]


def test_it_starts_nothing_twice() -> None:
    assert asked(assignment("train"), held(1), held(2)) == Plan()
    over = {1: (1, 1), 2: (1, 1)}
    assert asked(assignment("train"), held(2), newest=over) == Plan()


def test_a_newer_attempt_asks_the_old_ranks_to_end_and_waits_for_each_place() -> None:
    todo = asked(assignment("train", 2), held(1), held(2))
    assert ended(todo) == [(1, False), (2, False)]
    assert started(todo) == []
    assert todo.wake_at == 100.0 + GRACE_S


def test_each_place_starts_its_new_rank_when_its_own_old_one_is_gone() -> None:
    todo = asked(assignment("train", 2), held(2, asked_s=99.9), newest={1: (1, 1), 2: (1, 1)})
    assert started(todo) == [(2, 1)]
    assert ended(todo) == []


def test_patience_with_the_old_ranks_ends() -> None:
    todo = asked(assignment("train", 2), held(1, asked_s=100.0 - GRACE_S), held(2, asked_s=100.0))
    assert ended(todo) == [(1, True)]
    assert todo.wake_at == 100.0 + GRACE_S
    assert ended(asked(assignment("train", 2), held(1, asked_s=0.0, killed=True))) == []


def test_a_new_life_within_an_attempt_replaces_only_its_rank() -> None:
    told = assignment("train", ranks=2, life=2)
    lives = {1: (1, 1), 2: (1, 2)}
    second = Held(attempt=1, rank=2, life=2, slot=1)
    todo = asked(told, held(1), second, newest=lives)
    assert ended(todo) == [(1, False)]
    assert started(asked(told, second, newest=lives)) == [(1, 1)]


def test_told_to_stop_it_ends_its_ranks_and_then_leaves() -> None:
    todo = asked(assignment("stop"), held(1))
    assert ended(todo) == [(1, False)]
    assert todo.wake_at == 105.0
    assert asked(assignment("stop")).steps == (Leave(reason="enough"),)


def test_it_starts_nothing_once_told_to_stop_even_if_nothing_runs_yet() -> None:
    assert asked(assignment("stop"), newest={}).steps == (Leave(reason="enough"),)
    assert asked(assignment("gone"), newest={}).steps == (Leave(reason="the run is gone"),)


def test_the_supervisors_word_counts_whatever_the_assignment_says() -> None:
    word = Ordered(reason="the supervisor is gone", grace_s=0.0)
    todo = asked(assignment("train"), held(1), ordered=word)
    assert ended(todo) == [(1, True)]
    assert asked(assignment("train"), ordered=word).steps == (Leave(reason="the supervisor is gone"),)


def test_its_last_tasks_may_be_on_their_way_until_it_has_heard_the_assignment_that_stops_it() -> None:
    told = assignment("train")  # epoch 1, entry 1
    for said_by, waits in (((1, 2, 0), True), ((2, 0, 0), True), ((1, 1, 1), True), ((1, 1, 0), False), (None, False)):
        assert may_have_tasks(told, Ordered(reason="enough", grace_s=1.0, said_by=said_by)) is waits, said_by
    later = Ordered(reason="enough", grace_s=1.0, said_by=(1, 2, 0))
    assert not may_have_tasks(replace(told, n=2), later)
    assert not may_have_tasks(told, replace(later, grace_s=0.0)), "at once is at once"
    assert not may_have_tasks(None, later), "who knows of no assignment has no tasks"
    assert not may_have_tasks(told, None)


def test_without_a_place_in_the_group_it_leaves() -> None:
    todo = asked(assignment("train", source="somebody-else"))
    assert todo.steps == (Leave(reason="the group has no place here any more"),)


def test_a_shorter_patience_counts_for_those_already_asked() -> None:
    word = Ordered(reason="now", grace_s=0.5)
    todo = asked(assignment("stop"), held(1, asked_s=99.0), ordered=word)
    assert ended(todo) == [(1, True)]


def test_while_a_place_is_looked_for_the_ranks_of_before_end_and_the_runner_stays() -> None:
    todo = asked(assignment("place", 2), held(1), held(2, asked_s=98.0))
    assert ended(todo) == [(1, False), (2, True)]
    assert todo.wake_at == 100.0 + GRACE_S
    assert asked(assignment("place", 2), newest={1: (1, 1)}) == Plan()


def test_a_runner_whose_place_was_left_leaves_it_also_while_another_is_looked_for() -> None:
    told = assignment("place", 2)
    other, mine = told.places
    gone = replace(told, places=(other, replace(mine, left=7)))
    assert asked(gone).steps == (Leave(reason="the group has left this place"),)
    again = replace(told, places=(replace(mine, left=7), mine))
    assert asked(again) == Plan(), "it is the one on the place that was found instead"
