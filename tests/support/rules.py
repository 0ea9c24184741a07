"""The house rules, each a function from one source file to findings: line and what to do instead."""

import ast
import re
from collections.abc import Callable, Iterator

from support.sources import PURE_BUT_ASYNC, Source, dotted, functions, imports

Finding = tuple[int, str]
Rule = Callable[[Source], Iterator[Finding]]

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 50
MATCH_FUNCTION_LINES_MAX = 70

# --- sizes


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement to the last; a docstring counts."""
    return (node.end_lineno or node.lineno) - node.body[0].lineno + 1


def is_one_match(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is little more than one `match`."""
    return len(node.body) <= 5 and any(isinstance(statement, ast.Match) for statement in node.body)


def short_files(source: Source) -> Iterator[Finding]:
    """A file is cut where its subject changes."""
    if len(source.lines) > FILE_LINES_MAX:
        yield 1, f"{len(source.lines)} lines, at most {FILE_LINES_MAX}: cut it where the subject changes"


def short_functions(source: Source) -> Iterator[Finding]:
    """A function fits on a screen."""
    for node in functions(source):
        limit = MATCH_FUNCTION_LINES_MAX if is_one_match(node) else FUNCTION_LINES_MAX
        if body_lines(node) > limit:
            yield node.lineno, f"{node.name} has {body_lines(node)} lines, at most {limit}: name its parts"


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
TIME_IS_AN_ARGUMENT = "time is an argument (`t`, `at`), handed in by the loop"
PURE_CALL_BANS = {
    "open": "the core reads no files: hand the bytes in",
    "print": "the core does not speak: a reason belongs into the transition",
    "input": "the core does not ask",
    "datetime.now": TIME_IS_AN_ARGUMENT,
    "datetime.utcnow": TIME_IS_AN_ARGUMENT,
    "datetime.today": TIME_IS_AN_ARGUMENT,
    "datetime.datetime.now": TIME_IS_AN_ARGUMENT,
    "datetime.datetime.utcnow": TIME_IS_AN_ARGUMENT,
    "date.today": TIME_IS_AN_ARGUMENT,
}


def pure_imports(source: Source) -> Iterator[Finding]:
    """The pure core imports no clock, chance or world."""
    for line, name in imports(source):
        for banned, instead in PURE_IMPORT_BANS.items():
            excused = banned == "asyncio" and source.matches(*PURE_BUT_ASYNC)
            if f"{name}.".startswith(f"{banned}.") and not excused:
                yield line, f"imports {name}: {instead}"


def pure_calls(source: Source) -> Iterator[Finding]:
    """The pure core calls no clock, chance or world."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and (instead := PURE_CALL_BANS.get(dotted(node.func))):
            yield node.lineno, f"calls {dotted(node.func)}(): {instead}"


def pure_waits(source: Source) -> Iterator[Finding]:
    """The pure core does not wait."""
    if source.matches(*PURE_BUT_ASYNC):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield node.lineno, "async code in the pure core: waiting is a returned value (`wake_at`)"


def free_functions(source: Source) -> Iterator[Finding]:
    """Deciding and folding are functions of values, not methods."""
    if source.name in ("decide.py", "fold.py", "evolve.py", "observe.py"):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                yield node.lineno, f"class {node.name}: deciding and folding are free functions of values"


# --- habits everywhere in production

BROAD_EXCEPT_FILES = ("loop.py", "runner.py", "supervisor.py", "__main__.py")


def is_broad(node: ast.expr | None) -> bool:
    """Whether an except clause catches everything."""
    if node is None:
        return True
    names = node.elts if isinstance(node, ast.Tuple) else [node]
    return any(dotted(name) in ("Exception", "BaseException") for name in names)


def passes_on(handler: ast.ExceptHandler) -> bool:
    """Whether a handler only tidies up and raises again what it caught."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def named_errors(source: Source) -> Iterator[Finding]:
    """Everything is caught only where a bug must not stop the rest."""
    if source.name in BROAD_EXCEPT_FILES:
        return
    message = f"a broad except: name the errors, or do it in one of {', '.join(BROAD_EXCEPT_FILES)}"
    for node in ast.walk(source.tree):
        match node:
            case ast.ExceptHandler() if is_broad(node.type) and not passes_on(node):
                yield node.lineno, message
            case ast.Call() if dotted(node.func).endswith("suppress") and any(map(is_broad, node.args)):
                yield node.lineno, message


def environment_in_config(source: Source) -> Iterator[Finding]:
    """The environment is read in config files only."""
    if source.name == "config.py":
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and dotted(node) in ("os.environ", "os.environb", "os.getenv", "os.putenv"):
            yield node.lineno, f"{dotted(node)}: read it once in a config.py and hand a frozen object on"


