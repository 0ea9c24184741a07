"""House rules. Each failure says where, what, and what to do instead."""

import ast
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pytest

from support.sources import (
    PURE_BUT_ASYNC,
    Source,
    dotted,
    everything,
    functions,
    imports,
    production,
    tracked_texts,
)

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 50
MATCH_FUNCTION_LINES_MAX = 70
FILE_LINES_MEDIAN_MAX = 150
FILE_LINES_P90_MAX = 300
FUNCTION_LINES_MEDIAN_MAX = 8
FUNCTION_LINES_P90_MAX = 25
ANY_PER_KLOC_MAX = 1.0
IGNORES_PER_KLOC_MAX = 1.0

BROAD_EXCEPT_FILES = ("loop.py", "runner.py", "supervisor.py", "__main__.py")


def report(findings: Iterable[str]) -> None:
    """Fail with all findings at once, one a line."""
    lines = list(findings)
    if lines:
        pytest.fail(f"{len(lines)} finding(s):\n  " + "\n  ".join(lines), pytrace=False)


def at(source: Source, line: int, message: str) -> str:
    """One finding."""
    return f"{source.path}:{line}: {message}"


# --- sizes


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement to the last; a docstring counts."""
    return (node.end_lineno or node.lineno) - node.body[0].lineno + 1


def is_one_match(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is little more than one `match`."""
    return len(node.body) <= 5 and any(isinstance(statement, ast.Match) for statement in node.body)


def percentile_90(values: list[int]) -> int:
    """The value that nine in ten do not exceed."""
    return sorted(values)[math.ceil(len(values) * 0.9) - 1]


def test_no_file_is_too_long() -> None:
    report(
        f"{source.path}: {len(source.lines)} lines, at most {FILE_LINES_MAX}: cut where the subject changes"
        for source in everything()
        if len(source.lines) > FILE_LINES_MAX
    )


def test_no_function_is_too_long() -> None:
    def findings() -> Iterator[str]:
        for source in production():
            for node in functions(source):
                limit = MATCH_FUNCTION_LINES_MAX if is_one_match(node) else FUNCTION_LINES_MAX
                if body_lines(node) > limit:
                    yield at(
                        source,
                        node.lineno,
                        f"{node.name} has {body_lines(node)} lines, at most {limit}: name its parts",
                    )

    report(findings())


@dataclass(frozen=True)
class Figure:
    """A figure of the whole code base and where it must stay."""

    name: str
    measured: float
    limit: float


def figures() -> list[Figure]:
    files = [len(source.lines) for source in production() if source.name != "__init__.py"]
    bodies = [body_lines(node) for source in production() for node in functions(source)]
    return [
        Figure("median lines of a file", statistics.median(files), FILE_LINES_MEDIAN_MAX),
        Figure("lines of nine files in ten", percentile_90(files), FILE_LINES_P90_MAX),
        Figure("median lines of a function", statistics.median(bodies), FUNCTION_LINES_MEDIAN_MAX),
        Figure("lines of nine functions in ten", percentile_90(bodies), FUNCTION_LINES_P90_MAX),
    ]


def test_the_whole_stays_small_grained() -> None:
    report(
        f"{figure.name}: {figure.measured:g}, at most {figure.limit:g}: cut the longest of the newest ones"
        for figure in figures()
        if figure.measured > figure.limit
    )


# --- the pure core

PURE_IMPORT_BANS = {
    "asyncio": "the pure core does not wait: return what to do and let the loop do it",
    "time": "time is an argument (`t`), handed in by the loop",
    "random": "chance is an argument: a seed or a value handed in by the loop",
    "secrets": "chance is an argument: hand the value in",
    "uuid": "new ids are arguments, made by the shell",
    "logging": "the core does not log: a reason belongs into the transition",
    "os": "the core knows no machine: hand the value in",
    "pathlib": "the core reads no files: hand the bytes in, keep paths as strings",
    "socket": "the core has no links: the shell sends and receives",
    "subprocess": "the core starts nothing: it decides that something be started",
    "threading": "the core is functions over frozen values: nothing to lock",
    "nats": "the broker is behind the log port: events/nats",
    "runfold.events.nats": "the broker is behind the log port: take the Protocol instead",
}
PURE_CALL_BANS = {
    "open": "the core reads no files: hand the bytes in",
    "print": "the core does not speak: a reason belongs into the transition",
    "input": "the core does not ask",
    "datetime.now": "time is an argument (`t`, `at`), handed in by the loop",
    "datetime.utcnow": "time is an argument (`t`, `at`), handed in by the loop",
    "datetime.datetime.now": "time is an argument (`t`, `at`), handed in by the loop",
    "datetime.today": "time is an argument (`t`, `at`), handed in by the loop",
    "date.today": "time is an argument (`t`, `at`), handed in by the loop",
}


