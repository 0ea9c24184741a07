"""What a child process is told on its standard input: what it is, in the first line, and when to stop."""

from __future__ import annotations

from typing import Final

import msgspec

from runfold.workers.pools.ray import RayConfig

STOP_WORD: Final = b"stop\n"
"""Ends it in order. An end of the input without it means that the parent has died."""


class ControllerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """For the controller: its user's address, the namespace, the data directory, the name of this host."""

    url: str
    namespace: str
    data_dir: str
    host: str


class SupervisorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """For the supervisor: its user's address, the namespace, the data directory, and its pool.

    `more_nodes` are further nodes of this machine with their slots, `labels` those of nodes. `once`: there will be no
    other supervisor after it. `ray`: its pool is a Ray cluster's, and the nodes are those that are there.
    """

    url: str
    namespace: str
    data_dir: str
    pool: str
    node: str
    slots: int
    storage_dir: str
    more_nodes: dict[str, int] = {}
    labels: dict[str, dict[str, str]] = {}
    once: bool = False
    ray: RayConfig | None = None