def no_asserts(source: Source) -> Iterator[Finding]:
    """Production code asserts nothing."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assert):
            yield node.lineno, "assert vanishes with -O: raise an error that says which rule was broken"


# --- limits carry their unit

UNITS = ("_s", "_ms", "_bytes", "_max", "_min", "_count")
CONFIG_CLASS = re.compile(r"(Config|Settings|Limits|Timeouts|Options)$")
UNIT_EXEMPT = {
    "num_workers": "the peer's name; counts ranks",
    "max_failures": "the peer's name; counts failures",
    "controller_failure_limit": "the peer's name; counts failures",
    "max_preemption_failures": "named like the peer's budgets; counts failures",
    "max_hangs": "named like the peer's budgets; counts hangs",
    "max_concurrent": "a count, named as people say it: so many validations at a time",
    "callback_failure_limit": "named like the peer's budgets; counts what a callback's hooks raised",
    "num_to_keep": "the peer's name; counts checkpoints",
    "upload_failure_limit": "named like the peer's budgets; counts failed uploads in a row",
    "checkpoint_frequency": "the peer's name; counts reports",
    "reset_after_progress": "named like the peer's budgets; counts steps",
    "repeat_limit": "named like the peer's budgets; counts equal failures",
    "node_exclude_after": "named like the peer's budgets; counts failures of a node",
    "min_workers": "named like num_workers",
    "replica_group_size": "a size as in world_size; counts ranks",
    "max_workers": "named like num_workers",
    "slots": "the word of the design; counts places for a rank",
    "priority": "an order, not an amount",
    "port": "an address, not an amount",
    "v": "a version",
}
# The broker's own names for its own settings.
FOREIGN_NAMES = ("events/nats/api.py", "events/nats/blobs.py")


def is_numeric(annotation: ast.expr) -> bool:
    """`int`, `float`, or a union that holds one of them."""
    if isinstance(annotation, ast.BinOp):
        return is_numeric(annotation.left) or is_numeric(annotation.right)
    return isinstance(annotation, ast.Name) and annotation.id in ("int", "float")


def units_last(source: Source) -> Iterator[Finding]:
    """Numeric settings end in their unit."""
    if source.path in FOREIGN_NAMES:
        return
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ClassDef) or not CONFIG_CLASS.search(node.name):
            continue
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_numeric(field.annotation):
                name = field.target.id
                if not name.endswith(UNITS) and name not in UNIT_EXEMPT:
                    yield field.lineno, f"{node.name}.{name}: end it in one of {' '.join(UNITS)}"


# --- comments

OPEN_END = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK)\b")
NOQA = re.compile(r"#\s*noqa\b(?!:\s*[A-Z]+\d+(\s*,\s*[A-Z]+\d+)*\s+\W*\w)", re.IGNORECASE)
IGNORE = re.compile(r"#\s*(type|pyright):\s*ignore\b")
BARE_IGNORE = re.compile(IGNORE.pattern + r"(?!\[[\w, -]+\]\W*\w)")
COMMENT_RULES = (
    (OPEN_END, "an open end: do it, or write it where work is planned"),
    (NOQA, "noqa needs its code and a reason: `# noqa: S603  # why`"),
    (BARE_IGNORE, "an ignored type error needs its code and a reason: `# type: ignore[arg-type]  # why`"),
)


def closed_comments(source: Source) -> Iterator[Finding]:
    """Comments leave nothing open, exemptions have a reason."""
    for number, line in enumerate(source.lines, start=1):
        for pattern, message in COMMENT_RULES:
            if pattern.search(line):
                yield number, message


EVERYWHERE: tuple[Rule, ...] = (short_files, closed_comments)
PRODUCTION: tuple[Rule, ...] = (short_functions, named_errors, environment_in_config, no_asserts, units_last)
PURE: tuple[Rule, ...] = (pure_imports, pure_calls, pure_waits, free_functions)

# --- leftovers, in any text

LEFTOVERS = {
    r"(?<![\w.])/(work|root)/[a-z.]": "a path of somebody's machine",
    r"(?<![\w.])/home/[a-z]": "a path of somebody's machine",
    r"\bpypi\.org\b|\bpythonhosted\.org\b|\bnpmjs\.(org|com)\b|--(extra-)?index-url": "a registry's host",
    r"^(<{7}|>{7}) ": "a merge conflict",
    r"\bbreakpoint\(\)|\bpdb\.set_trace\b": "a debugger",
    r"\b[Ii]ssue #?\d": "a number that means nothing outside the tracker",
}
# Files that must name what the rules look for.
NAMES_LEFTOVERS = ("LICENSE", "tests/support/rules.py", "tests/architecture/test_rules.py")
