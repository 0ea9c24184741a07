"""Backends of the shape that JAX, TensorFlow, XGBoost and LightGBM have, made of nothing but the Protocol.

Written outside the package, and named by where they are: that they need no change of it is what they are for.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, cast

import runfold
from runfold.workers.backends import Meet, NoBackend, Place

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 60.0


def held_port(addr: str) -> socket.socket:
    """Listen on a free port, which stays this process's."""
    held = socket.create_server((addr, 0))
    held.settimeout(PATIENCE_S)
    return held


class Jax(NoBackend):
    """Rank 0 coordinates, and everybody connects to it: `jax.distributed.initialize(address, size, index)`."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.closed = False

    def environment(self) -> dict[str, str]:
        return {"JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu")}

    def on_start(self, meet: Meet) -> None:
        leads = self.place.rank == 0
        coordinator = held_port(self.place.addr) if leads else None
        said = f"{self.place.addr}:{coordinator.getsockname()[1]}".encode() if coordinator is not None else None
        address, _, port = meet(said).decode().rpartition(":")
        if coordinator is None:
            with socket.create_connection((address, int(port)), timeout=PATIENCE_S) as link:
                link.sendall(bytes([self.place.rank]))
            met = [self.place.rank]
        else:
            with coordinator:
                met = [0, *(self._joined(coordinator) for _ in range(self.place.world_size - 1))]
        os.environ["TOY_JAX"] = json.dumps({"rank": self.place.rank, "size": self.place.world_size, "met": sorted(met)})

    def _joined(self, coordinator: socket.socket) -> int:
        link, _ = coordinator.accept()
        with link:
            return link.recv(1)[0]

    def on_shutdown(self) -> None:
        print("jax shut down")


class TensorFlow(NoBackend):
    """Everybody has a port and knows all others': TF_CONFIG."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.held: socket.socket | None = None

    def environment(self) -> dict[str, str]:
        return {"TF_USE_LEGACY_KERAS": "1"}

    def on_start(self, meet: Meet) -> None:
        self.held = held_port(self.place.own_addr)
        own = f"{self.place.own_addr}:{self.held.getsockname()[1]}"
        workers = [one.decode() for one in meet.gather(own.encode())]
        task = {"type": "worker", "index": self.place.rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})


class XGBoost(NoBackend):
    """A tracker runs beside rank 0's training; each rank trains within a communicator that knows it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.arguments: dict[str, str] = {}
        self.tracker: threading.Thread | None = None

    def on_training_start(self, meet: Meet) -> None:
        held = held_port(self.place.addr) if self.place.rank == 0 else None
        if held is not None:
            self.tracker = threading.Thread(target=self._track, args=(held,), daemon=True)
            self.tracker.start()
        port = meet(str(held.getsockname()[1]).encode() if held is not None else None).decode()
        self.arguments = {"port": port, "task_id": f"[xgboost.rank={self.place.rank:08d}]"}

    def _track(self, held: socket.socket) -> None:
        with held:
            for _ in range(self.place.world_size):
                held.accept()[0].close()

    def context(self) -> AbstractContextManager[object]:
        return self._communicator()

    @contextmanager
    def _communicator(self) -> Iterator[None]:
        socket.create_connection((self.place.addr, int(self.arguments["port"])), timeout=PATIENCE_S).close()
        os.environ["TOY_XGBOOST"] = self.arguments["task_id"]
        try:
            yield
        finally:
            del os.environ["TOY_XGBOOST"]

    def on_shutdown(self) -> None:
        if self.tracker is not None:
            self.tracker.join(5.0)
            print("tracker ended", not self.tracker.is_alive())


NETWORK: dict[str, object] = {}
"""What LightGBM's ranks pass on to it."""


class LightGBM(NoBackend):
    """The function asks for what it has to pass on."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.held: socket.socket | None = None

    def on_training_start(self, meet: Meet) -> None:
        self.held = held_port(self.place.own_addr)
        port = self.held.getsockname()[1]
        machines = [one.decode() for one in meet.gather(f"{self.place.own_addr}:{port}".encode())]
        NETWORK.update(num_machines=len(machines), local_listen_port=port, machines=",".join(machines))


class Worded(NoBackend):
    """What its author took for bytes is text."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def on_start(self, meet: Meet) -> None:
        meet.gather(cast("bytes", self.place.own_addr))


def trains_jax() -> object:
    """Say what the coordinator knows, in every rank."""
    return runfold.all_gather({**json.loads(os.environ["TOY_JAX"]), "platform": os.environ["JAX_PLATFORMS"]})


def trains_tensorflow() -> object:
    """Say which rank is at which address."""
    given = json.loads(os.environ["TF_CONFIG"])
    keras = os.environ["TF_USE_LEGACY_KERAS"]
    return runfold.all_gather([given["task"]["index"], len(set(given["cluster"]["worker"])), keras])


def trains_xgboost() -> object:
    """Say by what name each rank is known to the tracker."""
    return runfold.all_gather(os.environ["TOY_XGBOOST"])


def trains_lightgbm() -> object:
    """Say whether all ranks know the same machines, and each its own port."""
    mine = str(NETWORK["machines"]).split(",")[runfold.get_context().get_world_rank()]
    return runfold.all_gather([NETWORK["num_machines"], mine.endswith(f":{NETWORK['local_listen_port']}")])
