"""The values of collectives, pickled and unpickled in ranks only: to runners they are bytes."""

from __future__ import annotations

import pickle
from typing import Final

import cloudpickle

from runfold.events.limits import COLLECTIVE_MAX_BYTES
from runfold.workers.errors import (
    BroadcastCollectiveTimeoutError,
    CollectiveError,
    CollectiveMismatchError,
    CollectivePeerError,
    CollectiveTimeoutError,
    CollectiveTooLargeError,
)
from runfold.workers.link import RefusalKind, Refused

_ERRORS: Final[dict[RefusalKind, type[CollectiveError]]] = {
    "mismatch": CollectiveMismatchError,
    "peer": CollectivePeerError,
    "too_large": CollectiveTooLargeError,
}


def pickled(kind: str, value: object) -> bytes:
    """Return the bytes of a value; `CollectiveTooLargeError` over `collective_max_bytes`."""
    data = pickle_any(value)
    if len(data) > COLLECTIVE_MAX_BYTES:
        raise CollectiveTooLargeError(
            f"{kind}: a value of {len(data)} bytes is over collective_max_bytes ({COLLECTIVE_MAX_BYTES}); "
            "use your framework's own collectives for tensors"
        )
    return data


def pickle_any(value: object) -> bytes:
    """Return a value pickled, by plain pickle where it can: that is the faster one."""
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        data: bytes = cloudpickle.dumps(value)  # pyright: ignore[reportUnknownMemberType]  # has no types
        return data


def unpickled(data: bytes) -> object:
    """Return the value of bytes that another rank of the same run has made."""
    value: object = pickle.loads(data)  # noqa: S301  # from this run's own user code
    return value


def refusal(answer: Refused, timeout_s: float | None) -> CollectiveError:
    """Return the error of a collective that did not come about."""
    if answer.error == "timeout":
        broadcast = answer.kind == "broadcast_from_rank_zero"
        kind = BroadcastCollectiveTimeoutError if broadcast else CollectiveTimeoutError
        return kind(answer.message, answer.missing_ranks, timeout_s)
    return _ERRORS[answer.error](answer.message)
