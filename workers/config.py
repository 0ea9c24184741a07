"""The one place of `workers/` that touches the process environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

_READ_AT_START: Final = ("PYTHON", "LD_", "DYLD_", "MALLOC_", "GLIBC_TUNABLES")
"""Variables that interpreter, loader or libc read once, when a program starts: a fork is too late for them."""


def apply_environment(env: Mapping[str, str]) -> None:
    """Set the variables of a job in this process."""
    os.environ.update(env)


def environment_with(env: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with the variables of a job over it."""
    return {**os.environ, **env}


def needs_exec(env: Mapping[str, str]) -> bool:
    """Whether `env` changes a variable that only a newly started program would notice."""
    changed = (name for name, value in env.items() if os.environ.get(name) != value)
    return any(name.startswith(_READ_AT_START) for name in changed)
