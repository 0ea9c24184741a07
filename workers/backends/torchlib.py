"""The part of PyTorch that is used, with types: torch itself need not be installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol, TypeVar, cast

from runfold.workers import session

_M = TypeVar("_M")


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


def _imported(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{error}: install runfold with the extra torch (pip install 'runfold[torch]')") from error


# --- what training functions call


class _Module(Protocol):
    def to(self, device: object, /) -> _Module: ...


class _Loader(Protocol):
    dataset: object
    batch_size: int | None
    sampler: object
    num_workers: int
    collate_fn: object
    pin_memory: bool
    drop_last: bool


def get_device() -> object:
    """Return this rank's device: its GPU where it has one, else the CPU."""
    loaded = torch()
    device = cast("Callable[[str], object]", getattr(loaded, "device"))  # noqa: B009  # no types are installed
    return device(f"cuda:{_local_rank()}" if loaded.cuda.is_available() else "cpu")


def prepare_model(model: _M, *, move_to_device: bool = True, parallel_strategy: str | None = "ddp") -> _M:
    """Return a model on this rank's device and, in a group of several, averaging its gradients with the others."""
    if parallel_strategy not in ("ddp", None):
        raise ValueError(f"parallel_strategy: must be 'ddp' or None, not {parallel_strategy!r}")
    placed: object = cast("_Module", model).to(get_device()) if move_to_device else model
    if parallel_strategy is None or session.current("prepare_model").context.get_world_size() == 1:
        return cast("_M", placed)
    parallel = importlib.import_module("torch.nn.parallel")
    wrap = cast("Callable[[object], object]", getattr(parallel, "DistributedDataParallel"))  # noqa: B009  # as above
    return cast("_M", wrap(placed))


def prepare_data_loader(data_loader: _M, *, add_dist_sampler: bool = True) -> _M:
    """Return a loader of the same data that gives this rank its share, in another order each epoch if it shuffled."""
    context = session.current("prepare_data_loader").context
    data = importlib.import_module("torch.utils.data")
    loader = cast("_Loader", data_loader)
    sequential = isinstance(loader.sampler, cast("type[object]", data.SequentialSampler))
    distributed_already = isinstance(loader.sampler, cast("type[object]", data.DistributedSampler))
    iterable = isinstance(loader.dataset, cast("type[object]", data.IterableDataset))
    if context.get_world_size() == 1 or not add_dist_sampler or distributed_already or iterable:
        return data_loader
    make_sampler = cast("Callable[..., object]", data.DistributedSampler)
    make_loader = cast("Callable[..., object]", data.DataLoader)
    sampler = make_sampler(
        loader.dataset,
        num_replicas=context.get_world_size(),
        rank=context.get_world_rank(),
        shuffle=not sequential,
    )
    return cast(
        "_M",
        make_loader(
            loader.dataset,
            batch_size=loader.batch_size,
            sampler=sampler,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            drop_last=loader.drop_last,
        ),
    )


def _local_rank() -> int:
    return session.current("get_device").context.get_local_rank()
