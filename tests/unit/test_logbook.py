"""`runfold.load`: a run's log in Python, as frames and answers."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import runfold
from runfold.replay.archive import write_archive
from runfold.replay.errors import NotFound
from support.histories import exported, failing_run, finished_run, history


@pytest.fixture
def log(tmp_path: Path) -> runfold.RunLog:
    """The log of a run that failed once, read from an exported file."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(exported(failing_run()))
    return runfold.load(path)


def test_entries_transitions_and_reports_are_frames(log: runfold.RunLog) -> None:
    assert list(log.entries["n"]) == list(range(22))
    assert log.transitions["kind"].value_counts()["failure_decided"] == 1
    by_attempt = log.reports[log.reports["rank"] == 0].groupby("attempt")["loss"].min()
    assert [round(float(loss), 3) for loss in by_attempt] == [0.167, 0.167]
    assert str(log.reports["index"].dtype) == "Int64"
    assert log.reports["loss"].isna().sum() == 12
    assert isinstance(log.reports, pd.DataFrame)


def test_every_question_is_answered(log: runfold.RunLog) -> None:
    cause = log.story().first_cause
    assert cause is not None
    assert (log.run, cause.n, log.at(cause.n).attempt) == ("digits-7k2", 11, 2)
    assert log.goodput().clock_s == 9.2
    assert log.audit().clean
    assert log.verify().outcome == "agrees"
    assert log.what_if({"failure.max_failures": 0}).ends
    assert log.diff(10, 11).changes
    assert {row.attempt for row in log.timeline(attempt=2).rows} == {2}
    assert "decided to retry" in str(log)
    assert repr(log) == "<RunLog digits-7k2: 22 entries>"


def test_a_run_is_found_in_the_archive_of_a_data_directory(tmp_path: Path, log: runfold.RunLog) -> None:
    write_archive(history(finished_run()), tmp_path / "archive" / "digits-7k2")
    other = runfold.load("digits-7k2", data=tmp_path)
    parted = log.diff_to(other).parted
    assert parted is not None
    assert other.story().attempts == 1
    with pytest.raises(NotFound):
        runfold.load("no-such-run", data=tmp_path)


def test_a_log_without_reports_has_an_empty_frame(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(exported(finished_run()[:4]))
    assert runfold.load(path).reports.empty
