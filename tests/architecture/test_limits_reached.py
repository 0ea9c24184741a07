"""Every limit stands in docs/limits.md with its value and with a test that reaches it, or is told why it need not."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from support.sources import ROOT

PAGE = ROOT / "docs" / "limits.md"
ELSEWHERE = Path(__file__).with_name("limits_elsewhere.txt")
CODE = ("events", "controller", "workers", "replay", "src/runfold")
LIMIT = re.compile(r"[A-Z][A-Z0-9_]*(_MAX|_MAX_COUNT|_MAX_BYTES|_MAX_S|_MAX_CHARS|TIMEOUT_S|_PATIENCE_S|_WITHIN_S)")
WIRE = re.compile(r"^\| `(?P<name>\w+)` \| `(?P<value>[^`]+)` \| [^|]+ \| `(?P<test>[^`]+)` \|$", re.MULTILINE)
QUEUE = re.compile(
    r"^\| \[(?P<file>[^]]+)\]\([^)]+\) \| `(?P<name>\w+)` \| `(?P<value>[^`]+)` \| [^|]+ \| `(?P<test>[^`]+)` \|$",
    re.MULTILINE,
)
KINDS = {"shown"}


class Limit(NamedTuple):
    """A row of the page: what stands where, and the test that reaches it."""

    place: str
    value: str
    test: str


@cache
def limits() -> dict[str, str]:
    """The constants of the code that are limits by their name, as `file:NAME`, each with its value as written."""
    found: dict[str, str] = {}
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if folder == "src/runfold" and path.resolve() != path:
                continue  # a link to one of the others
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                targets = node.targets if isinstance(node, ast.Assign) else []
                value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
                for target in [node.target] if isinstance(node, ast.AnnAssign) else targets:
                    if isinstance(target, ast.Name) and value is not None:
                        found[f"{path.relative_to(ROOT)}:{target.id}"] = ast.unparse(value)
    return found


@cache
def rows() -> tuple[Limit, ...]:
    text = PAGE.read_text(encoding="utf-8")
    wire = [Limit(f"events/limits.py:{row['name']}", row["value"], row["test"]) for row in WIRE.finditer(text)]
    queues = [Limit(f"{row['file']}:{row['name']}", row["value"], row["test"]) for row in QUEUE.finditer(text)]
    return (*wire, *queues)


@cache
def elsewhere() -> dict[str, str]:
    lines = [line for line in ELSEWHERE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {place: kind for kind, place in map(str.split, lines)}


def test_every_limit_is_listed_once() -> None:
    named = {place for place in limits() if LIMIT.fullmatch(place.partition(":")[2])}
    told = {row.place for row in rows()}
    missing = sorted(named - told - elsewhere().keys())
    assert missing == [], "add each to docs/limits.md with the test that reaches it"
    assert sorted(told & elsewhere().keys()) == []


def test_what_is_listed_is_there() -> None:
    assert [row.place for row in rows() if limits().get(row.place) != row.value] == [], (
        "docs/limits.md has another value"
    )
    assert sorted(elsewhere().keys() - limits().keys()) == [], "limits_elsewhere.txt names what is not there"
    assert {kind for kind in elsewhere().values() if kind not in KINDS} == set()


def test_every_test_that_is_named_is_there() -> None:
    missing: list[str] = []
    for row in rows():
        file, _, name = row.test.partition("::")
        tests = _functions(file)
        if name not in tests:
            missing.append(f"{row.place}: {row.test}")
    assert missing == []


def test_the_page_was_read() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ") and "::" in line]
    assert len(rows()) == len(lines) > 70


@cache
def _functions(file: str) -> frozenset[str]:
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
