"""Each promise of docs/promises.md names tests, and the tests it names are there and run by `make test`."""

import ast
import re
from functools import cache

import pytest

from support.sources import ROOT

PROMISES_COUNT = 16
PROMISE = re.compile(r"^## (?P<number>\d+)\. (?P<name>.+)$", re.MULTILINE)
TEST = re.compile(r"`(?P<file>tests/[\w/]+\.py)::(?P<test>\w+)`")
LEFT_OUT = {"skip", "skipif", "soak", "xfail"}
"""Marks under which a test may be passed over."""


@cache
def text() -> str:
    return (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")


def promises() -> dict[int, list[tuple[str, str]]]:
    """The tests that each promise names, by its number."""
    starts = list(PROMISE.finditer(text()))
    ends = [start.start() for start in starts[1:]] + [len(text())]
    return {
        int(start["number"]): [(one["file"], one["test"]) for one in TEST.finditer(text(), start.end(), end)]
        for start, end in zip(starts, ends, strict=True)
    }


@cache
def marks_in(file: str) -> dict[str, set[str]]:
    """The functions of a file, each with the names of its marks."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {
        node.name: {_last_name(decorator) for decorator in node.decorator_list}
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _last_name(decorator: ast.expr) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.attr if isinstance(called, ast.Attribute) else ""


def test_there_are_sixteen_in_order() -> None:
    assert list(promises()) == list(range(1, PROMISES_COUNT + 1))


@pytest.mark.parametrize("number", range(1, PROMISES_COUNT + 1))
def test_each_names_tests_that_are_there(number: int) -> None:
    named = promises()[number]
    assert named, f"promise {number} names no test"
    missing = [f"{file}::{test}" for file, test in named if not (ROOT / file).is_file() or test not in marks_in(file)]
    assert missing == [], "no such test: name the one that fails when the promise is broken"


def test_none_of_them_is_passed_over() -> None:
    named = [(file, test) for tests in promises().values() for file, test in tests]
    passed_over = [f"{file}::{test}" for file, test in named if marks_in(file)[test] & LEFT_OUT]
    assert passed_over == []


def test_what_is_named_before_the_first_is_there_too() -> None:
    before = text()[: next(PROMISE.finditer(text())).start()]
    assert [test for one in TEST.finditer(before) if (test := one["test"]) not in marks_in(one["file"])] == []
