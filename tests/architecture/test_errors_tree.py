"""Each errors.py draws its tree of errors in its docstring; the drawing is the code's."""

import builtins
import importlib
import re
from dataclasses import dataclass
from types import ModuleType

import pytest

from support.sources import production

EXIT_CODE_DEFAULT = 1
MODULES = [source.module for source in production() if source.name == "errors.py"]
LINE = re.compile(r"^(?P<branch>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: \((?P<also>[\w, ]+)\))?(?:\s+(?P<code>\d)\b)?")


@dataclass(frozen=True)
class Drawn:
    """One line of a drawing."""

    name: str
    parent: str | None
    also: frozenset[str]
    code: int | None


def drawing(module: ModuleType) -> list[Drawn]:
    """The lines of the tree: from its root, the first line before a branch, to the last branch."""
    lines = (module.__doc__ or "").splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith(("├", "└"))), None)
    if first is None:
        return []
    path: list[str] = []
    drawn: list[Drawn] = []
    for line in lines[first - 1 :]:
        match = LINE.match(line)
        if match is None or (drawn and not match["branch"]):
            break
        depth = len(match["branch"]) // 4
        also = frozenset(name for name in (match["also"] or "").split(", ") if hasattr(builtins, name))
        code = int(match["code"]) if match["code"] else None
        drawn.append(Drawn(match["name"], path[depth - 1] if depth else None, also, code))
        path[depth:] = [match["name"]]
    return drawn


def defined(module: ModuleType) -> dict[str, type[BaseException]]:
    """The public errors that a module defines."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, BaseException)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }


def test_there_are_trees_to_check() -> None:
    assert MODULES


@pytest.mark.parametrize("name", MODULES)
def test_every_error_is_drawn_where_it_stands(name: str) -> None:
    module = importlib.import_module(name)
    drawn = drawing(module)
    assert drawn, f"{name}: draw the tree of errors in the module's docstring"
    missing = set(defined(module)) - {line.name for line in drawn}
    assert not missing, f"{name}: not drawn: {sorted(missing)}"
    for line in drawn:
        error = getattr(module, line.name, None)
        assert isinstance(error, type), f"{name}: {line.name} is drawn, but does not exist"
        names = {other.name for other in drawn}
        above = next((base.__name__ for base in error.__mro__[1:] if base.__name__ in names), None)
        assert above == line.parent, f"{line.name} stands under {above}, drawn under {line.parent}"


@pytest.mark.parametrize("name", MODULES)
def test_built_in_bases_and_exit_codes_are_as_drawn(name: str) -> None:
    module = importlib.import_module(name)
    for line in drawing(module):
        error = getattr(module, line.name)
        also = {base.__name__ for base in error.__bases__ if hasattr(builtins, base.__name__)}
        also -= {"Exception"}
        assert line.also == also, f"{line.name} is also {sorted(also)}, drawn as {sorted(line.also)}"
        if line.code is not None:
            code = getattr(error, "exit_code", EXIT_CODE_DEFAULT)
            assert code == line.code, f"{line.name} exits with {code}, drawn {line.code}"
