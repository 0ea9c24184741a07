"""What sets up the ranks' communication before the training function runs, and takes it down after it.

A backend that runfold does not know is named by where it is: `module:name` or `file.py:name`, called with the `Place`
of each rank. All of what JAX, TensorFlow, XGBoost and LightGBM need can be said in these terms: who leads and where
(`Meet.__call__`), where everybody is (`Meet.gather`), variables for each rank, a context around the training function.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final, Protocol, cast

import msgspec

from runfold.events.base import Json
from runfold.events.config import BackendConfig
from runfold.workers.errors import LoadError
from runfold.workers.load import load_object


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A rank, as a backend needs to know it; `addr` is where the others reach rank 0's node, `own_addr` this rank's.

    `resources`: what each rank has, as the job asks for it. `gpus`: the ids of those that are this rank's own, where
    the pool gives any. With replica groups, all this is within the rank's group, which is number `replica_group` of
    `replica_groups`; `lighthouse` is where torchft's is.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    addr: str
    own_addr: str = ""
    resources: dict[str, float] = {}
    gpus: tuple[str, ...] = ()
    options: dict[str, Json] = {}
    replica_group: int = 0
    replica_groups: int = 1
    lighthouse: str = ""


class Meet(Protocol):
    """How ranks tell each other something before they can talk. Each call is a collective: all ranks make it."""

    def __call__(self, data: bytes | None) -> bytes:
        """Return rank 0's bytes in every rank; only rank 0 gives something."""
        ...

    def gather(self, data: bytes) -> list[bytes]:
        """Return what every rank gives, in the order of their numbers."""
        ...


class Backend(Protocol):
    """One rank's side of a backend. What `on_start` and `on_training_start` raise is a failure to meet, and retried.

    But for an `ImportError`: what is not installed is missing at the next try too, and the run ends.
    """

    def environment(self) -> dict[str, str]:
        """Return the variables that the rank's libraries look for; set before `on_start`."""
        ...

    def on_start(self, meet: Meet) -> None:
        """Set the communication up, with all other ranks."""
        ...

    def on_training_start(self, meet: Meet) -> None:
        """Be called last before the training function."""
        ...

    def context(self) -> AbstractContextManager[object]:
        """Return what the training function is called in."""
        ...

    def on_shutdown(self) -> None:
        """Take it down, with bounded patience. Not called in ranks that are killed."""
        ...


class NoBackend:
    """The collectives of runfold itself, which are always there; and a base for backends that do not need all."""

    def environment(self) -> dict[str, str]:
        """Nothing."""
        return {}

    def on_start(self, meet: Meet) -> None:
        """Nothing is to be done."""

    def on_training_start(self, meet: Meet) -> None:
        """Nothing is to be done."""

    def context(self) -> AbstractContextManager[object]:
        """Nothing is around it."""
        return nullcontext()

    def on_shutdown(self) -> None:
        """Nothing is to be done."""


NONE: Final = NoBackend()


def backend_of(config: BackendConfig, place: Place) -> Backend:
    """Return the backend of a job, for one rank. Raises `LoadError`, or what a module raises when it is imported."""
    place = msgspec.structs.replace(place, options=config.options)
    match config.kind:
        case "none":
            return NONE
        case "torch":
            from runfold.workers.backends.torch import TorchBackend

            return TorchBackend(place)
        case "torchft":
            from runfold.workers.backends.torchft import TorchftBackend

            return TorchftBackend(place)
        case named:
            return _loaded(named, place)


def _loaded(named: str, place: Place) -> Backend:
    make, _ = load_object(named, Path.cwd())
    if not callable(make):
        raise LoadError(f"backend {named!r} is {type(make).__name__!r} and cannot be called with a rank's place")
    return cast("Callable[[Place], Backend]", make)(place)
