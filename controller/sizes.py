"""What a scaling policy answers, and the size that was asked for last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.events.base import Cause, Value

if TYPE_CHECKING:
    from runfold.events.state import RunState


class Resize(Value, frozen=True):
    """Run on so many ranks.

    `fits`: there is room for them now, so that it counts more than what was decided before. `saved_first`: a
    checkpoint is asked for before a running group is stopped. `cause`: what called for it, if not the group's news.
    """

    num_workers: int
    reason: str
    fits: bool = False
    saved_first: bool = False
    cause: Cause | None = None


class Hold(Value, frozen=True):
    """Leave things as they are."""

    reason: str = ""


Scaling = Resize | Hold


def wanted_workers(state: RunState) -> int:
    """Return the size asked for last: by a request, else by the job."""
    return state.wanted_workers or state.job.scaling.max_workers
