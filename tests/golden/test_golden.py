"""Golden logs: what was recorded once must fold, verify and audit for ever, and tell nothing of the machine."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from runfold.events.edges import state_name
from runfold.replay.archive import write_archive
from runfold.replay.at import final_state, state_at
from runfold.replay.audit import audit
from runfold.replay.export import export_lines
from runfold.replay.history import History
from runfold.replay.render import render_story, render_timeline
from runfold.replay.source import load
from runfold.replay.story import story
from runfold.replay.timeline import timeline
from runfold.replay.verify import verify
from support.hygiene import strings, values

GOLDEN = sorted(Path(__file__).parent.glob("*.jsonl"))
ABSOLUTE_PATH = re.compile(r"(?:^|[\s\"'(=:,])(?:/[\w.-]+/|~/|[A-Za-z]:\\)")
ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")


@pytest.fixture(params=GOLDEN, ids=lambda path: path.stem)
def golden(request: pytest.FixtureRequest) -> Path:
    """A golden log."""
    path: Path = request.param
    return path


def test_the_two_runs_of_the_demo_are_kept() -> None:
    assert {path.stem for path in GOLDEN} >= {"golden-digits", "golden-digits-retry"}


def test_it_reads_and_audits_clean(golden: Path) -> None:
    report = audit(load(golden))
    assert report.clean, report.findings


def test_it_folds_at_every_entry(golden: Path) -> None:
    history = load(golden)
    assert final_state(history).state.terminal
    for entry in history.entries:
        assert state_at(history, entry.n).n == entry.n


def test_it_is_decided_again_as_it_was(golden: Path) -> None:
    report = verify(load(golden))
    assert (report.outcome, report.checked) == ("agrees", report.entries), report.first


def test_its_export_and_its_archive_are_the_same_bytes(golden: Path, tmp_path: Path) -> None:
    history = load(golden)
    write_archive(history, tmp_path)
    for read in (history, load(tmp_path)):
        assert b"".join(export_lines(read)) == golden.read_bytes()


def test_it_tells_nothing_of_the_machine(golden: Path) -> None:
    found: list[str] = []
    host = re.compile(rf"\b{re.escape(socket.gethostname())}\b")
    for line in golden.read_bytes().splitlines():
        document = json.loads(line)
        for text in strings(document):
            if ABSOLUTE_PATH.search(text) or (host.search(text) and socket.gethostname() != "local"):
                found.append(text)
            found += [address for address in ADDRESS.findall(text) if address != "127.0.0.1"]
        found += [str(node) for node in values(document, "node") if node not in ("local", "")]
        found += [str(by) for by in values(document, "by") if by not in ("local-0", "")]
        found += [str(user) for user in values(document, "requested_by") if user != "demo"]
    assert not found


def test_the_story_of_the_run_that_failed_once() -> None:
    history = retried()
    told = story(history)
    assert (told.state, told.attempts, [setback.decision for setback in told.setbacks]) == ("finished", 2, ["retry"])
    cause = told.setbacks[0].cause
    assert (cause.rank, cause.node, cause.kind, cause.type) == (1, "local", "user", "RuntimeError")
    assert cause.where is not None
    assert cause.where.startswith("examples/digits.py:")
    assert (told.budgets[0].name, told.budgets[0].spent, told.budgets[0].left) == ("worker", 1, 0)
    text = "\n".join([*render_story(told), *render_timeline(timeline(history))])
    for part in (
        "rank 1 was told to fail",
        'File "examples/digits.py"',
        "worker failure 1 of 1",
        "RUNNING → RESTARTING",
    ):
        assert part in text


def test_the_state_between_failure_and_second_try() -> None:
    history = retried()
    n = story(history).setbacks[0].n
    before, after = state_at(history, n - 1).state, state_at(history, n).state
    assert (state_name(before.phase), before.attempt, before.budgets["worker"].spent) == ("running", 1, 0)
    assert (state_name(after.phase), after.attempt, after.budgets["worker"].spent) == ("scheduling", 2, 1)


def retried() -> History:
    """The run that failed once."""
    return load(next(path for path in GOLDEN if path.stem == "golden-digits-retry"))
