"""What a rank waits for, as the messages between it and its runner tell."""

from __future__ import annotations

from runfold.workers.link import Collect, Collected, FromRank, FromRunner, Paused, Refused, Report


class Posture:
    """Hears both sides of a rank's link. `waits_in`: the collective it takes part in. `paused`: it said so itself."""

    def __init__(self) -> None:
        self.paused = False
        self._collect: Collect | None = None

    @property
    def waits_in(self) -> str | None:
        """The collective that it has entered and that has not come about; None for none."""
        return f"{self._collect.kind} #{self._collect.number}" if self._collect is not None else None

    def said(self, message: FromRank) -> None:
        """Hear what the rank says."""
        match message:
            case Collect():
                self._collect = message
            case Paused(paused=paused):
                self.paused = paused
            case Report():
                # Answered while an interrupt had it give up.
                self._collect = None
            case _:
                pass

    def told(self, message: FromRunner) -> None:
        """Hear what the rank is told."""
        if isinstance(message, Collected | Refused) and self._collect is not None:
            self._collect = None if message.number == self._collect.number else self._collect
