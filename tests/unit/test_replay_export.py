"""One run in one file: exact bytes, and every way in which a file can be cut or changed is found."""

from __future__ import annotations

import msgspec
import pytest

from runfold.replay.export import export_lines, read_export
from runfold.replay.history import History
from support.histories import exported, failing_run, history


def flaws(read: History) -> set[str]:
    """What kinds of damage were found."""
    return {damage.flaw for damage in read.damages}


def test_an_export_holds_the_exact_bytes_and_the_head() -> None:
    lines = failing_run()
    data = exported(lines)
    assert data.split(b"\n")[:-2] == lines
    last = msgspec.json.decode(data.split(b"\n")[-2])
    assert last["kind"] == "head"
    assert last["head"] == {"n": len(lines) - 1, "hash": history(lines).head.hash}


def test_an_export_read_again_is_the_same_history() -> None:
    lines = failing_run()
    read = read_export(exported(lines), "digits.jsonl")
    assert [link.data for link in read.links] == lines
    assert (read.run, read.damages, read.strays) == ("digits-7k2", (), ())
    assert read.heads[0].head == read.head
    assert b"".join(export_lines(read)) == exported(lines)
    second = read.links[1].where
    assert (second.file, second.start, second.end) == (
        "digits.jsonl",
        len(lines[0]) + 1,
        len(lines[0]) + 1 + len(lines[1]),
    )


@pytest.mark.parametrize("keep", [0, 1, 5])
def test_a_file_cut_between_lines_is_truncated(keep: int) -> None:
    data = b"".join(line + b"\n" for line in failing_run()[:keep])
    read = read_export(data, "cut.jsonl")
    assert len(read.links) == keep
    assert flaws(read) == {"truncated"}


def test_a_file_cut_within_a_line_names_the_byte_range() -> None:
    lines = failing_run()
    data = exported(lines)[: len(lines[0]) + 1 + 40]
    read = read_export(data, "cut.jsonl")
    assert len(read.links) == 1
    middle = read.damages[0]
    assert (middle.flaw, middle.where and (middle.where.start, middle.where.end)) == (
        "truncated",
        (len(lines[0]) + 1, len(data)),
    )


def test_a_last_line_without_its_newline_is_truncated() -> None:
    assert "truncated" in flaws(read_export(exported(failing_run())[:-1], "cut.jsonl"))


def test_a_last_line_of_another_export_is_found() -> None:
    whole = exported(failing_run())
    other = exported(failing_run()[:-1]).split(b"\n")[-2]
    read = read_export(whole[: whole.rstrip().rfind(b"\n") + 1] + other + b"\n", "mixed.jsonl")
    assert flaws(read) == {"head"}
    assert read.heads[0].head != read.head


def test_two_exports_in_one_file_are_found() -> None:
    data = exported(failing_run())
    read = read_export(data + data, "twice.jsonl")
    assert read.strays
    assert flaws(read) == {"head"}
