"""Deciding again: the same decider must agree; another one's differences are listed."""

from __future__ import annotations

import msgspec

from runfold.events.conclusions import Decider
from runfold.events.entry import decode_entry
from runfold.events.transitions import FailureDecided
from runfold.replay.history import History
from runfold.replay.verify import present_decider, verify
from support.histories import chained, errored_run, failing_run, finished_run, history


def altered() -> History:
    """A run in whose log the controller gave up where the policies say: try again."""
    steps = []
    for line in failing_run()[:12]:
        entry = decode_entry(line)
        transitions = list(entry.transitions)
        if entry.n == 11:
            place = next(k for k, item in enumerate(transitions) if isinstance(item, FailureDecided))
            transitions[place] = msgspec.structs.replace(transitions[place], reason="because I say so")
        steps.append((entry.t, entry.inputs, transitions))
    return history(chained(steps))


def test_runs_of_the_same_decider_agree() -> None:
    for lines in (failing_run(), finished_run(), errored_run()):
        report = verify(history(lines))
        assert (report.outcome, report.checked, report.divergences) == ("agrees", len(lines), ())
        assert report.exit_code(strict=True) == 0


def test_the_first_divergence_shows_both_decisions_and_reasons() -> None:
    report = verify(altered())
    assert (report.outcome, report.exit_code()) == ("diverges", 1)
    first = report.first
    assert first is not None
    assert (first.n, first.place) == (11, 0)
    assert first.recorded[0].reason == "because I say so"
    assert "rank 1 failed first" in first.now[0].reason
    assert first.recorded[0].kind == first.now[0].kind == "failure_decided"


def test_another_decider_would_differ_which_is_no_failure_unless_asked() -> None:
    report = verify(altered(), decider=Decider(version="99.0"))
    assert (report.outcome, len(report.divergences)) == ("would_differ", 1)
    assert (report.exit_code(), report.exit_code(strict=True)) == (0, 1)


def test_a_broken_log_is_verified_as_far_as_it_goes_and_is_no_success() -> None:
    lines = finished_run()
    report = verify(history([*lines[:6], *lines[7:]]))
    assert (report.outcome, report.checked, report.exit_code()) == ("stopped", 6, 1)
    assert "entry 6 is missing" in report.stopped_by


def test_an_entry_that_cannot_follow_stops_it() -> None:
    steps = [(entry.t, entry.inputs, entry.transitions) for entry in map(decode_entry, finished_run())]
    report = verify(history(chained([*steps[:4], *steps[7:]])))
    assert report.outcome in ("stopped", "diverges")
    assert report.exit_code() == 1


def test_a_kind_of_a_later_version_stops_it_by_name() -> None:
    lines = failing_run()[:12]
    later = lines[11].replace(b'"kind":"failure_decided"', b'"kind":"failure_weighed"')
    report = verify(history([*lines[:11], later]))
    assert report.outcome == "stopped"
    assert "'failure_weighed'" in report.stopped_by


def test_the_present_decider_is_the_one_that_samples_name() -> None:
    assert verify(history(finished_run())).decider == present_decider()
