"""Training functions that need torch; a module of their own, so that they travel whole."""

from __future__ import annotations

import os
import signal
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


def loses_a_rank(config: dict[str, str]) -> None:
    """Add up over the process group until rank 1 ends as `how` says; the others notice by a broken connection."""
    torch, dist = import_module("torch"), import_module("torch.distributed")
    for step in range(20):
        dist.all_reduce(torch.ones(1))
        if step == 3 and runfold.get_context().get_world_rank() == 1:
            match config["how"]:
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "exit":
                    os._exit(3)
                case _:
                    raise ValueError("what it was")


def needs_loader() -> object:
    """Say how many of eight rows each rank's loader gives."""
    from runfold.torch import get_device, prepare_data_loader

    torch, data = import_module("torch"), import_module("torch.utils.data")
    assert str(get_device()) == "cpu"
    loader = prepare_data_loader(data.DataLoader(data.TensorDataset(torch.arange(8)), batch_size=2))
    mine = sum(len(batch[0]) for batch in cast("list[list[list[int]]]", list(loader)))
    return runfold.all_gather(mine)


def meets_by_tcp() -> object:
    """Say what is set, and that the group is one all the same."""
    torch, dist = import_module("torch"), import_module("torch.distributed")
    total = torch.tensor([1.0])
    dist.all_reduce(total)
    return [float(total.item()), "MASTER_ADDR" in os.environ, os.environ["ACCELERATE_TORCH_DEVICE"]]


def trains_together() -> object:
    """Average gradients over the ranks; only what needs GPUs is refused."""
    from runfold.torch import get_devices, prepare_model

    torch = import_module("torch")
    rank = runfold.get_context().get_world_rank()
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(1, 1, bias=False), parallel_strategy_kwargs={"broadcast_buffers": False})
    (model(torch.tensor([[float(rank + 1)]])).sum()).backward()
    grad = float(model.module.weight.grad.item())
    alone = prepare_model(torch.nn.Linear(1, 1), parallel_strategy=None)
    refused = ""
    try:
        prepare_model(torch.nn.Linear(1, 1), parallel_strategy="fsdp")
    except RuntimeError as error:
        refused = str(error)
    kinds = [type(model).__name__, type(alone).__name__, str(get_devices()[0])]
    return runfold.all_gather([grad, *kinds, "GPUs" in refused])


def shares_loaders() -> object:
    """Say which rows each of several loaders gives this rank, and what it keeps of the loader that it was given."""
    from runfold.torch import prepare_data_loader

    torch, data = import_module("torch"), import_module("torch.utils.data")
    rows = data.TensorDataset(torch.arange(8))

    def given(loader: object) -> list[int]:
        return [int(row) for batch in cast("list[list[object]]", loader) for row in cast("list[int]", batch[0])]

    in_order = prepare_data_loader(data.DataLoader(rows, batch_size=2, drop_last=True))
    shuffled = prepare_data_loader(data.DataLoader(rows, batch_size=2, shuffle=True))
    first = given(shuffled)
    shuffled.sampler.set_epoch(1)
    own = data.WeightedRandomSampler([1.0] * 8, 8)
    kept = data.DataLoader(rows, sampler=own)
    replaced = prepare_data_loader(data.DataLoader(rows, sampler=own))
    stream = data.DataLoader(torch.utils.data.ChainDataset([]))
    already = data.DataLoader(rows, sampler=data.DistributedSampler(rows))
    return runfold.all_gather(
        {
            "in order": given(in_order),
            "drop_last": in_order.drop_last,
            "shuffled": sorted(first),
            "another epoch": first != given(shuffled),
            "kept": prepare_data_loader(kept, add_dist_sampler=False) is kept,
            "replaced": type(replaced.sampler).__name__,
            "stream": prepare_data_loader(stream) is stream,
            "already": prepare_data_loader(already) is already,
        }
    )


def batches() -> object:
    """Say how long the batches of tensors are."""
    shard = runfold.get_dataset_shard("train")
    return [len(cast("list[float]", batch)) for batch in shard.iter_torch_batches(batch_size=2)]
