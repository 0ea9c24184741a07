"""Golden logs of every state, and of an older envelope: they fold for ever, and are decided as they were."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from runfold.events.base import WIRE_VERSION
from runfold.events.edges import EDGES, state_name
from runfold.events.entry import NotAnEntry, decode_entry, encode_entry, hash_entry
from runfold.events.fold import fold, fold_all
from runfold.events.state import RunState
from runfold.events.transitions import AttemptStarted, ResizeDropped, ResizePlanned, StateChanged
from runfold.events.upcast import STEPS
from runfold.replay.audit import audit
from runfold.replay.history import History
from runfold.replay.source import load
from runfold.replay.verify import verify

FOLDER = Path(__file__).parent / "states"
LOGS = sorted(FOLDER.glob("*.jsonl"))
OLDER = FOLDER / "envelope_0.jsonl"
ELASTIC = FOLDER / "elastic.jsonl"


@pytest.fixture(params=LOGS, ids=lambda path: path.stem)
def history(request: pytest.FixtureRequest) -> History:
    """A golden log."""
    path: Path = request.param
    return load(path)


def ends_in(path: Path) -> str:
    """The state that a log ends in."""
    return str(state_name(fold_all(load(path).entries).phase))


def test_there_is_one_for_every_state() -> None:
    """INITIALIZING is left within entry 0; every other state is one that a log may rest in."""
    found = {path.stem: ends_in(path) for path in LOGS if path not in (OLDER, ELASTIC)}
    assert found == {name: name for name in EDGES if name != "initializing"}
    for path in LOGS:
        if path == ELASTIC:
            continue  # it waits there for its pool's word
        first = load(path).entries[0]
        changes = [item for item in first.transitions if isinstance(item, StateChanged)]
        assert changes[0].from_state == "initializing"


def test_it_folds_at_every_entry(history: History) -> None:
    state: RunState | None = None
    for entry in history.entries:
        state = fold(state, entry)
        assert state.n == entry.n
    assert len(history.links) > 1


def test_it_audits_clean(history: History) -> None:
    report = audit(history)
    assert report.clean, report.findings


def test_it_is_decided_again_as_it_was(history: History) -> None:
    """By the version that wrote it; a later one may decide otherwise, and is told to say so."""
    report = verify(history)
    assert report.outcome in ("agrees", "would_differ"), report.first
    assert report.checked == len(history.links)


def test_the_elastic_one_planned_changed_and_dropped_sizes() -> None:
    said = [type(item) for entry in load(ELASTIC).entries for item in entry.transitions]
    assert (said.count(ResizePlanned), said.count(ResizeDropped)) == (2, 1)
    begun = [item for entry in load(ELASTIC).entries for item in entry.transitions if isinstance(item, AttemptStarted)]
    assert [item.num_workers for item in begun] == [2, 4, 1]
    assert verify(load(ELASTIC)).outcome == "agrees"


# --- the older envelope


def test_the_older_envelope_is_raised_as_it_is_read() -> None:
    lines = OLDER.read_bytes().splitlines()[:-1]
    assert {json.loads(line)["v"] for line in lines} == {0}
    assert set(STEPS) == set(range(WIRE_VERSION))
    for line in lines:
        entry = decode_entry(line)
        assert (entry.v, entry.epoch, entry.by) == (WIRE_VERSION, 1, json.loads(line)["controller"])


def test_the_older_log_folds_into_the_same_state() -> None:
    older, newer = fold_all(load(OLDER).entries), fold_all(load(FOLDER / "finished.jsonl").entries)
    assert older == newer


def test_its_chain_is_of_the_bytes_as_they_were_written() -> None:
    """They are never rewritten: raised and encoded again an entry would have another hash."""
    links = load(OLDER).links
    for before, after in pairwise(links):
        assert after.entry.prev == hash_entry(before.data) != hash_entry(encode_entry(before.entry))


def test_a_version_that_nobody_knows_is_no_entry() -> None:
    line = json.loads(OLDER.read_bytes().splitlines()[0])
    with pytest.raises(NotAnEntry, match="version 7"):
        decode_entry(json.dumps({**line, "v": 7}).encode())
