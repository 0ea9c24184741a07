"""The repository seen as text and syntax trees, for the tests that hold the code to its house rules."""

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("events", "controller", "workers", "replay")

# What touches the world in controller/; every other file of it is pure.
CONTROLLER_SHELL = (
    "controller/__main__.py",
    "controller/config.py",
    "controller/ears.py",
    "controller/host.py",
    "controller/intake.py",
    "controller/latest.py",
    "controller/leases.py",
    "controller/links.py",
    "controller/loop.py",
    "controller/main.py",
    "controller/owners.py",
    "controller/patience.py",
    "controller/ports.py",
    "controller/seat.py",
    "controller/showing.py",
    "controller/takeover.py",
    "controller/vigil.py",
    "controller/wiring.py",
)

# The log is a port that somebody waits on: its Protocol and its memory form are asynchronous, and still draw
# no time, no random number and no file.
PURE_BUT_ASYNC = ("events/log.py", "events/memory.py", "events/log/*.py")


@dataclass(frozen=True)
class Source:
    """One Python file: its path from the root, its text, its tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """The file's own name."""
        return PurePosixPath(self.path).name

    @property
    def lines(self) -> list[str]:
        """The text, cut at line ends."""
        return self.text.splitlines()

    @property
    def module(self) -> str:
        """The dotted name under which the file is imported; the path itself outside the package."""
        parts = PurePosixPath(self.path).with_suffix("").parts
        if parts[0] == "src":
            parts = parts[1:]
        elif parts[0] in FOLDERS:
            parts = ("runfold", *parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def matches(self, *patterns: str) -> bool:
        """Whether the path is one of these, `*` standing for anything within one folder."""
        return any(PurePosixPath(self.path).match(pattern) for pattern in patterns)

    @property
    def is_pure(self) -> bool:
        """Whether the file belongs to the pure core."""
        if self.path.startswith("events/"):
            return not self.path.startswith("events/nats/")
        return self.path.startswith("controller/") and not self.matches(*CONTROLLER_SHELL)


def _python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "__pycache__" not in path.parts:
                yield path


def _read(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    return Source(path.relative_to(ROOT).as_posix(), text, ast.parse(text, filename=str(path)))


@cache
def production() -> tuple[Source, ...]:
    """Every Python file that is installed, each once, by the path where it stands."""
    own = [path for path in _python_files("src/runfold") if not _under_link(path)]
    return tuple(_read(path) for path in [*_python_files(*FOLDERS), *own])


def _under_link(path: Path) -> bool:
    return path.relative_to(ROOT / "src/runfold").parts[0] in FOLDERS


@cache
def everything() -> tuple[Source, ...]:
    """Production code, tests, examples, benchmarks, and what makes the documents."""
    return production() + tuple(_read(path) for path in _python_files("tests", "examples", "benchmarks", "docs"))


@cache
def tracked_texts() -> tuple[tuple[str, str], ...]:
    """Path and text of every file under version control that is text; of every source file without git."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    names = [name for name in listing.stdout.split("\0") if name]
    paths = [ROOT / name for name in names] if names else [ROOT / source.path for source in everything()]
    found: list[tuple[str, str]] = []
    for path in paths:
        if path.is_symlink() or not path.is_file():
            continue
        try:
            found.append((path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return tuple(found)


def functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a file, nested ones too."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a chain of attributes; empty when it starts from anything but a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported anywhere in the file: `from a import b` gives `a.b`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
