"""The state as it was, by entry, by the run's clock, and by the calendar."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from runfold.events.edges import state_name
from runfold.events.fold import fold_all
from runfold.replay.at import AtClock, AtEntry, AtTime, When, final_state, parse_when, state_at
from runfold.replay.errors import BadMoment, CannotRead
from support.histories import failing_run, finished_run, history


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("17", AtEntry(n=17)),
        (" 0 ", AtEntry(n=0)),
        ("12.5", AtClock(t=12.5)),
        ("+17", AtClock(t=17)),
        ("17s", AtClock(t=17)),
        ("+5m", AtClock(t=300)),
        ("1h30m", AtClock(t=5400)),
        ("2h0.5s", AtClock(t=7200.5)),
        ("2026-11-30T05:35:04Z", AtTime(at=datetime(2026, 11, 30, 5, 35, 4, tzinfo=UTC))),
        ("2026-11-30T06:35:04+01:00", AtTime(at=datetime(2026, 11, 30, 5, 35, 4, tzinfo=UTC))),
        ("2026-11-30 05:35:04", AtTime(at=datetime(2026, 11, 30, 5, 35, 4, tzinfo=UTC))),
    ],
)
def test_moments_are_read_as_people_write_them(text: str, when: When) -> None:
    assert parse_when(text) == when


@pytest.mark.parametrize("text", ["", "-1", "soon", "5x", "m5", "1m2h", "+", "."])
def test_what_is_no_moment_names_the_forms(text: str) -> None:
    with pytest.raises(BadMoment, match="entry's number"):
        parse_when(text)


@pytest.mark.parametrize(
    ("when", "n", "state"),
    [
        ("0", 0, "scheduling"),
        ("4", 4, "running"),
        ("+0.89s", 3, "scheduling"),
        ("0.9", 4, "running"),
        ("4.7", 11, "scheduling"),
        ("+1h", 21, "finished"),
        ("2026-11-30T05:35:04.9Z", 11, "scheduling"),
        ("2027-01-01T00:00:00Z", 21, "finished"),
        (20, 20, "shutting_down"),
    ],
)
def test_the_state_at_a_moment_is_that_of_the_newest_entry(when: str | int, n: int, state: str) -> None:
    run = history(failing_run())
    found = state_at(run, when)
    assert (found.n, state_name(found.state.phase), found.last) == (n, state, n == 21)
    assert found.state == fold_all(run.entries[: n + 1])
    assert found.hash == run.links[n].hash


@pytest.mark.parametrize("when", ["22", "2026-11-30T05:34:59Z"])
def test_a_moment_outside_the_run_is_refused(when: str) -> None:
    with pytest.raises(BadMoment):
        state_at(history(failing_run()), when)


def test_the_final_state_is_the_fold_of_all() -> None:
    run = history(finished_run())
    assert final_state(run).state == fold_all(run.entries)


def test_nothing_has_no_state() -> None:
    with pytest.raises(CannotRead):
        final_state(history([]))
