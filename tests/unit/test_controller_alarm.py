"""Timers that wait for somebody's word fire only once it could have been heard; those of time alone fire in time."""

from __future__ import annotations

from runfold.controller.alarm import HEIR_PATIENCE_S, TICK_S, Alarm
from runfold.controller.timers import running_timers
from runfold.events.conclusions import TimerFired
from runfold.events.config import FailureConfig
from runfold.events.state import RunState
from support.runs import Run

START_S = 60.0


def placed() -> tuple[RunState, float]:
    """A run whose group has its places, and when its runners should be ready."""
    run = Run()
    run.says(run.placed())
    ((timer, due_t),) = running_timers(run.state)
    assert timer == "start"
    return run.state, due_t


def fires(
    alarm: Alarm, state: RunState, since_t: float, until_t: float, *, deaf: tuple[float, float] = (0.0, 0.0)
) -> float | None:
    """Look again and again, as the loop does, and return when a timer fires; nothing is heard while `deaf`."""
    t = since_t
    while t <= until_t:
        if alarm.due(state, t, caught_up=not deaf[0] <= t < deaf[1]):
            return t
        wake_t = alarm.wake_t(state, t)
        assert wake_t is not None
        assert t < wake_t <= t + TICK_S
        t = wake_t
    return None


def test_it_fires_at_its_deadline_while_everything_is_heard() -> None:
    state, due_t = placed()
    fired_t = fires(Alarm(), state, state.t, due_t + 1)
    assert fired_t is not None
    assert due_t <= fired_t < due_t + 0.01


def test_an_outage_does_not_count() -> None:
    state, due_t = placed()
    fired_t = fires(Alarm(), state, state.t, due_t + 1000, deaf=(state.t + 10, state.t + 610))
    assert fired_t is not None
    assert due_t + 600 <= fired_t < due_t + 601


def test_what_stood_still_for_long_has_observed_nothing() -> None:
    state, due_t = placed()
    alarm = Alarm()
    assert not alarm.due(state, state.t, caught_up=True)
    assert not alarm.due(state, due_t + 100, caught_up=True)
    fired_t = fires(alarm, state, due_t + 100, due_t + 1000)
    assert fired_t is not None
    assert fired_t > due_t + 100 + START_S - 1


def test_nothing_fires_while_there_is_something_unread() -> None:
    state, due_t = placed()
    alarm = Alarm()
    assert fires(alarm, state, state.t, due_t - TICK_S) is None
    assert not alarm.due(state, due_t + 0.1, caught_up=False)


def test_an_heir_hears_for_a_while_before_it_says_that_time_is_up() -> None:
    state, due_t = placed()
    fired_t = fires(Alarm(HEIR_PATIENCE_S), state, due_t + 30, due_t + 100)
    assert fired_t is not None
    assert due_t + 30 + HEIR_PATIENCE_S <= fired_t < due_t + 31 + HEIR_PATIENCE_S


def test_a_timer_whose_entry_was_acknowledged_after_an_outage_has_all_its_time() -> None:
    """What it waits for was asked of nobody before."""
    state, due_t = placed()
    before = Run().state
    alarm = Alarm()
    assert not alarm.due(before, before.t, caught_up=True)
    fired_t = fires(alarm, state, due_t + 30, due_t + 1000)
    assert fired_t is not None
    assert fired_t >= due_t + 30 + START_S - 1


def test_a_back_off_is_over_when_it_is_over() -> None:
    run = Run(1, failure=FailureConfig(max_failures=1, backoff_s=7.0)).running()
    run.says(run.failed(0))
    ((timer, due_t),) = running_timers(run.state)
    assert timer == "backoff"
    alarm = Alarm(HEIR_PATIENCE_S)
    assert alarm.due(run.state, due_t - 0.1, caught_up=False) == ()
    assert alarm.wake_t(run.state, due_t - 1) == due_t
    assert alarm.due(run.state, due_t, caught_up=False) == (TimerFired(timer="backoff", deadline_t=due_t),)


def test_without_a_timer_there_is_nothing_to_wake_for() -> None:
    state = Run().running().state
    alarm = Alarm()
    assert alarm.due(state, state.t, caught_up=True) == ()
    assert alarm.wake_t(state, state.t) is None
