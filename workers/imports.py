"""What user code has imported that is installed, and so may be imported for it in advance.

Installed is what lies where packages are installed, and what belongs to Python or runfold. The user's own modules do
not: they are executed in each rank anew, so that their state, their seeds, what they print, their errors and what has
changed in them since are those of that rank.
"""

from __future__ import annotations

import functools
import os
import site
import sys
import sysconfig
import time
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Final

from runfold.workers.limits import WARM_STAMPS_FRESH_S

_OF_PYTHON: Final = ("built-in", "frozen")
_PROGRAM: Final = ("__main__", "__mp_main__")


@functools.cache
def places() -> tuple[str, ...]:
    """Return the directories in which packages are installed, each with a separator at its end."""
    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [*site.getsitepackages(), site.getusersitepackages()]
    both = [*found, *map(os.path.realpath, found)]
    return tuple(dict.fromkeys(path.rstrip(os.sep) + os.sep for path in both))


def is_installed(name: str, module: ModuleType) -> bool:
    """Whether a module can be imported by its name, from an installed package."""
    spec = getattr(module, "__spec__", None)
    if spec is None or spec.name != name:
        return False
    file = getattr(module, "__file__", None)
    if file is None:
        return spec.origin in _OF_PYTHON
    return _is_ours(name) or str(file).startswith(places())


def is_users(name: str, module: ModuleType) -> bool:
    """Whether a module is from a file that is not installed."""
    file = getattr(module, "__file__", None)
    # Some libraries make modules of their own, from no file or from one that they do not name in full.
    if file is None or not Path(str(file)).is_absolute() or name in _PROGRAM:
        return False
    return not _is_ours(name) and not str(file).startswith(places())


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == "runfold"


def new_modules(before: Collection[str]) -> dict[str, ModuleType]:
    """Return the modules that are imported now and are not among `before`, in the order in which they were."""
    # Another thread may import meanwhile. Some libraries put what is no module there.
    now: list[tuple[str, object]] = list(sys.modules.items())
    return {name: module for name, module in now if name not in before and isinstance(module, ModuleType)}


def newly_installed(before: Collection[str]) -> list[str]:
    """Return the names of the installed modules that were imported since."""
    return [name for name, module in new_modules(before).items() if is_installed(name, module)]


class Stamps:
    """The files of some modules as they were: a library that is installed anew must be imported anew."""

    def __init__(self, modules: Collection[ModuleType]) -> None:
        files = {str(file) for module in modules if (file := getattr(module, "__file__", None)) is not None}
        self._were = {file: _stamp(file) for file in files}
        self._found: str | None = None
        self._looked_s = time.monotonic()

    def changed(self) -> str | None:
        """Return a file that is not what it was; looked at again after `warm_stamps_fresh_s`."""
        now = time.monotonic()
        if self._found is None and now >= self._looked_s + WARM_STAMPS_FRESH_S:
            self._looked_s = now
            self._found = next((file for file, was in self._were.items() if _stamp(file) != was), None)
        return self._found


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