def pure() -> list[Source]:
    return [source for source in production() if source.is_pure]


def test_the_pure_core_imports_no_clock_chance_or_world() -> None:
    def findings() -> Iterator[str]:
        for source in pure():
            for line, name in imports(source):
                for banned, instead in PURE_IMPORT_BANS.items():
                    excused = banned == "asyncio" and source.matches(*PURE_BUT_ASYNC)
                    if f"{name}.".startswith(f"{banned}.") and not excused:
                        yield at(source, line, f"imports {name}: {instead}")

    report(findings())


def test_the_pure_core_calls_no_clock_chance_or_world() -> None:
    def findings() -> Iterator[str]:
        for source in pure():
            for node in ast.walk(source.tree):
                if isinstance(node, ast.Call) and (instead := PURE_CALL_BANS.get(dotted(node.func))):
                    yield at(source, node.lineno, f"calls {dotted(node.func)}(): {instead}")

    report(findings())


def test_the_pure_core_does_not_wait() -> None:
    report(
        at(source, node.lineno, "async code in the pure core: waiting is a returned value (`wake_at`)")
        for source in pure()
        if not source.matches(*PURE_BUT_ASYNC)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith)
    )


def test_deciding_and_folding_are_functions() -> None:
    report(
        at(source, node.lineno, f"class {node.name}: deciding and folding are free functions of values")
        for source in pure()
        if source.name in ("decide.py", "fold.py", "evolve.py", "observe.py")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
    )


# --- habits everywhere in production


def broad(node: ast.expr | None) -> bool:
    """Whether an except clause catches everything."""
    if node is None:
        return True
    names = node.elts if isinstance(node, ast.Tuple) else [node]
    return any(dotted(name) in ("Exception", "BaseException") for name in names)


