"""The code holds to the house rules of `support.rules`; each failure says where, what, and what to do instead."""

import ast
import math
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from support import rules
from support.sources import Source, everything, functions, imports, production, tracked_texts

FILE_LINES_MEDIAN_MAX = 150
FILE_LINES_P90_MAX = 300
FUNCTION_LINES_MEDIAN_MAX = 8
FUNCTION_LINES_P90_MAX = 25
ANY_PER_KLOC_MAX = 1.0
IGNORES_PER_KLOC_MAX = 1.0


def report(findings: Iterable[str]) -> None:
    """Fail with all findings at once, one a line."""
    lines = list(findings)
    if lines:
        pytest.fail(f"{len(lines)} finding(s):\n  " + "\n  ".join(lines), pytrace=False)


def hold(rule: rules.Rule, sources: Iterable[Source]) -> None:
    """Fail with everything that a rule finds."""
    report(f"{source.path}:{line}: {message}" for source in sources for line, message in rule(source))


@pytest.mark.parametrize("rule", rules.EVERYWHERE)
def test_all_code(rule: rules.Rule) -> None:
    shown_on_purpose = rules.NAMES_LEFTOVERS
    hold(rule, (source for source in everything() if source.path not in shown_on_purpose))


@pytest.mark.parametrize("rule", rules.PRODUCTION)
def test_production_code(rule: rules.Rule) -> None:
    hold(rule, production())


@pytest.mark.parametrize("rule", rules.PURE)
def test_the_pure_core(rule: rules.Rule) -> None:
    hold(rule, (source for source in production() if source.is_pure))


@dataclass(frozen=True)
class Figure:
    """A figure of the whole code base and where it must stay."""

    name: str
    measured: float
    limit: float


def percentile_90(values: list[int]) -> int:
    """The value that nine in ten do not exceed."""
    return sorted(values)[math.ceil(len(values) * 0.9) - 1]


def test_the_whole_stays_small_grained() -> None:
    files = [len(source.lines) for source in production() if source.name != "__init__.py"]
    bodies = [rules.body_lines(node) for source in production() for node in functions(source)]
    figures = [
        Figure("median lines of a file", statistics.median(files), FILE_LINES_MEDIAN_MAX),
        Figure("lines of nine files in ten", percentile_90(files), FILE_LINES_P90_MAX),
        Figure("median lines of a function", statistics.median(bodies), FUNCTION_LINES_MEDIAN_MAX),
        Figure("lines of nine functions in ten", percentile_90(bodies), FUNCTION_LINES_P90_MAX),
    ]
    report(
        f"{figure.name}: {figure.measured:g}, at most {figure.limit:g}: cut the longest of the newest ones"
        for figure in figures
        if figure.measured > figure.limit
    )


def at_most(per_kloc: float, what: str, places: list[str]) -> None:
    """Fail when there are more places than so many in a thousand lines of production code."""
    kloc = sum(len(source.lines) for source in production()) / 1000
    allowed = max(1, math.floor(kloc * per_kloc))
    if len(places) > allowed:
        report([f"{len(places)} times {what}, at most {allowed} in {kloc:.1f} kLOC", *places])


def test_any_is_rare() -> None:
    places = [
        f"{source.path}:{node.lineno}: use object, a Protocol or a type variable"
        for source in production()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Name) and node.id == "Any"
    ]
    at_most(ANY_PER_KLOC_MAX, "Any", places)


def test_ignored_type_errors_are_rare() -> None:
    places = [
        f"{source.path}:{number}: {line.strip()}"
        for source in production()
        for number, line in enumerate(source.lines, start=1)
        if rules.IGNORE.search(line)
    ]
    at_most(IGNORES_PER_KLOC_MAX, "an ignored type error", places)


@pytest.mark.parametrize("pattern", rules.LEFTOVERS)
def test_nothing_is_left_lying_about(pattern: str) -> None:
    found = re.compile(pattern, re.MULTILINE)
    report(
        f"{path}: {match.group(0)!r}: {rules.LEFTOVERS[pattern]}"
        for path, text in tracked_texts()
        if path not in rules.NAMES_LEFTOVERS
        for match in found.finditer(text)
    )


# What production itself does not import, and why it is there all the same.
UNUSED_ON_PURPOSE = {
    "events/memory.py": "the log port's second implementation, for tests and simulations",
    "workers/pools/slices.py": "a plan for TPU slices: there are none here, and it is held against its table",
}


def test_every_module_is_used() -> None:
    """A module that only tests import is dead: nothing imports it, and no command names it."""
    sources = [source for source in everything() if not source.path.startswith("tests/")]
    used = {name for source in sources for _, name in imports(source)}

    def is_used(module: str) -> bool:
        imported = any(f"{name}.".startswith(f"{module}.") for name in used)
        return imported or any(module in source.text for source in sources if source.module != module)

    report(
        f"{source.path}: nothing but tests imports {source.module}: use it or remove it"
        for source in production()
        if source.name not in ("__init__.py", "__main__.py")
        and source.path not in UNUSED_ON_PURPOSE
        and not is_used(source.module)
    )
