"""Subjects are built and parsed in one place; nothing from outside can widen one."""

from __future__ import annotations

import pytest

from runfold.events.subjects import FactSubject, RequestSubject, Subjects


def test_what_is_built_can_be_parsed_again() -> None:
    names = Subjects()
    assert names.parse_inbox(names.fact("r1", 3, "node-a")) == FactSubject(run="r1", attempt=3, source="node-a")
    assert names.parse_inbox(names.request("r1", "abort")) == RequestSubject(run="r1", verb="abort")
    assert names.parse_output(names.output("r1", 2, 7)) == ("r1", 2, 7)
    assert names.run_of(names.assignment("r1")) == "r1"


@pytest.mark.parametrize("part", ["", "a.b", "*", ">", "a b", "a\n", "x" * 129, "ü"])
def test_a_part_that_would_break_a_subject_is_refused(part: str) -> None:
    names = Subjects()
    for build in (names.log, names.assignment, names.folded, lambda p: names.fact("r", 1, p)):
        if part == "*" and build == names.assignment:
            continue
        with pytest.raises(ValueError, match="cannot be part of a subject"):
            build(part)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "x",
        "other.run.r.fact.1.a",
        "runfold.run.r.fact.x.a",
        "runfold.run.r.fact.1",
        "runfold.run.r.log.1",
        "a.b.c.d.e",
    ],
)
def test_foreign_subjects_are_no_inbox_subjects(subject: str) -> None:
    assert Subjects().parse_inbox(subject) is None


def test_a_namespace_prefixes_subjects_and_names_of_streams() -> None:
    names = Subjects("lab2")
    assert names.jobs == "lab2.jobs.submit"
    assert names.stream("LOG") == "LAB2_LOG"
    assert names.parse_inbox("runfold.run.r.request.abort") is None
    with pytest.raises(ValueError, match="no namespace"):
        Subjects("a.b")
