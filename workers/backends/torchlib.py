"""The part of PyTorch that is used, with types: torch itself need not be installed."""

from __future__ import annotations

import importlib
from datetime import timedelta
from typing import Protocol, cast


class _Cuda(Protocol):
    def is_available(self) -> bool: ...
    def set_device(self, device: int, /) -> None: ...
    def empty_cache(self) -> None: ...


class _Store(Protocol):
    """A store of torch's."""


class _StoreMaker(Protocol):
    def __call__(
        self,
        host_name: str,
        port: int,
        world_size: int,
        is_master: bool,
        timeout: timedelta,
        wait_for_workers: bool,
        *,
        master_listen_fd: int | None,
    ) -> _Store: ...


class _Distributed(Protocol):
    TCPStore: _StoreMaker

    def is_available(self) -> bool: ...
    def is_initialized(self) -> bool: ...
    def init_process_group(
        self, backend: str, *, store: _Store, rank: int, world_size: int, timeout: timedelta
    ) -> None: ...
    def destroy_process_group(self) -> None: ...


class _Torch(Protocol):
    cuda: _Cuda

    def as_tensor(self, data: object, /) -> object: ...


def torch() -> _Torch:
    """Return torch; raises `ImportError` that says how to have it."""
    return cast("_Torch", _imported("torch"))


def distributed() -> _Distributed:
    """Return torch.distributed."""
    return cast("_Distributed", _imported("torch.distributed"))


class _TpuLoader(Protocol):
    def load(self) -> object: ...


def load_tpus() -> None:
    """Let torch know of TPUs, and of `tpu_dist`; raises `ImportError` that says how to have that."""
    try:
        # Private by its name, but what users of torch_tpu call, Ray Train among them: it offers nothing else for that.
        loader = importlib.import_module("torch_tpu._loader")
    except ImportError as error:
        raise ImportError(f"{error}: ranks that have TPUs need torch_tpu, or another backend's name") from error
    cast("_TpuLoader", loader).load()


def _imported(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{error}: install runfold with the extra torch (pip install 'runfold[torch]')") from error
