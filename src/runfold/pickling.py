"""Pickling a training function for ranks that may not find the module it stands in.

cloudpickle has no types; they are given to it here.
"""

from __future__ import annotations

import importlib
import inspect
import io
import sysconfig
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Final, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Reduced = tuple[object, tuple[object, ...]]

_NO_FILE: Final = "<dynamic-code>"
"""What newer versions of cloudpickle write for the file in which a function stands."""


class _Pickler(Protocol):
    dispatch_table: Mapping[type, Callable[[CodeType], Reduced]]

    def __init__(self, file: io.BytesIO) -> None: ...
    def dump(self, obj: object) -> None: ...


class _CloudPickle(Protocol):
    """The part of cloudpickle that is used."""

    Pickler: type[_Pickler]

    def register_pickle_by_value(self, module: ModuleType) -> None: ...
    def unregister_pickle_by_value(self, module: ModuleType) -> None: ...


def pickle_function(function: Callable[..., object]) -> bytes:
    """Pickle a function; one that stands in the user's own module by value, with what it uses of that module."""
    cloudpickle = cast("_CloudPickle", importlib.import_module("cloudpickle"))
    module = inspect.getmodule(function)
    if module is None or module.__name__ == "__main__" or _is_installed(module.__file__):
        return _dumps(cloudpickle, function)
    cloudpickle.register_pickle_by_value(module)
    try:
        return _dumps(cloudpickle, function)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _dumps(cloudpickle: _CloudPickle, function: object) -> bytes:
    """Pickle with the names of files kept: a traceback of a rank must show where its user's code stands."""
    reduce_code = cloudpickle.Pickler.dispatch_table[CodeType]

    def with_file(code: CodeType) -> Reduced:
        make, parts = reduce_code(code)
        return make, tuple(code.co_filename if part == _NO_FILE else part for part in parts)

    # The table is read when a pickler is made, so it must be its class's.
    table = {**cloudpickle.Pickler.dispatch_table, CodeType: with_file}
    kind = cast("type[_Pickler]", type("_FilesKept", (cloudpickle.Pickler,), {"dispatch_table": table}))
    buffer = io.BytesIO()
    kind(buffer).dump(function)
    return buffer.getvalue()


def _is_installed(file: str | None) -> bool:
    """Say whether a module's file is where every rank has it: in the standard library or among the packages."""
    if file is None:
        return True
    paths = sysconfig.get_paths()
    return any(Path(file).is_relative_to(paths[name]) for name in ("stdlib", "purelib", "platlib"))
