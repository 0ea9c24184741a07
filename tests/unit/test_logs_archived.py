"""What ranks printed is shown of an archive as it was live: by time, and as far as it is whole."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from runfold.cli.command import run_command
from runfold.events.output import OutputBatch, OutputLine
from runfold.replay.archive import write_archive
from runfold.replay.unarchive import RankOutput
from support.histories import finished_run, history


def batch(attempt: int, rank: int, number: int, *times_s: float) -> bytes:
    lines = tuple(OutputLine(time_s=time_s, source="stdout", text=f"at {time_s:g}") for time_s in times_s)
    made = OutputBatch(run="digits-7k2", attempt=attempt, rank=rank, node="local", number=number, lines=lines)
    return msgspec.json.encode(made)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive of three attempts of two ranks, the lines of which were printed in turns."""
    monkeypatch.setenv("RUNFOLD_DATA", str(tmp_path / "data"))
    outputs = [
        RankOutput(
            attempt=attempt,
            rank=rank,
            batches=(
                batch(attempt, rank, 1, 10 * attempt + rank / 10, 10 * attempt + 1 + rank / 10),
                batch(attempt, rank, 2, 10 * attempt + 2 + rank / 10),
            ),
        )
        for attempt in (2, 1, 3)
        for rank in (1, 0)
    ]
    write_archive(history(finished_run()), tmp_path / "archive", outputs=outputs)
    return tmp_path / "archive"


def shown(archive: Path, capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[float], str]:
    """The exit code of `logs`, the times of the lines that it shows, and what it says."""
    code = run_command("logs", "runfold.cli.logs", [str(archive), "-o", "json", *words])
    said = capfd.readouterr()
    return code, [json.loads(line)["time_s"] for line in said.out.splitlines()], said.err


def test_lines_stand_by_time_whichever_rank_printed_them(archive: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, times_s, said = shown(archive, capfd)
    assert (code, said) == (0, "")
    assert len(times_s) == 3 * 2 * 3
    assert times_s == sorted(times_s)
    assert shown(archive, capfd, "--rank", "1")[1] == [time_s for time_s in times_s if round(time_s * 10) % 10 == 1]
    run_command("logs", "runfold.cli.logs", [str(archive)])
    assert [line.split()[1] for line in capfd.readouterr().out.splitlines()[:4]] == ["1.0", "1.1", "1.0", "1.1"]


@pytest.mark.parametrize("harm", ["flipped", "cut", "removed"])
def test_a_damaged_output_is_named_and_the_others_are_shown(
    archive: Path, capfd: pytest.CaptureFixture[str], harm: str
) -> None:
    whole = shown(archive, capfd)[1]
    file = archive / "output" / "2-1.jsonl.zst"
    data = file.read_bytes()
    if harm == "removed":
        file.unlink()
    else:
        file.write_bytes(data[:20] if harm == "cut" else data[:20] + bytes([data[20] ^ 1]) + data[21:])
    code, times_s, said = shown(archive, capfd)
    assert code == 1
    assert times_s == [time_s for time_s in whole if not (20 <= time_s < 30 and round(time_s * 10) % 10)]
    assert f"output/2-1.jsonl.zst in {archive} is {'missing' if harm == 'removed' else 'damaged'}" in said
    assert "nothing is kept" not in said
    assert shown(archive, capfd, "--rank", "0")[0] == 0, "of the other rank all is whole"


def test_outputs_are_shown_though_the_last_manifest_is_damaged(
    archive: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = shown(archive, capfd)[1]
    (archive / "last.json").write_text("{}")
    code, times_s, said = shown(archive, capfd)
    assert (code, times_s) == (1, whole)
    assert f"last.json in {archive} is damaged" in said
    (archive / "output" / "2-1.jsonl.zst").write_bytes(b"no pack")
    code, times_s, said = shown(archive, capfd)
    assert (code, len(times_s)) == (1, len(whole) - 3)
    assert "output/2-1.jsonl.zst" in said
