"""Making a forked process look like a program that was started in a job's working directory, with its environment."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from runfold.workers.config import apply_environment
from runfold.workers.errors import LoadError
from runfold.workers.processes import name_process


def become(name: str, env: Mapping[str, str], working_dir: str | None, program: str) -> None:
    """Take on a name, an environment, a working directory; `program` is what `sys.argv[0]` says."""
    name_process(name)
    apply_environment(env)
    if working_dir is not None:
        try:
            os.chdir(working_dir)
        except OSError as error:
            raise LoadError(f"the working directory {working_dir} cannot be entered: {error.strerror}") from None
    sys.path.insert(0, str(Path.cwd()))
    importlib.invalidate_caches()
    sys.argv = [program]
    # What was forked is the fork server's program: pickles and subprocesses must not take it for the user's.
    sys.modules["__main__"] = ModuleType("__main__")
