"""The story kept beside an archive: shown first of a long run, and never believed against its entries."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from runfold.cli import main
from runfold.replay.archive import write_archive
from runfold.replay.audit import audit
from runfold.replay.manifest import LAST, STORY, LastManifest, decode_last, digest, seal_last
from runfold.replay.source import load
from runfold.replay.store import open_store
from runfold.replay.story import story
from runfold.replay.summary import read_summary
from support.histories import failing_run, history


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The archive of a run that failed once."""
    write_archive(history(failing_run()), tmp_path)
    return tmp_path


def retell(folder: Path, told: bytes) -> None:
    """Put another story in the place of the one that is kept, as somebody would who knows the format."""
    last = msgspec.json.decode((folder / LAST).read_bytes(), type=LastManifest)
    (folder / STORY).write_bytes(told)
    (folder / LAST).write_bytes(seal_last(msgspec.structs.replace(last, story=digest(told))))


def test_it_is_the_story_that_the_entries_tell(folder: Path) -> None:
    kept = read_summary(open_store(folder))
    assert kept == story(history(failing_run())) == story(load(folder))
    assert read_summary(open_store(folder), entries_min=10_000) is None


@pytest.mark.parametrize("told", [b"", b"{}", b"[]", b"\xff"])
def test_what_is_no_story_is_none(folder: Path, told: bytes) -> None:
    retell(folder, told)
    assert read_summary(open_store(folder)) is None


def test_one_that_was_changed_or_lost_is_none_and_a_finding(folder: Path) -> None:
    path = folder / STORY
    path.write_bytes(path.read_bytes().replace(b"boom", b"bang"))
    assert read_summary(open_store(folder)) is None
    (finding,) = audit(load(folder, deep=True)).findings
    assert (finding.rule, finding.where and finding.where.file) == ("whole", STORY)
    path.unlink()
    assert read_summary(open_store(folder)) is None
    assert not audit(load(folder, deep=True)).clean


def test_an_archive_without_one_is_as_good_as_any(folder: Path) -> None:
    last = msgspec.json.decode((folder / LAST).read_bytes(), type=dict[str, msgspec.Raw])
    older = {name: value for name, value in last.items() if name not in ("story", "sha256")}
    blank = msgspec.json.encode({**older, "sha256": ""})
    (folder / LAST).write_bytes(msgspec.json.encode({**older, "sha256": digest(blank)}))
    (folder / STORY).unlink()
    assert decode_last((folder / LAST).read_bytes()).story == ""
    assert read_summary(open_store(folder)) is None
    assert audit(load(folder, deep=True)).clean


def test_a_long_run_shows_it_first_and_the_same_as_without(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(folder)]) == 0
    short = capsys.readouterr()
    monkeypatch.setattr("runfold.cli.replay.LONG_ENTRIES_MIN_COUNT", 1)
    assert main(["replay", str(folder)]) == 0
    assert capsys.readouterr() == short


def test_one_that_lies_is_contradicted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    retell(folder, (folder / STORY).read_bytes().replace(b"boom", b"bang"))
    monkeypatch.setattr("runfold.cli.replay.LONG_ENTRIES_MIN_COUNT", 1)
    assert main(["replay", str(folder)]) == 0
    shown = capsys.readouterr()
    assert "is not what its entries tell" in shown.err
    assert shown.out.index("RuntimeError: bang") < shown.out.index("RuntimeError: boom")