def passes_on(handler: ast.ExceptHandler) -> bool:
    """Whether a handler only tidies up and raises again what it caught."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def broad_catches(source: Source) -> Iterator[int]:
    for node in ast.walk(source.tree):
        match node:
            case ast.ExceptHandler() if broad(node.type) and not passes_on(node):
                yield node.lineno
            case ast.Call() if dotted(node.func).endswith("suppress") and any(map(broad, node.args)):
                yield node.lineno


def test_everything_is_caught_only_where_a_bug_must_not_stop_the_rest() -> None:
    report(
        at(
            source,
            line,
            f"a broad except: name the errors, or do it in one of {', '.join(BROAD_EXCEPT_FILES)}",
        )
        for source in production()
        if source.name not in BROAD_EXCEPT_FILES
        for line in broad_catches(source)
    )


def test_the_environment_is_read_in_config_files_only() -> None:
    report(
        at(source, node.lineno, f"{dotted(node)}: read it once in a config.py and hand a frozen object on")
        for source in production()
        if source.name != "config.py"
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and dotted(node) in ("os.environ", "os.environb", "os.getenv", "os.putenv")
    )


def test_production_code_asserts_nothing() -> None:
    report(
        at(source, node.lineno, "assert vanishes with -O: raise an error that says which rule was broken")
        for source in production()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assert)
    )


Rule = Callable[[str], str | None]

OPEN_END = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
NOQA = re.compile(r"#\s*noqa\b(?!:\s*[A-Z]+\d+(\s*,\s*[A-Z]+\d+)*\s+\W*\w)", re.IGNORECASE)
TYPE_IGNORE = re.compile(r"#\s*(type|pyright):\s*ignore\b(?!\[[\w, -]+\]\s*#?\s*\W*\w)")


def open_end(line: str) -> str | None:
    return "an open end: do it, or write it where work is planned" if OPEN_END.search(line) else None


def unexplained_noqa(line: str) -> str | None:
    return "noqa needs its code and a reason: `# noqa: S603  # why`" if NOQA.search(line) else None


def unexplained_ignore(line: str) -> str | None:
    if TYPE_IGNORE.search(line):
        return "an ignored type error needs its code and a reason: `# type: ignore[arg-type]  # why`"
    return None


@pytest.mark.parametrize("rule", [open_end, unexplained_noqa, unexplained_ignore])
def test_comments_leave_nothing_open(rule: Rule) -> None:
    this_file = "tests/architecture/test_tidy.py"
    report(
        at(source, number, message)
        for source in everything()
        if source.path != this_file
        for number, line in enumerate(source.lines, start=1)
        if (message := rule(line))
    )


def test_any_is_rare() -> None:
    kloc = sum(len(source.lines) for source in production()) / 1000
    places = [
        at(source, node.lineno, "Any")
        for source in production()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Name) and node.id == "Any"
    ]
    allowed = max(1, math.floor(kloc * ANY_PER_KLOC_MAX))
    if len(places) > allowed:
        report(
            [
                f"{len(places)} uses of Any, at most {allowed}: use object, a Protocol or a type variable",
                *places,
            ]
        )


def test_ignored_type_errors_are_rare() -> None:
    kloc = sum(len(source.lines) for source in production()) / 1000
    ignore = re.compile(r"#\s*(type|pyright):\s*ignore")
    places = [
        at(source, number, line.strip())
        for source in production()
        for number, line in enumerate(source.lines, start=1)
        if ignore.search(line)
    ]
    allowed = max(1, math.floor(kloc * IGNORES_PER_KLOC_MAX))
    if len(places) > allowed:
        report([f"{len(places)} ignored type errors, at most {allowed}", *places])


# --- limits carry their unit

UNITS = ("_s", "_ms", "_bytes", "_max", "_min", "_count")
CONFIG_CLASS = re.compile(r"(Config|Settings|Limits|Timeouts|Options)$")
UNIT_EXEMPT = {
    "num_workers": "the peer's name; counts ranks",
    "max_failures": "the peer's name; counts failures",
    "controller_failure_limit": "the peer's name; counts failures",
    "max_preemption_failures": "named like the peer's budgets; counts failures",
    "max_hangs": "named like the peer's budgets; counts hangs",
    "num_to_keep": "the peer's name; counts checkpoints",
    "checkpoint_frequency": "the peer's name; counts reports",
    "reset_after_progress": "named like the peer's budgets; counts steps",
    "repeat_limit": "named like the peer's budgets; counts equal failures",
    "node_exclude_after": "named like the peer's budgets; counts failures of a node",
    "min_workers": "named like num_workers",
    "max_workers": "named like num_workers",
    "priority": "an order, not an amount",
    "port": "an address, not an amount",
    "v": "a version",
}
NUMERIC = {"int", "float"}
# The broker's own names for its own settings.
FOREIGN_NAMES = ("events/nats/api.py",)


def is_numeric(annotation: ast.expr) -> bool:
    """`int`, `float`, or a union in which nothing else but None stands beside them."""
    if isinstance(annotation, ast.BinOp):
        return is_numeric(annotation.left) or is_numeric(annotation.right)
    return isinstance(annotation, ast.Name) and annotation.id in NUMERIC


def test_numeric_settings_end_in_their_unit() -> None:
    report(
        at(source, field.lineno, f"{node.name}.{field.target.id}: end it in one of {' '.join(UNITS)}")
        for source in production()
        if source.path not in FOREIGN_NAMES
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and CONFIG_CLASS.search(node.name)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if is_numeric(field.annotation) and not field.target.id.endswith(UNITS) and field.target.id not in UNIT_EXEMPT
    )


# --- leftovers

LEFTOVERS = {
    r"(?<![\w.])/(work|root)/[a-z.]": "a path of somebody's machine",
    r"(?<![\w.])/home/[a-z]": "a path of somebody's machine",
    r"\bpypi\.org\b|\bpythonhosted\.org\b|\bnpmjs\.(org|com)\b|--(extra-)?index-url": "a registry's host",
    r"^(<{7}|>{7}) ": "a merge conflict",
    r"\bbreakpoint\(\)|\bpdb\.set_trace\b": "a debugger",
    r"\b[Ii]ssue #?\d": "a number that means nothing outside the tracker",
}


@pytest.mark.parametrize("pattern", LEFTOVERS)
def test_nothing_is_left_lying_about(pattern: str) -> None:
    found = re.compile(pattern, re.MULTILINE)
    report(
        f"{path}: {match.group(0)!r}: {LEFTOVERS[pattern]}"
        for path, text in tracked_texts()
        if path not in ("LICENSE", "tests/architecture/test_tidy.py")
        for match in found.finditer(text)
    )


def test_every_module_is_used() -> None:
    """A module that nothing imports and no command names is dead."""
    text_of = {source.module: source.text for source in everything()}
    used = {name for source in everything() for _, name in imports(source)}

    def is_used(source: Source) -> bool:
        module = source.module
        return any(name == module or name.startswith(module + ".") for name in used) or any(
            module in text for other, text in text_of.items() if other != module
        )

    report(
        f"{source.path}: nothing imports {source.module}: use it or remove it"
        for source in production()
        if source.name not in ("__init__.py", "__main__.py") and not is_used(source)
    )
