"""What a child process is told in the first line of its standard input."""

from __future__ import annotations

import msgspec


class ControllerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """For the controller: its user's address, the namespace, the data directory, the name of this host."""

    url: str
    namespace: str
    data_dir: str
    host: str


class SupervisorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """For the supervisor: its user's address, the namespace, the data directory, and its pool."""

    url: str
    namespace: str
    data_dir: str
    pool: str
    node: str
    slots: int
    storage_dir: str
