"""What a state remembers of single inputs until they are dealt with, or for whoever asks later."""

from __future__ import annotations

from runfold.events.base import Cause, Value
from runfold.events.conclusions import Decider, Timer
from runfold.events.failures import Failure
from runfold.events.requests import AnyRequest
from runfold.events.transitions import EndName


class PendingRequest(Value, frozen=True, kw_only=True):
    """A request seen and not yet answered, with the input that brought it."""

    request: AnyRequest
    cause: Cause


class Answered(Value, frozen=True, kw_only=True):
    """A request's answer, kept for the client that repeats it."""

    id: str
    accepted: bool
    reason: str


class Ending(Value, frozen=True, kw_only=True):
    """An accepted wish to end the run: who, why, and the request that said so."""

    next: EndName
    by: str
    reason: str
    cause: Cause


class Notice(Value, frozen=True, kw_only=True):
    """A preemption notice in force: nodes, deadline on the run's clock, where it came from.

    `unknown`: nobody said when; the deadline is an assumption. `asked`: the nodes that somebody's request named.
    `former`: the nodes that were named before the pool's supervisor began anew.
    """

    nodes: tuple[str, ...]
    deadline_t: float
    noticed_t: float
    cause: Cause
    reason: str = ""
    unknown: bool = False
    asked: tuple[str, ...] = ()
    former: tuple[str, ...] = ()


class LateEvidence(Value, frozen=True, kw_only=True):
    """A failure told after its attempt had ended; may revise the first cause, spends nothing."""

    failure: Failure
    at_t: float


class Committed(Value, frozen=True, kw_only=True):
    """The newest committed checkpoint."""

    name: str
    index: int
    attempt: int


class Fired(Value, frozen=True, kw_only=True):
    """A timer that fired and was not yet acted on."""

    timer: Timer
    cause: Cause


class TakeOver(Value, frozen=True, kw_only=True):
    """A controller that has the run and has not said so yet."""

    controller: str
    decider: Decider
    cause: Cause


class Repeats(Value, frozen=True, kw_only=True):
    """The same failure at the same step, so many times in a row."""

    signature: str
    count: int
