"""PyTorch: a process group over all ranks (BEHAVIOUR §5.2).

Rank 0 listens on a free port and gives the socket itself to torch's store, so that nobody else can get the port in
between; the others are told where it is over runfold's own link.
"""

from __future__ import annotations

import socket
import sys
import threading
from datetime import timedelta
from typing import Final

import msgspec

from runfold.workers.backends import Meet, Place, torchlib
from runfold.workers.config import apply_environment, is_set

TIMEOUT_S: Final = 1800.0
SHUTDOWN_TIMEOUT_S: Final = 30.0
BACKLOG_COUNT: Final = 512


class _Where(msgspec.Struct, frozen=True):
    addr: str
    port: int


class TorchBackend:
    """One rank of the process group. Options: `backend` (default: nccl with GPUs, else gloo) and `timeout_s`."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def environment(self) -> dict[str, str]:
        """Return what `env://` and the libraries on top of torch look for, but for the port."""
        place = self._place
        given = {
            "MASTER_ADDR": place.addr,
            "RANK": place.rank,
            "WORLD_SIZE": place.world_size,
            "LOCAL_RANK": place.local_rank,
            "LOCAL_WORLD_SIZE": place.local_world_size,
            "NODE_RANK": place.node_rank,
        }
        return {name: str(value) for name, value in given.items()}

    def on_start(self, meet: Meet) -> None:
        """Join the process group; raises what torch raises when the ranks do not meet in time."""
        torch, dist = torchlib.torch(), torchlib.distributed()
        place = self._place
        if not dist.is_available():
            raise RuntimeError("torch.distributed is not available in this build of torch")
        backend = str(place.options.get("backend") or ("nccl" if torch.cuda.is_available() else "gloo"))
        timeout = timedelta(seconds=float(str(place.options.get("timeout_s", TIMEOUT_S))))
        listening = _listen(place.addr) if place.rank == 0 else None
        where = _met(meet, place.addr, listening)
        loopback = where.addr.startswith("127.") and not is_set("GLOO_SOCKET_IFNAME")
        nccl = {} if is_set("TORCH_NCCL_ASYNC_ERROR_HANDLING") else {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
        apply_environment(
            {
                "MASTER_PORT": str(where.port),
                "ACCELERATE_TORCH_DEVICE": f"cuda:{place.local_rank}" if "nccl" in backend else "cpu",
                # Else gloo looks for this host's name, which need not lead back here.
                **({"GLOO_SOCKET_IFNAME": "lo"} if loopback and sys.platform == "linux" else {}),
                **(nccl if "nccl" in backend else {}),
            }
        )
        store = dist.TCPStore(
            where.addr,
            where.port,
            place.world_size,
            listening is not None,
            timeout,
            False,
            master_listen_fd=listening.detach() if listening is not None else None,
        )
        dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.world_size, timeout=timeout)
        if "nccl" in backend:
            torch.cuda.set_device(place.local_rank)

    def on_training_start(self) -> None:
        """Nothing is to be done."""

    def on_shutdown(self) -> None:
        """Leave the process group, for at most `SHUTDOWN_TIMEOUT_S`."""
        if "torch.distributed" not in sys.modules or self._place.world_size == 1:
            return
        dist = torchlib.distributed()
        if not dist.is_initialized():
            return
        leaving = threading.Thread(target=dist.destroy_process_group, name="leave the process group", daemon=True)
        leaving.start()
        leaving.join(SHUTDOWN_TIMEOUT_S)
        if leaving.is_alive():
            sys.stderr.write(f"runfold: the process group was not left within {SHUTDOWN_TIMEOUT_S:g} s; going on\n")


def _listen(addr: str) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.bind((addr, 0))
    listening.listen(BACKLOG_COUNT)
    return listening


def _met(meet: Meet, addr: str, listening: socket.socket | None) -> _Where:
    port: int = listening.getsockname()[1] if listening is not None else 0
    said = msgspec.json.encode(_Where(addr, port)) if listening is not None else None
    return msgspec.json.decode(meet(said), type=_Where)
