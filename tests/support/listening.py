"""A controller that listens to a run in tests: seconds pass, some sources are heard, conclusions go into the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.controller.liveness import Beat, Conclusions, Heard, Watch, tick

if TYPE_CHECKING:
    from support.runs import Run

TICK_S = 0.5


class Listener:
    """Listens to a run. What it concludes is said in the run's next entry, as the loop does."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.watch = Watch()
        self.concluded: list[Conclusions] = []

    def hears(
        self,
        *sources: str,
        for_s: float,
        pool: tuple[str, ...] | None = None,
        paused: tuple[int, ...] = (),
        missing: int = 0,
        blind: bool = False,
    ) -> Listener:
        """Let so many seconds pass in which these runners beat, and the pool lists these nodes.

        `missing` facts of theirs are not folded yet. `blind`: it could not be heard what is said.
        """
        for _ in range(round(for_s / TICK_S)):
            state = self.run.state
            beats = {
                name: Beat(
                    incarnation=state.sources[name].incarnation,
                    number=state.sources[name].folded + missing,
                    paused=frozenset(paused),
                )
                for name in sources
            }
            nodes = frozenset(pool) if pool is not None else None
            heard = Heard(beats={} if blind else beats, nodes=None if blind else nodes)
            self.watch, found = tick(self.watch, state, heard, 0.0 if blind else TICK_S)
            self.run.t = round(self.run.t + TICK_S, 6)
            if found:
                self.concluded.append(found)
                self.run.says(*found, after_s=0.0)
        return self

    def taken_over(self) -> Listener:
        """Let another controller listen on."""
        self.watch = Watch()
        return self

    @property
    def everything(self) -> list[object]:
        """All that was concluded, in order."""
        return [one for found in self.concluded for one in found]
