"""What every message is made of: frozen values, their tags, and pointers to what brought something about.

These names are the storage format: a field or a `kind` is never renamed, only added (see `upcast.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"
else:
    # msgspec cannot resolve a recursive alias; at run time any JSON value is accepted here.
    Json = Any

WIRE_VERSION = 1
"""`v` of every message written by this version."""


def snake_case(name: str) -> str:
    """Return the wire tag of a class: `RankFailed` becomes `rank_failed`."""
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


class Value(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A frozen value; fields that hold their default are not written.

    Frozen values are made after what they hold, so they form no cycles: the garbage collector need not look at them,
    and a long log folds in half the time.
    """


class Document(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A frozen value whose fields are all written, for what people read whole (job, status)."""


class Origin(Value, frozen=True, kw_only=True):
    """Where an input came from: sequence in INBOX and place within that message, or the sequence in JOBS."""

    inbox: int | None = None
    k: int = 0
    jobs: int | None = None


class Cause(Value, frozen=True, kw_only=True):
    """What brought a transition about.

    Without `entry` the pointer is into the same entry. Exactly one of `input` and `transition` is set.
    """

    entry: int | None = None
    input: int | None = None
    transition: int | None = None


class Moment(Value, frozen=True, kw_only=True):
    """When something is folded: entry number, the run's clock in seconds, place among the entry's inputs."""

    n: int
    t: float
    k: int = 0


class Unknown(Value, frozen=True, kw_only=True):
    """An input or a transition of a kind this version does not know: kept, never acted on."""

    known_as: str
    raw: bytes


def absolute(cause: Cause, n: int) -> Cause:
    """Return a cause as the state keeps it: with the number of its entry."""
    return cause if cause.entry is not None else Cause(entry=n, input=cause.input, transition=cause.transition)


def relative(cause: Cause, n: int) -> Cause:
    """Return a cause as it stands in entry `n`: without a number when it points into that entry."""
    return cause if cause.entry != n else Cause(input=cause.input, transition=cause.transition)
