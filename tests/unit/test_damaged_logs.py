"""What commands say of a log that is damaged: how far it can be followed, and why; a copy of it never looks whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runfold.cli.command import run_command
from runfold.replay.archive import write_archive
from runfold.replay.errors import ExportRefused
from runfold.replay.export import export_lines
from runfold.replay.source import load
from runfold.replay.unarchive import RankOutput
from support.histories import exported, failing_run, finished_run, history

LAST_N = 7
"""The last entry before the one that is changed."""


def flipped(data: bytes, line: int) -> bytes:
    """The bytes of an export with one byte of a line changed."""
    lines = data.split(b"\n")
    place = lines[line].index(b'"at":"') + 8
    lines[line] = lines[line][:place] + bytes([lines[line][place] ^ 1]) + lines[line][place + 1 :]
    return b"\n".join(lines)


@pytest.fixture(autouse=True)
def nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no service of this machine be asked."""
    monkeypatch.setenv("RUNFOLD_DATA", str(tmp_path / "data"))


@pytest.fixture(params=["file", "archive"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A log of a finished run that can be followed only to an entry in its midst, as a file or as an archive."""
    if request.param == "file":
        path = tmp_path / "bad.jsonl"
        path.write_bytes(flipped(exported(finished_run(40)), LAST_N))
        return str(path)
    path = tmp_path / "archive"
    write_archive(history(finished_run(40)), path)
    (segment,) = (path / "segments").glob("*.zst")
    segment.write_bytes(segment.read_bytes()[:-60])
    return str(path)


@pytest.fixture
def broken(tmp_path: Path) -> str:
    """A file with a log of a finished run in which one byte was changed."""
    path = tmp_path / "bad.jsonl"
    path.write_bytes(flipped(exported(finished_run(40)), LAST_N))
    return str(path)


def called(name: str, *words: str) -> int:
    return run_command(name, f"runfold.cli.{name}", list(words))


def test_a_damaged_log_is_not_exported_as_a_log(
    damaged: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_text("before")
    for words in ((), ("--to", str(kept), "--force")):
        assert called("export", damaged, *words) == 1
        said = capfd.readouterr()
        assert said.out == ""
        assert "was not exported: its log is damaged. " in said.err
    assert kept.read_text() == "before"
    with pytest.raises(ExportRefused):
        export_lines(load(damaged))


def test_archive_and_export_refuse_the_same_log_alike(
    broken: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert called("archive", broken, str(tmp_path / "there")) == 1
    refused = capfd.readouterr().err
    assert called("export", broken) == 1
    said = capfd.readouterr().err
    assert said.startswith(refused.strip().replace("archived", "exported"))


@pytest.mark.parametrize("form", ["csv", "perfetto", "parquet"])
def test_what_can_be_read_of_a_damaged_log_is_written_in_other_formats_and_said(
    broken: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], form: str
) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    else:
        assert called("export", broken, "--format", form) == 1
        said = capfd.readouterr()
        assert said.out
        assert f"the log can be followed only to entry {LAST_N}: " in said.err
    there = tmp_path / "there"
    assert called("export", broken, "--format", form, "--to", str(there)) == 1
    assert there.exists()
    assert f"the log can be followed only to entry {LAST_N}: " in capfd.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("get", "LOG"),
        ("get", "LOG", "-o", "json"),
        ("goodput", "LOG"),
        ("whatif", "LOG", "--set", "failure.max_failures=5"),
        ("diff", "LOG", "1", "5"),
        ("diff", "WHOLE", "LOG"),
        ("replay", "LOG", "--at", "3"),
    ],
)
def test_a_question_to_a_damaged_log_is_answered_with_how_far_it_can_be_followed(
    broken: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    (tmp_path / "whole.jsonl").write_bytes(exported(failing_run()))
    named = {"LOG": broken, "WHOLE": str(tmp_path / "whole.jsonl")}
    called(*(named.get(word, word) for word in words))
    told = [line for line in capfd.readouterr().err.splitlines() if "the log can be followed only to entry" in line]
    assert len(told) == 1
    assert told[0].startswith(f"bad.jsonl: the log can be followed only to entry {LAST_N}: entry {LAST_N + 1} ")


def test_a_run_is_as_old_as_the_last_entry_of_its_file(
    broken: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    last_t = load(broken).links[-1].entry.t
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(exported(finished_run(40)[: LAST_N + 1]))  # as exported while it went on
    for target in (broken, str(cut)):
        assert called("get", target) == 0
        said = capfd.readouterr()
        assert f", {last_t:.1f} s\n" in said.out
        assert f"has not ended by entry {LAST_N}, the last that can be read" in said.err


def test_damage_beside_the_entries_loses_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "archive"
    write_archive(history(finished_run(4)), path)
    (path / "last.json").write_text("{}")
    n = len(finished_run(4)) - 1
    assert called("goodput", str(path)) == 0
    said = capfd.readouterr().err
    assert f"{path}: damaged, and all of its entries, to {n}, can be read: " in said
    assert "bytes" not in said


@pytest.mark.parametrize("name", ["story.json", "last.json", "output/1-0.jsonl.zst"])
def test_the_audit_says_that_no_entry_is_lost_where_none_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    path = tmp_path / "archive"
    outputs = [RankOutput(attempt=1, rank=0, batches=(b"{}",))]
    write_archive(history(finished_run(4)), path, outputs=outputs)
    (path / name).write_bytes(b"{}")
    assert called("audit", str(path)) == 1
    said = capfd.readouterr().out
    assert f"[{name}]\n" in said
    assert "do: no entry is lost, only what is named here;" in said
    assert "behind them are lost" not in said


def test_the_audit_says_that_entries_are_lost_where_they_are(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "archive"
    write_archive(history(finished_run(4)), path)
    (segment,) = (path / "segments").glob("*.zst")
    segment.write_bytes(b"no pack")
    assert called("audit", str(path)) == 1
    said = capfd.readouterr().out
    assert f"[segments/{segment.name}]\n" in said
    assert "do: take another copy; the entries named here and behind them are lost" in said


def test_an_archive_that_is_not_closed_is_exported_as_a_run_that_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = finished_run(4)[:-1]
    write_archive(history(lines), tmp_path / "archive")
    assert called("export", str(tmp_path / "archive")) == 0
    said = capfd.readouterr()
    assert len(said.out.splitlines()) == len(lines) + 1
    assert "the archive is not closed" in said.err


def test_a_row_has_its_gap_to_the_row_before_in_the_whole_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "run.jsonl")
    Path(path).write_bytes(exported(failing_run()))
    assert called("replay", path, "-o", "json") == 0
    whole = {row["number"]: row["gap_s"] for row in json.loads(capfd.readouterr().out)["timeline"]["rows"]}
    for option in (("--since", "+2.5"), ("--rank", "1"), ("--attempt", "2")):
        assert called("replay", path, "-o", "json", *option) == 0
        rows = json.loads(capfd.readouterr().out)["timeline"]["rows"]
        assert 0 < len(rows) < len(whole)
        assert {row["number"]: row["gap_s"] for row in rows}.items() <= whole.items()
        assert called("replay", path, *option) == 0
        shown = capfd.readouterr().out
        first = shown.partition("what happened, and why\n")[2].splitlines()[0].split()
        assert (f"+{rows[0]['gap_s']:.3f}" == first[3]) == (rows[0]["gap_s"] > 0)


@pytest.mark.parametrize("option", ["--attempt", "--rank", "--since"])
def test_a_moment_is_not_asked_for_with_a_part(broken: str, capfd: pytest.CaptureFixture[str], option: str) -> None:
    assert called("replay", broken, "--at", "3", option, "1") == 2
    said = capfd.readouterr()
    assert (said.out, "--at shows the state at one moment" in said.err) == ("", True)
