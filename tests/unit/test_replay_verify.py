"""Deciding again: the same decider must agree; another one's differences are listed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from runfold.controller.decide import settle
from runfold.events.conclusions import Decider
from runfold.events.entry import decode_entry
from runfold.events.fold import fold
from runfold.events.state import RunState
from runfold.events.transitions import FailureDecided
from runfold.replay.archive import write_archive
from runfold.replay.errors import CannotRead, NotFound
from runfold.replay.gather import gather, is_folder_of_logs
from runfold.replay.history import History
from runfold.replay.intended import Intended, read_intended
from runfold.replay.source import load
from runfold.replay.verify import before, present_decider, verify
from support.histories import chained, errored_run, exported, failing_run, finished_run, history


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


def test_what_is_decided_alike_has_folded_alike() -> None:
    for lines in (failing_run(), finished_run(), errored_run()):
        state: RunState | None = None
        for entry in map(decode_entry, lines):
            settled = settle(before(state, entry), entry.inputs, entry.t, cursor=entry.cursor)[1]
            state = fold(state, entry)
            assert settled == msgspec.structs.replace(state, accepted_at=settled.accepted_at)


def test_intended_differences_are_no_error_and_say_why() -> None:
    meant = Intended(entry=11, reason="retries are worded otherwise", since="99.0")
    report = verify(altered(), decider=Decider(version="99.0"), intended=[meant])
    assert [one.intended for one in report.divergences] == ["retries are worded otherwise"]
    assert (report.outcome, report.unintended, report.exit_code(strict=True)) == ("would_differ", (), 0)


def test_no_difference_of_the_same_decider_is_intended() -> None:
    report = verify(altered(), intended=[Intended(entry=11, reason="no")])
    assert (report.outcome, report.exit_code(), report.divergences[0].intended) == ("diverges", 1, "")


def test_an_intended_difference_that_does_not_show_is_to_be_taken_off_the_list() -> None:
    report = verify(history(failing_run()), intended=[Intended(entry=3, reason="once")])
    assert [item.entry for item in report.unneeded] == [3]
    assert (report.exit_code(), report.exit_code(strict=True)) == (0, 1)


def test_the_list_of_intended_differences_stands_beside_the_log(tmp_path: Path) -> None:
    listed = tmp_path / "old.differences.toml"
    listed.write_text('[[difference]]\nentry = 7\nsince = "0.2.0"\nreason = "so it was meant"\n')
    (found,) = read_intended(str(tmp_path / "old.jsonl"))
    assert (found.entry, found.since, found.reason) == (7, "0.2.0", "so it was meant")
    assert read_intended(str(tmp_path / "other.jsonl")) == ()
    listed.rename(tmp_path / "differences.toml")
    assert read_intended(str(tmp_path)) == (found,)


@pytest.mark.parametrize(
    "text", ["[[difference]]\nentry = 7\n", '[[difference]]\nentry = 7\nreason = " "\n', "no toml", "[[differences]]\n"]
)
def test_a_list_that_is_none_is_said_to_be(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.differences.toml").write_text(text)
    with pytest.raises(CannotRead, match=r"a\.differences\.toml"):
        read_intended(str(tmp_path / "a.jsonl"))


def test_a_folder_of_logs_is_looked_through(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_bytes(exported(finished_run()))
    (tmp_path / "notes.txt").write_text("none")
    (tmp_path / "deep").mkdir()
    write_archive(history(failing_run()), tmp_path / "deep" / "a")
    assert is_folder_of_logs(str(tmp_path))
    assert not is_folder_of_logs(str(tmp_path / "deep" / "a"))
    found = gather(str(tmp_path))
    assert found == (str(tmp_path / "b.jsonl"), str(tmp_path / "deep" / "a"))
    assert [verify(load(target)).outcome for target in found] == ["agrees", "agrees"]
    assert gather(str(tmp_path / "deep" / "a")) == (str(tmp_path / "deep" / "a"),)


def test_a_folder_without_logs_is_said_to_have_none(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no log in"):
        gather(str(tmp_path))
