"""Tasks beside the group: ordered by a transition, done by a runner, ended by a fact, closed by a transition.

A kind of task needs: who orders it and what its end brings about (controller), and who does it (workers). The
assignment says which runner does it; one that is done twice, by two runners, must come to the same.
"""

from __future__ import annotations

from typing import Final, Literal

from runfold.events.base import Cause, Json, Value
from runfold.events.failures import ErrorInfo
from runfold.events.stacks import RankSeen

TaskOutcome = Literal["done", "failed", "timed_out"]
OPEN: Final = "open"
"""Look into the run's storage: mark it, find what an earlier run left."""
SEAL: Final = "seal"
"""Write the manifest of a checkpoint that every rank has passed."""
DELETE: Final = "delete"
"""Delete directories of checkpoints."""
STACKS: Final = "stacks"
"""Look at the ranks of a runner: what they do, and the stacks of their threads."""
DOUBT: Final = "doubt"
"""Mark checkpoints whose files may not belong together."""
VALIDATION: Final = "validation"
"""Validate a checkpoint, by the user's function in a process of its own."""
HOOK: Final = "hook"
"""Ask a gate, in the run's hook process."""
AT_THE_POOL: Final = (VALIDATION, HOOK)
"""Tasks that the supervisor has done: they need no group."""


class Task(Value, frozen=True, kw_only=True):
    """Something beside the group. `source` does it; nobody does while it is empty: nobody is there.

    At `deadline_t` of the run's clock the controller waits no more.
    """

    id: str
    kind: str
    arguments: dict[str, Json] = {}
    deadline_t: float | None = None
    source: str = ""


class SealedAs(Value, frozen=True, kw_only=True):
    """What a seal says: the manifest's digest, the size of all files, the metrics reported with them (packed)."""

    manifest_digest: str
    size_bytes: int
    metrics: dict[str, Json] | None = None


class TaskEnd(Value, frozen=True, kw_only=True):
    """How a task ended, as a fact told it or its deadline did; not acted on yet."""

    outcome: TaskOutcome
    cause: Cause
    value: Json = None
    error: ErrorInfo | None = None
    sealed: SealedAs | None = None
    seen: tuple[RankSeen, ...] = ()


class OpenTask(Value, frozen=True, kw_only=True):
    """A task that is ordered and not closed."""

    task: Task
    cause: Cause
    end: TaskEnd | None = None


def find_task(tasks: tuple[OpenTask, ...], task_id: str) -> OpenTask | None:
    """Return a task that is not closed."""
    return next((one for one in tasks if one.task.id == task_id), None)


def seal_id(name: str) -> str:
    """Return the id of the task that seals a checkpoint."""
    return f"{SEAL}:{name}"


def validation_id(name: str) -> str:
    """Return the id of the task that validates a checkpoint."""
    return f"{VALIDATION}:{name}"
