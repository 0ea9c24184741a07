"""Goodput: each part of a run's clock goes where the field's names say, and all of it goes somewhere."""

from __future__ import annotations

import msgspec
import pytest

from runfold.events.conclusions import ProgressStopped
from runfold.events.config import CheckpointConfig, FailureConfig
from runfold.events.requests import AbortRun
from runfold.replay.answers import render_goodput
from runfold.replay.at import moment_of
from runfold.replay.errors import BadMoment, CannotRead
from runfold.replay.goodput import Goodput, goodput
from runfold.replay.uses import Stretch, Window, carved, micros, painted
from support.elastic import elastic
from support.histories import errored_run, failing_run, finished_run, history
from support.runs import Run


def of(run: Run) -> Goodput:
    found = goodput(history(run.bytes))
    assert sum(map(micros, found.uses_s.values())) == micros(run.t)
    return found


def parts(found: Goodput) -> dict[str, float]:
    """The parts that are not nothing."""
    return {name: value for name, value in found.uses_s.items() if value}


def training(workers: int = 2, **options: FailureConfig | CheckpointConfig) -> Run:
    """A run in user code, whose clock says so."""
    return Run(workers, **options).running()  # type: ignore[arg-type]  # each option has its own type


def committed(run: Run, index: int, after_s: float) -> Run:
    """A checkpoint of all ranks after so much training, committed 0.1 s later."""
    run.says(*(run.shard(rank.rank, index) for rank in run.group.ranks), after_s=after_s)
    return run.says(run.sealed(f"checkpoint_{run.state.checkpoints.base + index:06d}_{run.state.attempt}"))


def test_what_comes_before_user_code_is_initialisation_and_after_it_teardown() -> None:
    run = training()
    begun = run.t
    run.says(run.returned(0), run.returned(1), after_s=10.0)
    run.says(run.released(), after_s=0.5)
    assert parts(of(run)) == {"productive": 10.0, "initialisation": begun, "teardown": 0.5}


def test_a_run_that_goes_on_is_productive_so_far() -> None:
    run = training()
    run.says(run.reported(0, 0), after_s=7.0)
    found = of(run)
    assert (found.uses_s["productive"], found.ended) == (7.0, False)


def test_waiting_for_room_is_waiting_for_capacity() -> None:
    run = Run(2)
    run.says(run.queued(ahead=1), after_s=1.0)
    run.says(run.queued(ahead=0), after_s=5.0)
    run.says(run.placed(), after_s=3.0)
    assert parts(of(run)) == {"initialisation": pytest.approx(run.t - 8.0), "waiting_for_capacity": 8.0}


def test_without_a_checkpoint_a_failed_attempt_was_for_nothing() -> None:
    run = training(failure=FailureConfig(max_failures=1))
    begun = run.t
    run.says(run.reported(0, 0), after_s=20.0)
    run.says(run.failed(1), after_s=0.0)
    run.says(run.started(0), run.started(1), after_s=2.0)
    run.says(run.returned(0), run.returned(1), after_s=5.0)
    assert parts(of(run)) == {"productive": 5.0, "initialisation": begun, "wasted_progress": 20.0, "recovery": 2.0}


def test_progress_is_kept_up_to_the_report_whose_checkpoint_was_committed() -> None:
    run = training(failure=FailureConfig(max_failures=1))
    committed(run, 0, after_s=10.0)
    run.says(run.reported(0, 1), after_s=3.9)
    run.says(run.failed(1), after_s=0.0)
    found = of(run)
    assert found.uses_s["productive"] == pytest.approx(10.0)
    assert found.uses_s["wasted_progress"] == pytest.approx(4.0)


def test_a_failure_costs_from_when_it_happened_not_from_when_it_was_heard_of() -> None:
    run = training(failure=FailureConfig(max_failures=1))
    run.waits(10.0)
    run.says(run.failed(1, ago_s=4.0), after_s=0.0)
    found = of(run)
    # The runner's clock is known as well as its first words were quick.
    assert found.uses_s["wasted_progress"] == pytest.approx(6.0, abs=0.2)
    assert found.uses_s["recovery"] == pytest.approx(4.0, abs=0.2)


