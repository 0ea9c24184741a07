"""What training functions call to be one of several with PyTorch. torch itself need not be installed."""

from __future__ import annotations

import importlib
import logging
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Final, NoReturn, Protocol, TypeVar, cast

from runfold.workers import session
from runfold.workers.backends import torchlib
from runfold.workers.config import apply_environment, value_of
from runfold.workers.devices import VISIBLE, device_index

_M = TypeVar("_M")
_LOG: Final = logging.getLogger("runfold")


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
    timeout: float
    worker_init_fn: object
    multiprocessing_context: object
    generator: object
    prefetch_factor: int | None
    persistent_workers: bool


def get_devices() -> list[object]:
    """Return this rank's devices: its own GPUs, in the order in which it was given them; the CPU where it has none."""
    torch = torchlib.torch()
    device = cast("Callable[[str], object]", getattr(torch, "device"))  # noqa: B009  # no types are installed
    context = session.current("get_devices").context
    if not torch.cuda.is_available():
        return [device("cpu")]
    own, visible = context.get_gpu_ids(), value_of(VISIBLE)
    if not own:
        return [device(f"cuda:{context.get_local_rank()}")]
    return [device(f"cuda:{device_index([one], context.get_local_rank(), visible)}") for one in own]


def get_device() -> object:
    """Return this rank's device: the first of its GPUs where it has any, else the CPU."""
    return get_devices()[0]


def prepare_model(
    model: _M,
    move_to_device: bool | object = True,
    parallel_strategy: str | None = "ddp",
    parallel_strategy_kwargs: Mapping[str, object] | None = None,
) -> _M:
    """Return a model on this rank's device and, in a group of several, trained together with the others.

    `move_to_device` may name another device. `parallel_strategy`: `ddp` averages gradients, `fsdp` (with GPUs only)
    also shares the parameters out, None wraps nothing; `parallel_strategy_kwargs` go to what wraps.
    """
    if parallel_strategy not in ("ddp", "fsdp", None):
        raise ValueError(f"parallel_strategy: must be 'ddp', 'fsdp' or None, not {parallel_strategy!r}")
    torch = torchlib.torch()
    device = get_device() if isinstance(move_to_device, bool) else move_to_device
    if torch.cuda.is_available() and getattr(device, "type", None) == "cuda":
        torch.cuda.set_device(cast("int", device))
    placed: object = model if move_to_device is False else cast("_Module", model).to(device)
    if parallel_strategy is None or session.current("prepare_model").context.get_world_size() == 1:
        return cast("_M", placed)
    _check_group()
    given = dict(parallel_strategy_kwargs or {})
    if parallel_strategy == "fsdp":
        if not torch.cuda.is_available():
            raise RuntimeError("parallel_strategy: 'fsdp' needs GPUs, and this rank sees none")
        return cast("_M", _made("torch.distributed.fsdp", "FullyShardedDataParallel", placed, given))
    if getattr(device, "type", None) == "cuda" and move_to_device is not False:
        given = {"device_ids": [device], "output_device": device, **given}
    return cast("_M", _made("torch.nn.parallel", "DistributedDataParallel", placed, given))


def _check_group() -> None:
    """Raise when there is no process group: what torch says of that is no help to who never meant to set one up."""
    dist = torchlib.distributed()
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "prepare_model: this rank is in no process group of torch's. Choose one for the run: TorchTrainer, or "
            "backend_config=TorchConfig() (in a job: backend.kind = 'torch'); or parallel_strategy=None to train alone"
        )


