"""A filesystem over a directory that ends a process at its n-th call about one checkpoint, once: a real SIGKILL."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable

KEEPER = "runfold-keeper"
RUNNER = "runfold-runner"
ONE = "checkpoint_000001_1"


class DeadlyFiles(DirFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Calls of the keeper about `ONE` are counted in `marks`; at number `at` the `victim` is killed, once.

    With `held` it is left to the test to kill: it finds the victim's process id in `marks/held`.
    """

    def __init__(self, path: str, marks: str, victim: str, at: int, held: bool = False) -> None:
        super().__init__(path=path, fs=LocalFileSystem())
        self.marks, self.victim, self.at, self.held = Path(marks), victim, at, held

    def _call(self, path: object, call: Callable[[], object]) -> object:
        if ONE not in str(path) or psutil.Process().name() != KEEPER:
            return call()
        if self._count() == self.at:
            found = [psutil.Process(), *psutil.Process().parents()]
            victim = next(one.pid for one in found if one.name() == self.victim)
            self._tell("held" if self.held else "killed", str(victim))
            if not self.held:
                os.kill(victim, signal.SIGKILL)
            signal.pause()
        return call()

    def _count(self) -> int:
        """Return how many calls there were before, and note one more."""
        with (self.marks / "calls").open("a+b") as noting:
            noting.write(b"x")
            return noting.tell() - 1

    def _tell(self, name: str, text: str) -> None:
        """Leave a mark, whole as soon as it is there."""
        new = self.marks / f"{name}.new"
        new.write_text(text, encoding="ascii")
        new.replace(self.marks / name)

    def cat_file(self, path: str, *args: object, **kwargs: object) -> object:
        return self._call(path, lambda: super(DeadlyFiles, self).cat_file(path, *args, **kwargs))

    def pipe_file(self, path: str, *args: object, **kwargs: object) -> object:
        self._call(path, lambda: super(DeadlyFiles, self).pipe_file(path, *args, **kwargs))
        return self._call(path, lambda: None)  # it is there, and nobody knows

    def find(self, path: str, *args: object, **kwargs: object) -> object:
        return self._call(path, lambda: super(DeadlyFiles, self).find(path, *args, **kwargs))

    def exists(self, path: str) -> object:
        return self._call(path, lambda: super(DeadlyFiles, self).exists(path))

    def rm(self, path: object, *args: object, **kwargs: object) -> object:
        return self._call(path, lambda: super(DeadlyFiles, self).rm(path, *args, **kwargs))
