"""PyTorch: a process group over all ranks.

Rank 0 listens on a free port and gives the socket itself to torch's store, so that nobody else can get the port in
between; the others are told where it is over runfold's own link.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Final

import msgspec

from runfold.workers.backends import Meet, Place, torchlib
from runfold.workers.config import apply_environment, is_set, value_of
from runfold.workers.devices import device_index
from runfold.workers.tpus import TPU

TPU_BACKEND: Final = "tpu_dist"
TIMEOUT_S: Final = 1800.0
SHUTDOWN_TIMEOUT_S: Final = 30.0
BACKLOG_COUNT: Final = 512
_NCCL_DECIDED: Final = (
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT",
)
"""Who has set one of these has decided what happens to a collective whose peer is gone."""


class _Where(msgspec.Struct, frozen=True):
    addr: str
    port: int


class TorchBackend:
    """One rank of the process group.

    Options: `backend` (default: nccl for ranks that have GPUs, tpu_dist for those that have TPUs, else gloo),
    `init_method` (`env` or `tcp`), `timeout_s` and `shutdown_timeout_s`.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._name = backend_name(place)

    def environment(self) -> dict[str, str]:
        """Return what `env://` and the libraries on top of torch look for, but for the port."""
        return rank_environment(self._place, value_of("CUDA_VISIBLE_DEVICES"))

    def on_start(self, meet: Meet) -> None:
        """Join the process group; raises what torch raises when the ranks do not meet in time."""
        dist = torchlib.distributed()
        place = self._place
        if not dist.is_available():
            raise RuntimeError("torch.distributed is not available in this build of torch")
        if self._name == TPU_BACKEND:
            _load_tpus(place)
        timeout = timedelta(seconds=_seconds(place, "timeout_s", TIMEOUT_S))
        listening = _listen(place.addr) if place.rank == 0 else None
        where = _met(meet, place.addr, listening)
        apply_environment(group_environment(place, where.addr, where.port, is_set))
        store = dist.TCPStore(
            where.addr,
            where.port,
            place.world_size,
            listening is not None,
            timeout,
            False,
            master_listen_fd=listening.detach() if listening is not None else None,
        )
        dist.init_process_group(self._name, store=store, rank=place.rank, world_size=place.world_size, timeout=timeout)

    def on_training_start(self, meet: Meet) -> None:
        """Nothing is to be done."""

    def context(self) -> AbstractContextManager[object]:
        """Make this rank's GPU the current one for the training function."""
        torch = torchlib.torch()
        if self._place.resources.get("GPU", 0) > 0 and torch.cuda.is_available():
            torch.cuda.set_device(device_index(self._place.gpus, self._place.local_rank, _visible()))
        return nullcontext()

    def on_shutdown(self) -> None:
        """Leave the process group, for at most `shutdown_timeout_s` (30)."""
        if "torch.distributed" not in sys.modules or self._place.world_size == 1:
            return
        dist = torchlib.distributed()
        if not dist.is_initialized():
            return
        limit_s = _seconds(self._place, "shutdown_timeout_s", SHUTDOWN_TIMEOUT_S)
        leaving = threading.Thread(target=_leave, name="leave the process group", daemon=True)
        leaving.start()
        leaving.join(limit_s)
        if leaving.is_alive():
            sys.stderr.write(f"runfold: the process group was not left within {limit_s:g} s; going on\n")


def backend_name(place: Place) -> str:
    """Return what torch calls the backend of a rank: as told, else by what the ranks have."""
    told = place.options.get("backend")
    if told:
        return str(told)
    return "nccl" if place.resources.get("GPU", 0) > 0 else TPU_BACKEND if place.resources.get(TPU, 0) > 0 else "gloo"


def rank_environment(place: Place, visible: str | None) -> dict[str, str]:
    """Return the variables that say who a rank is; `visible` is CUDA_VISIBLE_DEVICES."""
    index = device_index(place.gpus, place.local_rank, visible)
    given = {
        "RANK": place.rank,
        "WORLD_SIZE": place.world_size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_world_size,
        "NODE_RANK": place.node_rank,
        "ACCELERATE_TORCH_DEVICE": f"cuda:{index}" if place.resources.get("GPU", 0) > 0 else _without_gpu(place),
    }
    return {name: str(value) for name, value in given.items()}


def _seconds(place: Place, option: str, usual: float) -> float:
    told = place.options.get(option)
    return usual if told is None else float(str(told))


def _without_gpu(place: Place) -> str:
    return "tpu" if place.resources.get(TPU, 0) > 0 else "cpu"


def group_environment(place: Place, addr: str, port: int, is_given: Callable[[str], bool]) -> dict[str, str]:
    """Return the variables that are known once the ranks have met at `addr`:`port`; what the user has set stays."""
    by_env = place.options.get("init_method", "env") == "env"
    met = {"MASTER_ADDR": addr, "MASTER_PORT": str(port)} if by_env else {}
    if addr.startswith("127.") and not is_given("GLOO_SOCKET_IFNAME"):
        # Else gloo looks for this host's name, which need not lead back here.
        met["GLOO_SOCKET_IFNAME"] = "lo"
    if "nccl" in backend_name(place) and not any(map(is_given, _NCCL_DECIDED)):
        met["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"
    return met


def _load_tpus(place: Place) -> None:
    """Let torch know of TPUs; raises `ImportError` that says what is missing."""
    if place.rank == 0 and (tpus := place.resources.get(TPU, 0)) != 1:
        sys.stderr.write(f"runfold: each rank has {tpus:g} TPU chips, and PyTorch uses one in each process\n")
    torchlib.load_tpus()


def _visible() -> str | None:
    return value_of("CUDA_VISIBLE_DEVICES")


def _leave() -> None:
    torchlib.distributed().destroy_process_group()
    # Torch is imported where its part is; nothing is imported for leaving.
    if "torch" in sys.modules and (torch := torchlib.torch()).cuda.is_available():
        torch.cuda.empty_cache()


def _listen(addr: str) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in addr else socket.AF_INET, socket.SOCK_STREAM)
    listening.bind((addr, 0))
    listening.listen(BACKLOG_COUNT)
    return listening


def _met(meet: Meet, addr: str, listening: socket.socket | None) -> _Where:
    port: int = listening.getsockname()[1] if listening is not None else 0
    said = msgspec.json.encode(_Where(addr, port)) if listening is not None else None
    return msgspec.json.decode(meet(said), type=_Where)
