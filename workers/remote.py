"""Tasks that hold something of a pool whose nodes are other machines: they are done there, where what they hold is."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from runfold.events.assignment import Assignment
from runfold.events.base import Json
from runfold.workers.errors import RunfoldError
from runfold.workers.outside import Order, Question, Said

REMOTE_TRIES_MAX: Final = 4
"""How often a task is begun whose node, or whatever watches over it there, is lost each time: as often as Ray does."""
AGAIN_AFTER_S: Final = 1.0


class RemoteTask(msgspec.Struct, frozen=True, kw_only=True):
    """A validation, and the key under which the pool's book has what it holds."""

    key: str
    attempt: int
    order: Order
    question: Question
    working_dir: str | None = None
    secret_env: tuple[str, ...] = ()
    runtime_env: dict[str, Json] = {}
    adopt_within_s: float = 0.0


class RemoteTaskLost(RunfoldError):
    """Nobody knows what became of a task; the message says why. What it held is to be given back."""


class RemoteTasks(Protocol):
    """Those of a pool. They outlive the supervisor: its heir goes on with one by asking for the same key."""

    def holds(self, key: str) -> bool:
        """Whether an earlier supervisor has left a task with this key, and with it what it holds."""
        ...

    async def do(self, task: RemoteTask) -> Said:
        """Do a task, or go on with it, and return what came of it; nothing of it is left then.

        Raises:
            RemoteTaskLost: its node is lost, or its process could not be watched.
        """
        ...

    def hear(self, assignment: Assignment) -> None:
        """End what an earlier supervisor has left of a run that does not want it any more."""
        ...

    def let_go(self) -> None:
        """From here on leave tasks that are left to the next supervisor: they go on."""
        ...
