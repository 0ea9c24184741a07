"""Requests: wishes about a run, imperative, each with an id that its answer names."""

from __future__ import annotations

from typing import Final

import msgspec

from runfold.events.base import Origin, Value, snake_case


class Request(Value, frozen=True, kw_only=True, tag_field="kind", tag=snake_case):
    """What every request says. `id` is the asker's; the same id is the same request. `by` is who asks, for people."""

    v: int = 1
    id: str
    by: str = ""
    origin: Origin | None = msgspec.field(default=None, name="from")


class AbortRun(Request, frozen=True, kw_only=True):
    """End the run as ABORTED."""

    reason: str = ""


class ResizeRun(Request, frozen=True, kw_only=True):
    """Run on so many ranks."""

    num_workers: int


class CheckpointNow(Request, frozen=True, kw_only=True):
    """Ask the ranks for a checkpoint at their next chance."""


class StopAtCheckpoint(Request, frozen=True, kw_only=True):
    """End the run as FINISHED at its next committed checkpoint."""

    reason: str = ""


class DumpStacks(Request, frozen=True, kw_only=True):
    """Write the stacks of all ranks to blobs named in the log."""


class AdmitNode(Request, frozen=True, kw_only=True):
    """Lift the exclusion of a node."""

    node: str


class NoticePreemption(Request, frozen=True, kw_only=True):
    """Say that nodes will be taken back in `within_s` seconds (None: unknown)."""

    nodes: tuple[str, ...]
    within_s: float | None = None
    reason: str = ""


class CancelPreemption(Request, frozen=True, kw_only=True):
    """Say that the nodes stay after all."""

    nodes: tuple[str, ...]


class Join(Request, frozen=True, kw_only=True):
    """A source without an incarnation asks for one; `boot` tells its processes apart. Its answer is the assignment.

    `after` is the incarnation that the source had when this was asked, 0 for none: a wish that comes late, of a process
    that is gone, does not take the name from the one that has it by now. None asks whatever it is.
    """

    source: str
    boot: str
    after: int | None = None


AnyRequest = (
    AbortRun
    | ResizeRun
    | CheckpointNow
    | StopAtCheckpoint
    | DumpStacks
    | AdmitNode
    | NoticePreemption
    | CancelPreemption
    | Join
)

REQUEST_VERBS: Final[dict[str, type[Request]]] = {
    "abort": AbortRun,
    "resize": ResizeRun,
    "checkpoint": CheckpointNow,
    "stop": StopAtCheckpoint,
    "stacks": DumpStacks,
    "admit": AdmitNode,
    "notice": NoticePreemption,
    "cancel": CancelPreemption,
    "join": Join,
}
"""Last token of the request's subject → its kind."""
