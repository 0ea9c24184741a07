"""Each house rule finds what it is there for, and lets pass what it should."""

import ast
import re

import pytest

from support import rules
from support.sources import Source

LONG_FUNCTION = "def f():\n" + "    x = 1\n" * (rules.FUNCTION_LINES_MAX + 1)
ONE_MATCH = "def f(x):\n    match x:\n" + "        case 1:\n            return 1\n" * 30
LONG_FILE = "x = 1\n" * (rules.FILE_LINES_MAX + 1)

BROKEN = [
    (rules.short_files, LONG_FILE),
    (rules.short_functions, LONG_FUNCTION),
    (rules.pure_imports, "import time"),
    (rules.pure_imports, "from asyncio import sleep"),
    (rules.pure_imports, "def f():\n    from random import random"),
    (rules.pure_imports, "from runfold.events.nats.log import JetStreamLog"),
    (rules.pure_imports, "from runfold.events import nats"),
    (rules.pure_calls, "at = datetime.now(UTC)"),
    (rules.pure_calls, "data = open('x').read()"),
    (rules.pure_waits, "async def f():\n    pass"),
    (rules.free_functions, "class Decider:\n    pass"),
    (rules.named_errors, "try:\n    f()\nexcept Exception as error:\n    print(error)"),
    (rules.named_errors, "try:\n    f()\nexcept:\n    pass"),
    (rules.named_errors, "try:\n    f()\nexcept (OSError, BaseException):\n    pass"),
    (rules.named_errors, "with contextlib.suppress(Exception):\n    f()"),
    (rules.environment_in_config, "value = os.environ['X']"),
    (rules.environment_in_config, "value = os.getenv('X')"),
    (rules.no_asserts, "assert x"),
    (rules.units_last, "class LoopConfig:\n    timeout: float = 1"),
    (rules.units_last, "class Limits:\n    size: int | None = None"),
    (rules.closed_comments, "x = 1  # TODO: y"),
    (rules.closed_comments, "x = 1  # noqa"),
    (rules.closed_comments, "x = 1  # noqa: S603"),
    (rules.closed_comments, "x = 1  # type: ignore"),
    (rules.closed_comments, "x = 1  # type: ignore[arg-type]"),
    (rules.closed_comments, "x = 1  # pyright: ignore"),
]
KEPT = [
    (rules.short_functions, ONE_MATCH),
    (rules.pure_imports, "from datetime import datetime\nimport timeit\nfrom runfold.events.natural import x"),
    (rules.pure_calls, "at = datetime.fromisoformat(text)\nself.open()"),
    (rules.named_errors, "try:\n    f()\nexcept BaseException:\n    g()\n    raise"),
    (rules.named_errors, "try:\n    f()\nexcept OSError:\n    pass"),
    (rules.units_last, "class LoopConfig:\n    timeout_s: float = 1\n    name: str = ''\n    num_workers: int = 1"),
    (rules.units_last, "class Point:\n    x: int"),
    (rules.closed_comments, "x = 1  # noqa: S603  # the command is ours"),
    (rules.closed_comments, "x = 1  # type: ignore[arg-type]  # msgspec types it too narrowly"),
]


def source(text: str) -> Source:
    return Source("controller/decide.py", text, ast.parse(text))


@pytest.mark.parametrize(("rule", "text"), BROKEN)
def test_a_broken_rule_is_found(rule: rules.Rule, text: str) -> None:
    assert list(rule(source(text)))


@pytest.mark.parametrize(("rule", "text"), KEPT)
def test_a_kept_rule_is_silent(rule: rules.Rule, text: str) -> None:
    assert list(rule(source(text))) == []


def test_every_rule_is_shown_broken() -> None:
    assert {rule for rule, _ in BROKEN} == {*rules.EVERYWHERE, *rules.PRODUCTION, *rules.PURE}


@pytest.mark.parametrize(
    "text", ["open /work/x", "/root/.venv", "see /home/ann", "https://pypi.org/simple", "breakpoint()", "issue 7"]
)
def test_a_leftover_is_found(text: str) -> None:
    assert any(re.search(pattern, text, re.MULTILINE) for pattern in rules.LEFTOVERS)


@pytest.mark.parametrize("text", ["src/workers/x", "a/work/b", "the issue is", "roots"])
def test_a_harmless_text_is_no_leftover(text: str) -> None:
    assert not any(re.search(pattern, text, re.MULTILINE) for pattern in rules.LEFTOVERS)
