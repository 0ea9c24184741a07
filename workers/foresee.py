"""What loading an entry point will import of installed packages, told from its source: nothing is executed.

A guess for the first ranks of a run, whose imports nobody has seen yet. What is missed is imported by the ranks, which
tell it; what is too much is imported in vain.
"""

from __future__ import annotations

import ast
import os.path
import pickletools
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from runfold.workers.imports import places
from runfold.workers.limits import FORESEEN_FILES_MAX_COUNT, FORESEEN_SOURCE_MAX_BYTES
from runfold.workers.link import Start

_BLOB: Final = "blob:"
_BACKENDS: Final = {"torch": ("torch", "torch.distributed")}
"""What a backend of runfold's own imports."""


def foreseen(start: Start) -> list[str]:
    """Return the installed modules, Python's own aside, that a rank will import while it loads its entry point."""
    names = [*_of_entry(start), *_BACKENDS.get(start.backend.kind, ())]
    return [name for name in dict.fromkeys(names) if name.partition(".")[0] not in sys.modules and _is_package(name)]


def _of_entry(start: Start) -> Iterator[str]:
    if start.entrypoint.startswith(_BLOB):
        yield from _of_pickle(start.blob or b"")
        return
    working_dir = Path(start.working_dir or ".")
    source = start.entrypoint.rpartition(":")[0]
    if source.endswith(".py"):
        file = working_dir / source
        yield from _of_files([file], [file.parent, working_dir])
    elif own := _own(source, [working_dir]):
        yield from _of_files(own, [working_dir])
    else:
        yield source


def _of_files(files: Iterable[Path], folders: list[Path]) -> Iterator[str]:
    """Yield what these files import, and what those of the user's own that they import do."""
    waiting, seen = list(files), set[Path]()
    while waiting and len(seen) < FORESEEN_FILES_MAX_COUNT:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        for name in imports_of(_read(file)):
            own = _own(name, folders)
            if own:
                waiting.extend(own)
            else:
                yield name


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(FORESEEN_SOURCE_MAX_BYTES)
    except (OSError, ValueError):
        return b""


def imports_of(source: bytes) -> Iterator[str]:
    """Yield the modules that a source imports when it is executed itself, functions not called."""
    try:
        nodes: list[ast.AST] = [ast.parse(source)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # The rank will say so.
        return
    while nodes:
        match nodes.pop():
            case ast.Import(names=names):
                yield from (one.name for one in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield module
                # Each may be a module of the package as well.
                yield from (f"{module}.{one.name}" for one in names if one.name != "*")
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                pass
            case node:
                nodes.extend(reversed(list(ast.iter_child_nodes(node))))


def _own(name: str, folders: list[Path]) -> list[Path]:
    """Return the files of a module of the user's own and of the packages it is in; none when it is not in `folders`."""
    for folder in folders:
        found: list[Path] = []
        at = folder
        for part in name.split("."):
            files = (at / f"{part}.py", at / part / "__init__.py")
            at /= part
            # Not the methods of Path: they raise for names that no file can have, and where nobody may look.
            found += [file for file in files if os.path.isfile(file)]  # noqa: PTH113  # see above
        if found or os.path.isdir(folder / name.partition(".")[0]):  # noqa: PTH112  # see above
            return found
    return []


def _is_package(name: str) -> bool:
    """Whether the package of a module is installed, and not Python's own."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or not top.isidentifier():
        return False
    try:
        spec = PathFinder.find_spec(top)
    except (ImportError, ValueError, OSError):
        return False
    return spec is not None and spec.origin is not None and spec.origin.startswith(places())


def _of_pickle(data: bytes) -> Iterator[str]:
    """Yield the modules that a pickle of cloudpickle's names: as themselves, or as those of classes and functions."""
    if len(data) > FORESEEN_SOURCE_MAX_BYTES:
        return
    words: list[str] = []
    kept: dict[int, str] = {}
    try:
        for opcode, argument, _ in pickletools.genops(data):
            match opcode.name:
                case "SHORT_BINUNICODE" | "BINUNICODE":
                    words.append(str(argument))
                case "MEMOIZE":
                    kept[len(kept)] = words[-1] if words else ""
                case "BINGET" | "LONG_BINGET":
                    words.append(kept.get(int(str(argument)), ""))
                case "STACK_GLOBAL" if len(words) > 1:
                    yield words[-2]
                    words.append("")
                case "TUPLE1" if words:
                    # The one argument of a call: a module is pickled as the call of what imports it.
                    yield words[-1]
                case "GLOBAL":
                    yield str(argument).partition(" ")[0]
                case _:
                    pass
    except ValueError:
        return
