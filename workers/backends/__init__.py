"""What sets up the ranks' communication before the training function runs, and takes it down after it."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from runfold.events.base import Json
from runfold.events.config import BackendConfig


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A rank, as a backend needs to know it; `addr` is where the others reach rank 0's node."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    addr: str
    options: dict[str, Json] = {}


class Meet(Protocol):
    """How ranks tell each other something before they can talk: rank 0's bytes come back in every rank."""

    def __call__(self, data: bytes | None) -> bytes:
        """Take part; only rank 0 gives something."""
        ...


class Backend(Protocol):
    """One rank's side of a backend. What `on_start` raises is a failure to meet, and retried."""

    def environment(self) -> dict[str, str]:
        """Return the variables that the rank's libraries look for."""
        ...

    def on_start(self, meet: Meet) -> None:
        """Set the communication up, with all other ranks."""
        ...

    def on_training_start(self) -> None:
        """Be called last before the training function."""
        ...

    def on_shutdown(self) -> None:
        """Take it down, with bounded patience."""
        ...


class NoBackend:
    """The collectives of runfold itself, which are always there."""

    def environment(self) -> dict[str, str]:
        """Nothing."""
        return {}

    def on_start(self, meet: Meet) -> None:
        """Nothing is to be done."""

    def on_training_start(self) -> None:
        """Nothing is to be done."""

    def on_shutdown(self) -> None:
        """Nothing is to be done."""


NONE: Final = NoBackend()


def backend_of(config: BackendConfig, place: Place) -> Backend:
    """Return the backend of a job, for one rank."""
    match config.kind:
        case "none":
            return NONE
        case "torch":
            from runfold.workers.backends.torch import TorchBackend

            return TorchBackend(msgspec.structs.replace(place, options=config.options))