def test_an_aborted_run_loses_what_was_not_saved() -> None:
    run = training()
    committed(run, 0, after_s=10.0)
    run.says(AbortRun(id="a", reason="enough"), after_s=5.0)
    run.says(run.released(), after_s=1.0)
    found = parts(of(run))
    assert found["wasted_progress"] == pytest.approx(5.1)
    assert found["teardown"] == pytest.approx(1.0)


def test_a_preempted_group_costs_preemption_until_the_next_is_in_user_code() -> None:
    run = training(failure=FailureConfig(max_preemption_failures=1))
    run.says(run.noticed("local", within_s=5.0))
    assert run.name == "preempting"
    run.waits(5.0)
    run.says(run.released(), after_s=1.0)
    run.says(run.placed(), after_s=2.0)
    found = of(run)
    assert found.uses_s["preemption"] > 2.9
    assert found.uses_s["recovery"] == 0.0


def elastic_preempted() -> Run:
    """An elastic run whose only node was taken back, and whose group is gone."""
    run = elastic(fits=2, nodes=("node-a",)).says()
    run.says(run.room(node_a=2)).running()
    run.says(run.noticed("node-a", within_s=5.0)).waits(5.0)
    assert run.name == "restarting"
    return run


def test_an_elastic_run_that_waits_for_room_waits_for_capacity_like_any_other() -> None:
    run = elastic_preempted()
    run.says(run.released(), after_s=1.0)
    assert run.name == "restarting"
    run.says(run.room(node_a=2), after_s=8.0)
    assert run.name == "restarting", "the node has not gone and come back"
    run.says(run.room(node_a=2, node_b=2), after_s=20.0)
    assert run.name == "scheduling"
    found = of(run)
    assert found.uses_s["waiting_for_capacity"] == pytest.approx(28.0)
    assert found.uses_s["preemption"] == pytest.approx(1.0)


def test_a_run_that_ends_while_there_is_no_room_is_torn_down() -> None:
    run = elastic_preempted()
    run.says(AbortRun(id="a", reason="enough"), after_s=1.0)
    run.says(run.room(node_a=0), after_s=2.0)
    run.says(run.released(), after_s=3.0)
    found = of(run)
    assert found.uses_s["waiting_for_capacity"] == 0.0
    assert found.uses_s["teardown"] == pytest.approx(5.0)


def test_time_without_progress_is_a_hang_from_when_it_began() -> None:
    run = training(failure=FailureConfig(max_hangs=1))
    run.says(run.reported(0, 0), after_s=10.0)
    run.says(ProgressStopped(ranks=(0, 1), quiet_s=60.0, limit_s=None), after_s=60.0)
    run.says(run.reported(0, 1), after_s=30.0)
    run.says(ProgressStopped(ranks=(), quiet_s=0.0, limit_s=None), after_s=0.0)
    run.says(run.returned(0), run.returned(1), after_s=5.0)
    found = of(run)
    assert (found.uses_s["hang"], found.uses_s["productive"]) == (90.0, 15.0)


def test_what_ranks_waited_for_is_taken_out_of_what_was_productive() -> None:
    run = training()
    slow = msgspec.structs.replace(run.reported(1, 0), spent_s={"data": 2.0, "checkpoint_restore": 1.0, "else": 9.0})
    quick = msgspec.structs.replace(run.reported(0, 0), spent_s={"data": 0.5})
    run.says(slow, quick, after_s=0.0)
    later = msgspec.structs.replace(run.reported(1, 1), spent_s={"checkpoint_save": 1.5})
    run.waits(10.0)
    run.says(msgspec.structs.replace(later, clock_s=run.clock_s), after_s=0.0)
    run.says(run.returned(0), run.returned(1), after_s=5.0)
    found = parts(of(run))
    # The first report comes at once: there was no time yet that could have been spent.
    assert found["checkpoint_save"] == 1.5
    assert found["productive"] == pytest.approx(13.5)


def test_what_was_waited_for_is_never_more_than_the_time_there_was() -> None:
    run = training()
    greedy = msgspec.structs.replace(run.reported(0, 0), spent_s={"data": 100.0, "checkpoint_save": 50.0})
    run.waits(4.0)
    run.says(msgspec.structs.replace(greedy, clock_s=run.clock_s), after_s=0.0)
    assert of(run).uses_s["data"] == pytest.approx(4.0)


