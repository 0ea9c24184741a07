"""The one place of `workers/` that touches the process environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

_READ_AT_START: Final = ("PYTHON", "LD_", "DYLD_", "MALLOC_", "GLIBC_TUNABLES")
"""Variables that interpreter, loader or libc read once, when a program starts: a fork is too late for them."""

_OWN_SECRETS: Final = ("RUNFOLD_SERVER", "RUNFOLD_WEBHOOK_SECRET")
"""A server's address may hold a password."""


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


def forget_secrets() -> None:
    """Take what could hold runfold's own credentials out of this process's environment, before ranks inherit it."""
    for name in _OWN_SECRETS:
        os.environ.pop(name, None)


def missing_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return which of these variables are not set in this process's environment."""
    return tuple(name for name in names if name not in os.environ)


def is_set(name: str) -> bool:
    """Whether a variable is set in this process's environment."""
    return name in os.environ


@contextmanager
def environment(env: Mapping[str, str]) -> Iterator[None]:
    """Set variables in this process for as long as the block lasts."""
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def value_of(name: str) -> str | None:
    """Return a variable of this process's environment; None when it is not set."""
    return os.environ.get(name)


def quiet_ray() -> None:
    """Have Ray send no usage statistics from a cluster that is started here, unless somebody has asked for them."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def values_of(names: Iterable[str]) -> dict[str, str]:
    """Return these variables of this process's environment, as far as they are set."""
    return {name: os.environ[name] for name in names if name in os.environ}
