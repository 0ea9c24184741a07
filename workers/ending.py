"""How a rank came to end: of itself, or because it was asked to."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from runfold.workers.processes import is_dead

if TYPE_CHECKING:
    from runfold.workers.handle import RankEnd


class Ending:
    """What a rank was asked: since when, by this process's clock, and whether it is made to end."""

    def __init__(self) -> None:
        self.asked_s: float | None = None
        self.killed = False
        self._was_dead = False

    def ask(self, pid: int | None, now: float) -> None:
        """Note that it is asked to end; `pid` is its process, once there is one."""
        if self.asked_s is None:
            self.asked_s = now
            # It may be dead and not reaped yet: its peers can have noticed that, and told of it, before we do.
            self._was_dead = pid is not None and is_dead(pid)

    def accounts_for(self, ended: RankEnd) -> bool:
        """Whether it ended because it was asked to, or made to."""
        if self.asked_s is None or self._was_dead:
            return False
        if ended.exit.signal == signal.SIGKILL and not self.killed:
            return False
        # One that had told its end itself, and then exited, did not end because it was asked to.
        return ended.exit.code is None or ended.result is None
