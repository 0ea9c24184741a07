"""Asking a log from the command line: of an exported file, an archive, and a run that goes on."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from support.commands import Commands
from support.sources import ROOT

GOLDEN = ROOT / "tests" / "golden"
RETRIED = str(GOLDEN / "golden-digits-retry.jsonl")
FINISHED = str(GOLDEN / "golden-digits.jsonl")

FAILS_ONCE = """
import runfold

def train():
    context = runfold.get_context()
    for step in range(3):
        runfold.report({"loss": 1.0 / (step + 1)})
        runfold.barrier()
    if context.get_attempt() == 1 and context.get_world_rank() == 1:
        raise ValueError("once")
"""


def test_replay_tells_the_story_with_goodput_and_linked_causes(runfold: Commands) -> None:
    text = runfold.ok("replay", RETRIED).out
    for part in (
        "FINISHED after",
        "goodput   ",
        "rank 1 on local: RuntimeError",
        "retry at entry 7",
        "worker budget: 1 of",
    ):
        assert part in text
    assert "← 13" in text
    assert len(text.splitlines()) < 40


@pytest.mark.parametrize(
    ("options", "there", "gone"),
    [
        (("--attempt", "2"), "attempt 2", "accepted digits"),
        (("--rank", "0"), "10 reports", "rank 1 returned"),
        (("--since", "14"), "every rank returned", "attempt 1:"),
        (("--full",), "the runner on local is ready", "joined as incarnation 1; placed"),
    ],
)
def test_replay_tells_of_a_part(runfold: Commands, options: tuple[str, ...], there: str, gone: str) -> None:
    text = runfold.ok("replay", RETRIED, *options).out.partition("what happened, and why")[2]
    assert there in text
    assert gone not in text


def test_follow_of_a_run_that_has_ended_tells_it_whole(runfold: Commands) -> None:
    assert "FINISHED" in runfold.ok("replay", RETRIED, "--follow").out
    rows = [json.loads(line) for line in runfold.ok("replay", RETRIED, "--follow", "-o", "json").out.splitlines()]
    assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
    assert runfold("replay", RETRIED, "--follow", "--rank", "1").code == 2


def test_goodput_sums_to_the_clock(runfold: Commands) -> None:
    found = runfold.ok("goodput", RETRIED, "-o", "json").document
    uses = found["uses_s"]
    assert isinstance(uses, dict)
    assert sum(round(value * 1_000_000) for value in uses.values()) == 2_934_216
    assert "recovery" in runfold.ok("goodput", RETRIED, "--since", "5", "--until", "+2.5").out
    assert runfold("goodput", RETRIED, "--since", "soon").code == 2


def test_moments_and_runs_are_compared(runfold: Commands) -> None:
    assert "budgets.worker.spent: 0 → 1" in runfold.ok("diff", RETRIED, "6", "7").out
    runs = runfold.ok("diff", RETRIED, FINISHED).out
    assert "failure.max_failures: 1 → 0" in runs
    assert "decided to retry" in runs
    assert runfold.ok("diff", RETRIED, FINISHED, "-o", "json").document["alike"] == 3


def test_what_if_gives_the_parting_entry_with_both_decisions(runfold: Commands) -> None:
    parted = runfold.ok("whatif", RETRIED, "--set", "failure.max_failures=0", "-o", "json").document["parted"]
    assert isinstance(parted, dict)
    assert parted["n"] == 7
    assert [parted[name][0]["whole"]["decision"] for name in ("recorded", "instead")] == ["retry", "raise"]
    text = runfold.ok("whatif", RETRIED, "--set", "failure.max_failures=0").out
    assert "the run would have ended there" in text
    assert "behind entry 7 the facts are of the course that was taken" in text
    refused = runfold("whatif", RETRIED, "--set", "failure.max_failures=none")
    assert (refused.code, "failure.max_failures" in refused.err) == (2, True)
    assert runfold("whatif", RETRIED).code == 2


def test_verify_and_audit_look_through_a_folder(runfold: Commands) -> None:
    assert len(runfold.ok("verify", str(GOLDEN), "--strict").out.splitlines()) == len(list(GOLDEN.rglob("*.jsonl")))
    reports = json.loads(runfold.ok("audit", str(GOLDEN), "-o", "json").out)
    assert {report["run"] for report in reports} >= {"golden-digits", "golden-digits-retry"}
    assert runfold("audit").code == runfold("audit", FINISHED, "--all").code == 2
    assert runfold("verify", str(runfold.folder)).code == 4


def test_a_flipped_bit_is_found_by_audit(runfold: Commands) -> None:
    data = bytearray(Path(FINISHED).read_bytes())
    data[len(data) // 2] ^= 1
    path = runfold.folder / "flipped.jsonl"
    path.write_bytes(data)
    done = runfold("audit", str(path))
    assert done.code == 1
    assert "  do: " in done.out


def test_every_format_is_written(runfold: Commands) -> None:
    assert runfold.ok("export", FINISHED).out == Path(FINISHED).read_text(encoding="utf-8")
    table = runfold.ok("export", FINISHED, "--format", "csv", "--table", "reports").out
    assert len(list(csv.DictReader(io.StringIO(table)))) == 20
    assert json.loads(runfold.ok("export", FINISHED, "--format", "perfetto").out)["traceEvents"]
    assert runfold("export", FINISHED, "--format", "parquet").code == 2
    written = runfold.ok("export", FINISHED, "--format", "csv", "--to", "tables", "-o", "json").document["files"]
    assert written == ["tables/entries.csv", "tables/transitions.csv", "tables/reports.csv"]
    assert (runfold.folder / "tables" / "reports.csv").read_text(encoding="utf-8") == table


@pytest.mark.parametrize(("form", "name"), [("jsonl", "to"), ("perfetto", "to"), ("csv", "to/reports.csv")])
def test_only_what_an_export_has_written_is_written_over(runfold: Commands, form: str, name: str) -> None:
    words = ("export", FINISHED, "--format", form, "--to", "to")
    path = runfold.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("a thesis", encoding="utf-8")
    refused = runfold(*words)
    assert (refused.code, path.read_text(encoding="utf-8")) == (2, "a thesis")
    assert f"{name} is there already" in refused.err
    runfold.ok(*words, "--force")
    runfold.ok("export", RETRIED, *words[2:])
    assert "golden-digits-retry" in path.read_text(encoding="utf-8")


def test_a_part_that_ends_before_it_begins_is_none(runfold: Commands) -> None:
    done = runfold("goodput", FINISHED, "--since", "+10", "--until", "+5")
    assert (done.code, done.out) == (2, "")
    assert "ends at 5 s (--until), before it begins at 10 s" in done.err


def test_ranks_that_a_run_has_not_are_refused_and_an_archive_has_what_was_printed(served: Commands) -> None:
    served.write("prints.py", "def train():\n    print('has printed this')\n")
    run = served.ok("submit", "prints.py:train", "--follow").out.strip()
    for words in (("logs", "--rank", "7"), ("replay", "--rank", "7")):
        done = served(*words, run)
        assert (done.code, done.out) == (2, "")
        assert "1 rank, numbered from 0" in done.err
    served.ok("archive", run, "kept")
    for target in ("kept", str(served.folder / "kept")):
        assert "has printed this" in served.ok("logs", target).out
    assert served("logs", FINISHED).code == 4


def test_parquet_is_written(runfold: Commands) -> None:
    pytest.importorskip("pyarrow")
    runfold.ok("export", FINISHED, "--format", "parquet", "--to", "tables")
    assert (runfold.folder / "tables" / "reports.parquet").read_bytes().startswith(b"PAR1")
    runfold.ok("export", RETRIED, "--format", "parquet", "--to", "tables")
    (runfold.folder / "tables" / "reports.parquet").write_bytes(b"PAR1 of another PAR1")
    assert runfold("export", FINISHED, "--format", "parquet", "--to", "tables").code == 2


def test_an_archive_is_written_elsewhere_and_read_back(runfold: Commands) -> None:
    url = f"file://{runfold.folder}/kept"
    archived = runfold.ok("archive", RETRIED, url, "-o", "json").document
    assert (archived["run"], archived["entries"], archived["outcome"]) == ("golden-digits-retry", 18, "finished")
    assert "clean" in runfold.ok("audit", url).out
    again = runfold.ok("archive", url, str(runfold.folder / "again"))
    assert "closed, finished" in again.err
    assert runfold.ok("export", str(runfold.folder / "again")).out == Path(RETRIED).read_text(encoding="utf-8")


def test_a_live_run_answers_every_question(served: Commands) -> None:
    script = served.write("once.py", FAILS_ONCE)
    run = served.submit(f"{script}:train", "--workers", "2", "--set", "failure.max_failures=1")
    followed = served.ok("replay", run, "--follow").out
    assert "ValueError: once" in followed
    assert "SHUTTING_DOWN → FINISHED" in followed
    for words in (("audit", run), ("audit", "--all"), ("verify", run), ("goodput", run), ("diff", run, "0", "5")):
        served.ok(*words)
    assert "clean" in served.ok("audit", run).out
    asked = served.ok("whatif", run, "--set", "failure.max_failures=0").out
    assert "decided to raise" in asked
    served.ok("archive", run, "elsewhere")
    live, kept = served.ok("export", run).out, served.ok("export", "elsewhere").out
    assert live == kept
