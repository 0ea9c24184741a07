"""The catalogue's archives: the first screen of each names who failed, of what, and what was decided."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from runfold.replay.audit import audit
from runfold.replay.export import export_lines
from runfold.replay.goodput import goodput
from runfold.replay.perfetto import trace_bytes
from runfold.replay.source import load
from runfold.replay.verify import verify
from support.catalogue import CASES, Case, check
from support.hygiene import traces_of_the_machine

ARCHIVES = Path(__file__).parent / "archives"
SCHEMA = json.loads((Path(__file__).parents[1] / "support" / "chrome_trace.json").read_text(encoding="utf-8"))


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    """A failure of the catalogue."""
    found: Case = request.param
    return found


def test_every_case_has_an_archive_and_every_archive_a_case() -> None:
    assert {path.name for path in ARCHIVES.iterdir()} == {case.name for case in CASES}
    assert len(CASES) >= 20


def test_the_first_screen_names_who_failed_of_what_and_what_was_decided(case: Case) -> None:
    check(case, ARCHIVES / case.name)


def test_its_archive_audits_clean_and_is_decided_again_as_it_was(case: Case) -> None:
    history = load(ARCHIVES / case.name)
    # The whole stacks of ranks are not kept here: they tell of the machine.
    assert [found for found in audit(history).findings if "blob" not in found.what] == []
    assert verify(history).outcome == "agrees"


def test_its_time_sums_exactly_and_its_trace_is_valid(case: Case) -> None:
    history = load(ARCHIVES / case.name)
    uses = goodput(history).uses_s
    assert sum(round(part_s * 1_000_000) for part_s in uses.values()) == round(history.entries[-1].t * 1_000_000)
    jsonschema.validate(json.loads(trace_bytes(history)), SCHEMA)


def test_its_archive_tells_nothing_of_the_machine(case: Case) -> None:
    lines = b"".join(export_lines(load(ARCHIVES / case.name))).splitlines()
    assert traces_of_the_machine(lines) == []
