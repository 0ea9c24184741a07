"""Real datasets of Ray: given to a trainer, or made by a callable in the ranks; split, shuffled, gone on with."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import runfold
from support.rayed import patiently_started

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("ray", "pyarrow")),
    reason="ray and pyarrow are not installed here; `make test-ray` has them (pip install 'runfold[ray,parquet]')",
)
COUNT = 24


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A cluster of Ray on this machine, by its address."""
    import ray

    started = patiently_started(
        lambda: ray.init(
            "local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 1024 * 1024
        )
    )
    yield str(started.address_info["gcs_address"])
    ray.shutdown()


def numbers() -> object:
    """A dataset of several blocks, made in a rank that joins the cluster."""
    import ray

    if not ray.is_initialized():
        ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
    return ray.data.range(COUNT, override_num_blocks=4).map(lambda row: {"id": row["id"], "half": row["id"] / 2})


def train(config: dict[str, object]) -> object:
    """Go over two epochs in batches, each reported with a checkpoint; the first attempt fails in the first one."""
    context = runfold.get_context()
    rank = context.get_world_rank()
    shard = runfold.get_dataset_shard("train")
    runfold.get_checkpoint()
    file = Path(str(config["folder"]), f"rows-{rank}")
    for _ in range(shard.epoch, 2):
        for number, batch in enumerate(shard.iter_batches(batch_size=4)):
            assert isinstance(batch, dict)
            ids = [int(value) for value in batch["id"]]
            assert [float(value) for value in batch["half"]] == [value / 2 for value in ids]
            with file.open("a", encoding="utf-8") as rows:
                rows.write(f"{shard.epoch} {' '.join(map(str, ids))}\n")
            save(number)
            runfold.barrier()
            if config["fails"] and context.get_attempt() == 1 and number == 1:
                while len(runfold.get_all_reported_checkpoints(timeout_s=5)) < 2:
                    pass
                runfold.barrier()
                raise RuntimeError("once")
    return len(shard)


def save(number: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"state-{runfold.get_context().get_world_rank()}").write_text(str(number), encoding="utf-8")
        runfold.report({"number": number}, checkpoint=runfold.Checkpoint.from_directory(folder))


def fit(folder: Path, data: object, cluster: str, *, fails: bool = False, seed: int | None = None) -> runfold.Result:
    return runfold.Trainer(
        train,
        train_loop_config={"folder": str(folder), "fails": fails},
        scaling_config=runfold.ScalingConfig(num_workers=2),
        run_config=runfold.RunConfig(
            name="rays",
            data_dir=folder / "data",
            env={"RAY_ADDRESS": cluster},
            failure_config=runfold.FailureConfig(max_failures=1),
        ),
        datasets={"train": data},
        dataset_config=runfold.DataConfig(shuffle_seed=seed),
    ).fit()


def epochs(folder: Path) -> list[list[list[int]]]:
    """The rows of each epoch, by rank, in the order in which they came."""
    found: list[list[list[int]]] = [[[], []], [[], []]]
    for rank in range(2):
        for line in (folder / f"rows-{rank}").read_text(encoding="utf-8").splitlines():
            epoch, *ids = map(int, line.split())
            found[epoch][rank] += ids
    return found


@pytest.mark.parametrize("given", [True, False], ids=["given", "made in the ranks"])
def test_no_row_is_lost_or_doubled_over_a_restart(tmp_path: Path, cluster: str, given: bool) -> None:
    result = fit(tmp_path, numbers() if given else numbers, cluster, fails=True)
    assert (result.attempts, result.return_value) == (2, COUNT // 2)
    even_and_odd = [list(range(0, COUNT, 2)), list(range(1, COUNT, 2))]
    assert epochs(tmp_path) == [even_and_odd, even_and_odd]


@pytest.mark.parametrize("given", [True, False], ids=["given", "made in the ranks"])
def test_each_epoch_has_an_order_of_its_own_and_every_rank_knows_it(tmp_path: Path, cluster: str, given: bool) -> None:
    fit(tmp_path, numbers() if given else numbers, cluster, seed=7)
    orders = epochs(tmp_path)
    assert [sorted(first + second) for first, second in orders] == [list(range(COUNT))] * 2
    assert orders[0] != orders[1]