def test_attempts_have_their_own_account() -> None:
    found = goodput(history(failing_run()))
    assert [(one.attempt, one.from_t, one.until_t) for one in found.attempts] == [(1, 0.0, 4.5), (2, 4.5, 9.2)]
    assert found.attempts[0].ended == "user: RuntimeError: boom"
    assert found.attempts[1].ended == "every rank returned"
    assert found.goodput == pytest.approx(4.0 / 9.2)
    assert list(found.badput_s) == sorted(found.badput_s, key=lambda name: -found.badput_s[name])


def test_a_part_of_the_clock_is_a_part_of_the_account() -> None:
    run = history(failing_run())
    found = goodput(run, "+4", "12")
    assert (found.since_t, found.until_t, found.clock_s) == (4.0, 5.0, 1.0)
    assert {name: value for name, value in found.uses_s.items() if value} == {"wasted_progress": 0.5, "recovery": 0.5}
    assert goodput(run, "+20", "+30").goodput is None
    with pytest.raises(BadMoment, match="before it begins"):
        goodput(run, "+9", "+4")
    with pytest.raises(BadMoment):
        goodput(run, "soon")


def test_times_of_the_calendar_are_moments_of_the_clock() -> None:
    run = history(finished_run())
    assert moment_of(run, "2026-11-30T05:35:01.200Z") == pytest.approx(1.2)
    assert moment_of(run, "2026-11-30T05:00:00Z") == 0.0
    assert moment_of(run, "4") == run.entries[4].t


def test_nothing_has_no_goodput() -> None:
    with pytest.raises(CannotRead):
        goodput(history([]))
    assert goodput(history(finished_run()[:1])).goodput is None


def test_lines_show_each_part_with_its_share() -> None:
    text = "\n".join(render_goodput(goodput(history(errored_run()))))
    assert "goodput 0.0%  (0.000 to 3.000 s of its clock)" in text
    for part in ("initialisation", "wasted progress", "recovery", "attempt 2, 1.500-3.000 s"):
        assert part in text


def test_stretches_are_painted_and_carved_without_a_hole() -> None:
    whole = Stretch(start=0, end=100, use="productive", attempt=1)
    assert [(one.start, one.end, one.use) for one in painted([whole], 40, 60, "hang")] == [
        (0, 40, "productive"),
        (40, 60, "hang"),
        (60, 100, "productive"),
    ]
    windows = [Window(start=-10, end=20, spent=(("data", 15),)), Window(start=90, end=120, spent=(("data", 50),))]
    assert [(one.start, one.end, one.use) for one in carved(whole, windows)] == [
        (0, 15, "data"),
        (15, 90, "productive"),
        (90, 100, "data"),
    ]


# --- replica groups


def groups() -> Run:
    failure = FailureConfig(max_failures=3)
    return Run(4, nodes=("node-a", "node-b"), failure=failure, replica_size=2).running()


def test_while_others_train_a_group_that_is_replaced_takes_nothing_of_what_is_productive() -> None:
    run = groups()
    begun = run.t
    run.says(run.runner_lost("node-b"), after_s=4.0).says(run.queued(free=0), after_s=1.0)
    run.says(run.reported(0, 0), after_s=5.0)
    assert parts(of(run)) == {"productive": 10.0, "initialisation": begun}


def test_while_the_others_have_returned_nobody_trains_until_the_group_is_back() -> None:
    run = groups()
    begun = run.t
    run.says(run.runner_lost("node-b"), after_s=4.0)
    run.says(run.returned(0), run.returned(1), after_s=2.0)
    run.says(run.queued(free=0), after_s=1.0)
    run.join("node-c").says(run.place_again(1, "node-c", 2), after_s=8.0)
    run.says(run.ready("node-c"), after_s=2.0).says(run.started(2), run.started(3), after_s=1.0)
    run.says(run.returned(2), run.returned(3), after_s=5.0)
    assert parts(of(run)) == {
        "productive": 11.0,
        "recovery": 4.0,
        "waiting_for_capacity": pytest.approx(8.1),
        "initialisation": begun,
    }


def test_a_group_that_waits_alone_for_nodes_that_were_taken_back_costs_preemption() -> None:
    run = groups()
    begun = run.t
    run.says(run.returned(0), run.returned(1), after_s=3.0)
    run.says(run.noticed("node-b", within_s=2.0), after_s=1.0).waits(2.0)
    run.says(run.noticed("node-x"), after_s=6.0)
    assert parts(of(run)) == {"productive": 6.0, "preemption": 6.0, "initialisation": begun}
