"""Training functions that need torch; a module of their own, so that they travel whole."""

from __future__ import annotations

import os
from importlib import import_module
from typing import cast

import runfold


def gathers() -> object:
    """Add the ranks up, plus one each, over the process group; in the first attempt rank 1 fails after that."""
    torch, dist = import_module("torch"), import_module("torch.distributed")
    rank = runfold.get_context().get_world_rank()
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    if runfold.get_context().get_attempt() == 1 and rank == 1:
        raise RuntimeError("once")
    if runfold.get_context().get_attempt() == 1:
        runfold.barrier()
    return {
        "sum": float(total.item()),
        "rank": os.environ["RANK"],
        "world": os.environ["WORLD_SIZE"],
        "addr": os.environ["MASTER_ADDR"],
        "initialized": bool(dist.is_initialized()),
    }


def needs_loader() -> object:
    """Say how many of eight rows each rank's loader gives."""
    from runfold.torch import get_device, prepare_data_loader

    torch, data = import_module("torch"), import_module("torch.utils.data")
    assert str(get_device()) == "cpu"
    loader = prepare_data_loader(data.DataLoader(data.TensorDataset(torch.arange(8)), batch_size=2))
    mine = sum(len(batch[0]) for batch in cast("list[list[list[int]]]", list(loader)))
    return runfold.all_gather(mine)


def batches() -> object:
    """Say how long the batches of tensors are."""
    shard = runfold.get_dataset_shard("train")
    return [len(cast("list[float]", batch)) for batch in shard.iter_torch_batches(batch_size=2)]