def prepare_data_loader(
    data_loader: _M, add_dist_sampler: bool = True, move_to_device: bool = True, auto_transfer: bool = True
) -> _M:
    """Return a loader of the same data that gives this rank its share, on its device.

    In another order each epoch if it shuffled: call `loader.sampler.set_epoch(epoch)`. `auto_transfer`: batches are
    copied to a GPU beside its work, where the loader pins its memory.
    """
    context = session.current("prepare_data_loader").context
    data = importlib.import_module("torch.utils.data")
    loader = cast("_Loader", data_loader)
    if context.get_world_size() > 1 and add_dist_sampler and _may_be_shared(loader, data):
        loader = _shared(loader, data, context.get_world_size(), context.get_world_rank())
    device = get_device() if move_to_device else None
    if getattr(device, "type", "cpu") == "cpu":
        return cast("_M", loader)
    return cast("_M", DeviceLoader(loader, device, beside=auto_transfer))


def _may_be_shared(loader: _Loader, data: ModuleType) -> bool:
    distributed = isinstance(loader.sampler, cast("type[object]", data.DistributedSampler))
    return not distributed and not isinstance(loader.dataset, cast("type[object]", data.IterableDataset))


def _shared(loader: _Loader, data: ModuleType, world: int, rank: int) -> _Loader:
    sequential = isinstance(loader.sampler, cast("type[object]", data.SequentialSampler))
    if not sequential and not isinstance(loader.sampler, cast("type[object]", data.RandomSampler)):
        _LOG.warning(
            "prepare_data_loader: the loader's own sampler %s is replaced by one that gives each rank its share; "
            "add_dist_sampler=False keeps it",
            type(loader.sampler).__name__,
        )
    sampler = data.DistributedSampler(loader.dataset, num_replicas=world, rank=rank, shuffle=not sequential)
    more: dict[str, object] = {} if loader.num_workers == 0 else {"prefetch_factor": loader.prefetch_factor}
    made: object = data.DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        persistent_workers=loader.persistent_workers,
        **more,
    )
    return cast("_Loader", made)


class DeviceLoader:
    """A loader whose batches are on a device; everything else is the loader's."""

    def __init__(self, loader: object, device: object, *, beside: bool) -> None:
        self._loader = loader
        self._device = device
        self._beside = beside

    def __iter__(self) -> Iterator[object]:
        for batch in cast("Iterable[object]", self._loader):
            yield on_device(batch, self._device, beside=self._beside)

    def __len__(self) -> int:
        return len(cast("list[object]", self._loader))

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)


def on_device(batch: object, device: object, *, beside: bool) -> object:
    """Return a batch with all its tensors on a device, whatever they are held in."""
    if isinstance(batch, Mapping):
        held = cast("Mapping[object, object]", batch)
        return {key: on_device(value, device, beside=beside) for key, value in held.items()}
    if isinstance(batch, list | tuple):
        kind = cast("Callable[..., object]", type(cast("object", batch)))
        moved = [on_device(one, device, beside=beside) for one in cast("list[object]", batch)]
        return kind(*moved) if hasattr(kind, "_fields") else kind(moved)
    move = cast("Callable[..., object] | None", getattr(batch, "to", None))
    return batch if move is None else move(device, non_blocking=beside)


def enable_reproducibility(seed: int = 0) -> None:
    """Have Python, numpy and torch draw the same from run to run, and torch compute in the same order.

    What it costs is speed. Seed before the model is made and the data is loaded.
    """
    random.seed(seed)
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random").seed(seed)
    torch = importlib.import_module("torch")
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    # cuBLAS looks for it when it is first used.
    apply_environment({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})


def accelerate(*_: object, **__: object) -> NoReturn:
    """Not there any more: the peer's old name."""
    raise DeprecationWarning("accelerate is gone: use torch.amp in the training function")


def backward(*_: object, **__: object) -> NoReturn:
    """Not there any more: the peer's old name."""
    raise DeprecationWarning("backward is gone: call loss.backward(), with a torch.amp.GradScaler where one is needed")


def prepare_optimizer(*_: object, **__: object) -> NoReturn:
    """Not there any more: the peer's old name."""
    raise DeprecationWarning("prepare_optimizer is gone: an optimizer needs no preparation")


def _made(module: str, name: str, model: object, given: dict[str, object]) -> object:
    wrap = cast("Callable[..., object]", getattr(importlib.import_module(module), name))
    return wrap(model, **given)
