"""Pickling a training function for ranks that may not find the module it stands in.

cloudpickle has no types; they are given to it here.
"""

from __future__ import annotations

import importlib
import inspect
import io
import sysconfig
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Final, Protocol, cast

from runfold.unpicklable import FAILURES, unpicklable

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
    return pickle_object(function, function)


def pickle_object(value: object, *whose: object) -> bytes:
    """Pickle a value; what stands in the user's own modules, those of the functions and classes `whose`, by value.

    Raises:
        UsageError: it cannot be pickled; names what is to blame.
    """
    cloudpickle = cast("_CloudPickle", importlib.import_module("cloudpickle"))
    modules = {module.__name__: module for one in whose if (module := inspect.getmodule(one)) is not None}
    own = [module for name, module in modules.items() if name != "__main__" and not _is_installed(module)]
    with ExitStack() as stack:
        for module in own:
            cloudpickle.register_pickle_by_value(module)
            stack.callback(cloudpickle.unregister_pickle_by_value, module)
        try:
            return _dumps(cloudpickle, value)
        except FAILURES as error:
            raise unpicklable(value, error, partial(_dumps, cloudpickle)) from error


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


def _is_installed(module: ModuleType) -> bool:
    """Say whether a module is where every rank has it: in the standard library, among the packages, or our own."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__.partition(".")[0] == "runfold":
        return True
    paths = sysconfig.get_paths()
    return any(Path(file).is_relative_to(paths[name]) for name in ("stdlib", "purelib", "platlib"))
