"""What may be said of the backends that come with runfold: their options, checked when a job is accepted.

Not when one is read: a log holds what was accepted by whichever version wrote it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from runfold.events.base import Json
from runfold.events.strict import Refused, decode_strict

if TYPE_CHECKING:
    from runfold.events.config import BackendConfig

_PATH: Final = "$.backend.options"


class NoOptions(msgspec.Struct, frozen=True):
    """`none` has none."""


class TorchOptions(msgspec.Struct, frozen=True):
    """What `torch` can be told; None is as if nothing were said."""

    backend: str | None = None
    init_method: Literal["env", "tcp"] = "env"
    timeout_s: float | None = None
    shutdown_timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ValueError(f"timeout_s: must be more than 0 seconds, not {self.timeout_s:g}")
        if self.shutdown_timeout_s is not None and self.shutdown_timeout_s < 0:
            raise ValueError(f"shutdown_timeout_s: must be 0 seconds or more, not {self.shutdown_timeout_s:g}")


class TorchftOptions(TorchOptions, frozen=True):
    """What `torchft` can be told besides."""

    lighthouse: str | None = None
    lighthouse_kwargs: dict[str, Json] = {}


OPTIONS: Final[dict[str, type[msgspec.Struct]]] = {
    "none": NoOptions,
    "torch": TorchOptions,
    "torchft": TorchftOptions,
}
"""Kind of a backend that comes with runfold → its options. One of your own takes any."""


def check_options(backend: BackendConfig) -> None:
    """Raise `Refused`, with the path of the offender, for options that the backend does not have."""
    kind = OPTIONS.get(backend.kind)
    if kind is None:
        return
    for name in backend.options if kind is NoOptions else ():
        raise Refused(f"{_PATH}.{name}", "is an option of no backend: say which backend.kind it is for")
    try:
        decode_strict(msgspec.json.encode(backend.options), kind)
    except Refused as refused:
        raise Refused(_PATH + refused.path.removeprefix("$"), refused.reason) from None
