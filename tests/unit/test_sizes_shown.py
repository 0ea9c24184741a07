"""What is shown to people, and what things are called, is cut to a length: at it whole, beyond it cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace

from runfold import health
from runfold.children import LOG_TAIL_MAX_BYTES, Child
from runfold.cli import killed
from runfold.controller.seat import HOST_MAX_COUNT, ID_MAX_BYTES, SEATS_FOLDER, seat
from runfold.events.evidence import LAST_LINE_CHARS_MAX
from runfold.events.job import NAME_MAX_BYTES, NAME_MAX_CHARS, NAME_SHOWN_MAX_CHARS, decode_job
from runfold.events.nats import broker
from runfold.events.strict import Refused
from runfold.events.subjects import NAME_MAX_CHARS as TOKEN_MAX_CHARS
from runfold.events.subjects import is_token
from runfold.events.transitions import FailureDecided
from runfold.explain import VALUE_CHARS_MAX as METRIC_CHARS_MAX
from runfold.explain import value_text
from runfold.ids import ID_CHARS_MAX, new_run_id
from runfold.lacking import Lacking
from runfold.locate import find
from runfold.replay import answers, render
from runfold.replay.look import Look
from runfold.workers.errors import CheckpointNameError
from runfold.workers.output import TAIL_MAX_BYTES, OutputCut
from runfold.workers.pools.ray import library
from runfold.workers.storage import NAME_MAX_COUNT, check_name
from support.runs import Run

if TYPE_CHECKING:
    from pathlib import Path

    from runfold.events.status import Status


def test_runs_that_were_killed_are_named_up_to_a_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [f"run-{k}" for k in range(killed.NAMED_MAX_COUNT + 2)]
    killed.say_killed(find(tmp_path), runs[:-2])
    killed.say_killed(find(tmp_path), runs)
    whole, cut = capsys.readouterr().err.splitlines()
    assert whole.startswith("3 one-shot runs were killed (run-0, run-1, run-2): `runfold salvage")
    assert cut.startswith("5 one-shot runs were killed (run-0, run-1, run-2 and 2 more): `runfold salvage")


# --- what things are called


def test_a_controllers_id_is_short_whatever_its_machine_is_called(tmp_path: Path) -> None:
    with seat(tmp_path / "one", "h" * HOST_MAX_COUNT) as name:
        assert name == "h" * HOST_MAX_COUNT + "-0"
    with seat(tmp_path / "other", "h" * (HOST_MAX_COUNT + 1)) as name:
        assert name == "h" * HOST_MAX_COUNT + "-0"


@pytest.mark.parametrize("beyond", [0, 9])
def test_an_id_that_a_seat_keeps_is_read_up_to_a_length(tmp_path: Path, beyond: int) -> None:
    (tmp_path / SEATS_FOLDER).mkdir()
    (tmp_path / SEATS_FOLDER / "0").write_text("i" * (ID_MAX_BYTES + beyond))
    with seat(tmp_path, "host") as name:
        assert name == "i" * ID_MAX_BYTES


@pytest.mark.parametrize("field", ["name", "storage_name"])
def test_a_name_that_becomes_a_directory_is_no_longer_than_it_may_be(field: str) -> None:
    longest = "n" * NAME_MAX_CHARS
    decode_job(b'{"entrypoint": "a:b", "%s": "%s"}' % (field.encode(), longest.encode()))
    with pytest.raises(Refused) as refused:
        decode_job(b'{"entrypoint": "a:b", "%s": "%sn"}' % (field.encode(), longest.encode()))
    assert refused.value.path == f"$.{field}"
    assert refused.value.reason.startswith(f"'{'n' * NAME_SHOWN_MAX_CHARS}…' is no name: it becomes a directory")


def test_a_name_that_becomes_a_directory_has_no_more_bytes_than_it_may() -> None:
    longest = "é" * (NAME_MAX_BYTES // 2)
    decode_job(b'{"entrypoint": "a:b", "name": "%s"}' % longest.encode())
    with pytest.raises(Refused, match=f"of {NAME_MAX_BYTES} bytes at most"):
        decode_job(b'{"entrypoint": "a:b", "name": "%s"}' % f"{longest}é".encode())


def test_a_token_of_a_subject_is_no_longer_than_it_may_be() -> None:
    assert is_token("t" * TOKEN_MAX_CHARS)
    assert not is_token("t" * (TOKEN_MAX_CHARS + 1))


def test_a_runs_id_is_cut_but_for_what_makes_it_its_own() -> None:
    short, long = new_run_id("n" * 10), new_run_id("n" * 500)
    assert short.startswith("n" * 10 + "-")
    assert len(long) == ID_CHARS_MAX
    assert long.rpartition("-")[2] != new_run_id("n" * 500).rpartition("-")[2]


def test_a_part_of_a_checkpoints_name_is_no_longer_than_it_may_be() -> None:
    check_name("a/" + "n" * NAME_MAX_COUNT)
    with pytest.raises(CheckpointNameError):
        check_name("a/" + "n" * (NAME_MAX_COUNT + 1))


# --- what is shown


@pytest.mark.parametrize("limit", [METRIC_CHARS_MAX, 400])
def test_a_value_is_shown_up_to_a_length(limit: int) -> None:
    assert value_text("v" * limit, limit) == "v" * limit
    cut = value_text("v" * (limit + 1), limit)
    assert len(cut) <= limit
    assert cut.endswith("…")


def test_a_change_is_shown_up_to_a_length() -> None:
    longest = "v" * (answers.VALUE_CHARS_MAX - 2)  # and its quotes
    assert answers._value(longest) == f'"{longest}"'
    cut = answers._value(longest + "v")
    assert len(cut) == answers.VALUE_CHARS_MAX
    assert cut.endswith("…")


@pytest.mark.parametrize("limit", [render.TRACEBACK_LINES_MAX_COUNT, render.OUTPUT_LINES_MAX_COUNT])
def test_a_block_of_lines_is_shown_from_its_end_and_says_how_many_more(limit: int) -> None:
    lines = [f"line {k}" for k in range(limit + 2)]
    assert len(list(render._block("\n".join(lines[:limit]), limit, Look()))) == limit
    first, *rest = render._block("\n".join(lines), limit, Look())
    assert "… 2 lines more, shown with --full" in first
    assert [line.partition("| ")[2] for line in rest] == lines[2:]


def test_of_what_a_broker_printed_the_end_is_told(tmp_path: Path) -> None:
    output = tmp_path / "start.log"
    output.write_text("begin" + "x" * broker.OUTPUT_TAIL_MAX_BYTES + "the end")
    told = broker._end_of(output)
    assert "begin" not in told
    assert "the end" in told


def test_an_error_of_rays_is_told_up_to_a_length() -> None:
    longest = "e" * library.REASON_MAX
    assert library._in_a_line(ValueError(longest)) == longest
    assert library._in_a_line(ValueError(longest + "!")) == longest


def test_of_what_a_rank_printed_the_tail_is_kept() -> None:
    output = OutputCut("digits", 1, 0, "local")
    for _ in range(5):
        output.feed("stdout", b"x" * TAIL_MAX_BYTES, 0.0, 0.0)
    output.feed("stdout", b"the end", 0.0, 0.0)
    assert TAIL_MAX_BYTES <= len(output.tail()) <= 2 * TAIL_MAX_BYTES
    assert output.tail().endswith("the end")


def test_of_what_a_child_wrote_the_end_is_told(tmp_path: Path) -> None:
    child = Child("controller", tmp_path)
    child.log_file.parent.mkdir(parents=True)
    child.log_file.write_text("begin" + "x" * LOG_TAIL_MAX_BYTES + "the end")
    told = child.log_tail()
    assert "begin" not in told
    assert "the end" in told


@pytest.mark.parametrize("beyond", [0, 1])
def test_the_last_line_of_a_rank_is_told_up_to_a_length(beyond: int) -> None:
    run = Run(1).running()
    line = "l" * (LAST_LINE_CHARS_MAX + beyond)
    run.says(replace(run.exited(0, code=3), last_lines=f"before\n{line}\n"))
    told = str(run.the(FailureDecided).failure.error.message)
    assert told.endswith(f"; its last line: {'l' * LAST_LINE_CHARS_MAX}{'…' * beyond}")


@pytest.mark.parametrize("beyond", [0, 3])
def test_so_many_damaged_runs_are_told_and_the_others_counted(beyond: int, tmp_path: Path) -> None:
    runs = [f"run-{k}" for k in range(health.RUNS_SHOWN_MAX + beyond)]
    marked = [SimpleNamespace(run=run, quarantined="damaged") for run in runs]
    check = health._damaged(cast("list[Status]", marked))
    assert check.found.count("is quarantined") == health.RUNS_SHOWN_MAX
    assert check.found.endswith("; and 3 more") == bool(beyond)
    check = health._lacking(find(tmp_path), [Lacking(run=run, holds=0, known=9) for run in runs])
    assert check.found.count("holds 0 of the 9 entries that it had; no archive of it can be read") == len(runs) - beyond
    assert check.found.endswith("; and 3 more") == bool(beyond)
