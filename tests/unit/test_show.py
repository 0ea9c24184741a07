"""What commands print cannot take a terminal over, whatever users wrote in names, reasons, errors and metrics."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from runfold.cli.command import say_error
from runfold.cli.get import status_text
from runfold.cli.show import print_json, print_json_line, print_text, table
from runfold.config import read_settings
from runfold.events.entry import Head
from runfold.events.status import BudgetStatus, CheckpointStatus, ErrorStatus, RankStatus, Status
from runfold.locate import Where

HOSTILE = "a\x1b[2J\x00\r\x07\x9b31m\u202e\u2028b"
HARMLESS = r"a\x1b[2J\x00\r\x07\x9b31m\u202e\u2028b"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]")


def hostile_status() -> Status:
    return Status(
        run="digits",
        state="errored",
        since="2026-11-30T05:48:28Z",
        since_t=0.0,
        reason=HOSTILE,
        attempt=1,
        world_size=1,
        ranks=(RankStatus(rank=0, node=HOSTILE, phase="failed", index=1, step=1),),
        budgets={"worker": BudgetStatus(spent=0, limit=0)},
        metrics={HOSTILE: HOSTILE},
        error=ErrorStatus(rank=0, type=HOSTILE, message=HOSTILE + "\nsecond", kind="user", where=HOSTILE, attempt=1),
        waiting=HOSTILE,
        warnings=(HOSTILE,),
        return_value=HOSTILE,
        quarantined=HOSTILE,
        head=Head(n=1, hash="00"),
        epoch=1,
        controller=HOSTILE,
        excluded_nodes={HOSTILE: "was taken back"},
    )


def test_a_status_is_shown_on_lines_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = Where(data_dir=tmp_path, settings=read_settings({}), named=None, given=("--data", "other runs"))
    print_text(status_text(hostile_status(), where))
    shown = capsys.readouterr().out
    assert not CONTROL.search(shown)
    assert shown.count(HARMLESS) >= 9
    assert f"stays off: {HARMLESS} (was taken back); `runfold admit digits NODE --data 'other runs'` ends that" in shown
    assert "second" not in shown


def test_the_last_checkpoint_and_the_storage_are_shown_where_there_are_some(tmp_path: Path) -> None:
    where = Where(data_dir=tmp_path, settings=read_settings({}), named=None)
    status = replace(hostile_status(), checkpoint="c-3")
    assert "checkpoint" not in status_text(hostile_status(), where)
    assert "  checkpoint: c-3\n" in status_text(status, where)
    kept = CheckpointStatus(name="c-3", index=3, attempt=2, status="validated", score=0.25)
    text = status_text(replace(status, checkpoints=(kept,)), where, storage="s3://bucket/digits")
    assert "  checkpoint: c-3 (report 3, attempt 2, validated, score 0.25)\n  storage: s3://bucket/digits\n" in text
    doubtful = replace(kept, status="committed", score=None, doubtful=True)
    text = status_text(replace(status, checkpoints=(doubtful,)), where)
    assert "c-3 (report 3, attempt 2, its files may not belong together)\n" in text


def test_json_escapes_what_json_would_let_through(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"reason": HOSTILE})
    print_json_line({"reason": HOSTILE})
    shown = capsys.readouterr().out
    assert not CONTROL.search(shown)
    indented, _, line = shown.rpartition("}\n{")
    assert json.loads(indented + "}") == json.loads("{" + line) == {"reason": HOSTILE}


def test_a_cell_stays_in_its_row_and_column(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(table(("NAME", "WHY"), [("x", "one\ntwo"), (HOSTILE, "three")]))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["x", r"one\ntwo"]
    assert lines[1].index("one") == lines[2].index("three")


def test_an_error_is_shown_whole_and_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    say_error(f"{HOSTILE}\n{HOSTILE}")
    assert capsys.readouterr().err == f"runfold: {HARMLESS}\n{HARMLESS}\n"


def test_text_goes_where_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    print_text("said", sys.stderr)
    assert capsys.readouterr() == ("", "said\n")
