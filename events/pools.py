"""What is asked of a pool, not of a run, and its answer. Over core NATS: a pool that is not there does not answer."""

from __future__ import annotations

from typing import Final, Literal

from runfold.events.base import Document

LOCAL_POOL: Final = "local"
"""What the pool of one machine is called, unless somebody called it otherwise."""
SLOTS_MAX_COUNT = 4096
"""Slots of one node."""


class SetCapacity(Document, frozen=True, kw_only=True):
    """Let the pool, or one node of it, have so many slots from now on.

    Places that are held beyond that are taken away in `within_s` seconds. Asked again it changes nothing more.
    """

    v: int = 1
    kind: Literal["set_capacity"] = "set_capacity"
    id: str
    slots: int
    node: str | None = None
    within_s: float = 0.0
    by: str = ""


class CapacitySet(Document, frozen=True, kw_only=True):
    """The pool's answer: whether it was done, or why not; its slots by node; the runs that lose places."""

    v: int = 1
    kind: Literal["capacity_set"] = "capacity_set"
    id: str
    done: bool
    reason: str = ""
    nodes: dict[str, int] = {}
    losing: dict[str, tuple[str, ...]] = {}
