"""Pickling a training function for ranks that may not find the module it stands in.

cloudpickle has no types; they are given to it here.
"""

from __future__ import annotations

import importlib
import inspect
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


class _CloudPickle(Protocol):
    """The part of cloudpickle that is used."""

    def dumps(self, obj: object) -> bytes: ...
    def register_pickle_by_value(self, module: ModuleType) -> None: ...
    def unregister_pickle_by_value(self, module: ModuleType) -> None: ...


def pickle_function(function: Callable[..., object]) -> bytes:
    """Pickle a function; one that stands in the user's own module by value, with what it uses of that module."""
    cloudpickle = cast("_CloudPickle", importlib.import_module("cloudpickle"))
    module = inspect.getmodule(function)
    if module is None or module.__name__ == "__main__" or _is_installed(module.__file__):
        return cloudpickle.dumps(function)
    cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(function)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _is_installed(file: str | None) -> bool:
    """Say whether a module's file is where every rank has it: in the standard library or among the packages."""
    if file is None:
        return True
    paths = sysconfig.get_paths()
    return any(Path(file).is_relative_to(paths[name]) for name in ("stdlib", "purelib", "platlib"))
