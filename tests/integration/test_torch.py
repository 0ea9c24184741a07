"""The torch backend: a process group over the ranks before their function is called."""

from __future__ import annotations

import importlib.util
import random
import sys
import threading
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

import pytest

import runfold
from runfold.errors import TrainingFailedError
from runfold.replay.source import load
from runfold.replay.story import story
from runfold.torch import (
    TorchConfig,
    TorchTrainer,
    accelerate,
    backward,
    enable_reproducibility,
    prepare_optimizer,
)
from runfold.workers.backends import Place, torchlib
from runfold.workers.backends.torch import TorchBackend
from runfold.workers.backends.torchuse import DeviceLoader, on_device
from support.torched import batches, gathers, loses_a_rank, meets_by_tcp, needs_loader, shares_loaders, trains_together

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NEEDS_TORCH = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed here; the step `torch` of .ci/run has it (pip install 'runfold[torch]')",
)


def config(data: Path) -> runfold.RunConfig:
    return runfold.RunConfig(name="torched", data_dir=data)


@NEEDS_TORCH
def test_ranks_are_a_process_group_and_are_again_after_a_restart(tmp_path: Path) -> None:
    trainer = TorchTrainer(
        gathers,
        scaling_config=runfold.ScalingConfig(num_workers=2),
        run_config=runfold.RunConfig(
            name="torched", data_dir=tmp_path, failure_config=runfold.FailureConfig(max_failures=1)
        ),
    )
    result = trainer.fit()
    assert result.attempts == 2
    assert result.return_value == {"sum": 3.0, "rank": "0", "world": "2", "addr": "127.0.0.1", "initialized": True}


@NEEDS_TORCH
@pytest.mark.parametrize(
    ("how", "kind", "told"),
    [("raise", "user", "ValueError: what it was"), ("exit", "exit", "code 3"), ("kill", "signal", "SIGKILL")],
)
def test_who_broke_the_process_group_is_the_first_cause_and_not_who_noticed(
    tmp_path: Path, how: str, kind: str, told: str
) -> None:
    trainer = TorchTrainer(
        loses_a_rank,
        train_loop_config={"how": how},
        scaling_config=runfold.ScalingConfig(num_workers=3),
        run_config=config(tmp_path),
    )
    with pytest.raises(TrainingFailedError):
        trainer.fit()
    (archive,) = (tmp_path / "archive").iterdir()
    setback = story(load(str(archive))).setbacks[-1]
    assert (setback.cause.rank, setback.cause.kind) == (1, kind)
    assert told in f"{setback.cause.type}: {setback.cause.message}"


def two(function: Callable[[], object], data: Path, config: runfold.BackendConfig | None = None) -> runfold.Result:
    scaling = runfold.ScalingConfig(num_workers=2)
    run_config = runfold.RunConfig(name="torched", data_dir=data)
    return TorchTrainer(function, torch_config=config, scaling_config=scaling, run_config=run_config).fit()


@NEEDS_TORCH
def test_ranks_meet_by_tcp_without_variables_that_name_where(tmp_path: Path) -> None:
    config = TorchConfig("gloo", init_method="tcp", timeout_s=60.0)
    assert two(meets_by_tcp, tmp_path, config).return_value == [2.0, False, "cpu"]


@NEEDS_TORCH
def test_a_model_is_trained_together(tmp_path: Path) -> None:
    each = [1.5, "DistributedDataParallel", "Linear", "cpu", True]
    assert two(trains_together, tmp_path).return_value == [each, each]


@NEEDS_TORCH
def test_each_rank_has_its_share_of_a_loader_and_the_loaders_ways(tmp_path: Path) -> None:
    found = cast("list[dict[str, object]]", two(shares_loaders, tmp_path).return_value)
    assert [one["in order"] for one in found] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    shuffled = [row for one in found for row in cast("list[int]", one["shuffled"])]
    assert sorted(shuffled) == list(range(8))
    for one in found:
        kept = {name: one[name] for name in ("drop_last", "kept", "replaced", "stream", "already")}
        assert kept == {
            "drop_last": True,
            "kept": True,
            "replaced": "DistributedSampler",
            "stream": True,
            "already": True,
        }
    assert any(one["another epoch"] for one in found)


@NEEDS_TORCH
def test_batches_go_to_a_device_whatever_holds_them() -> None:
    torch = import_module("torch")
    meta = torch.device("meta")
    batch = {"a": [torch.zeros(1), (torch.ones(2), "text")], "b": Pair(torch.zeros(3), 7)}
    moved = cast("dict[str, list[object]]", on_device(batch, meta, beside=True))
    assert str(getattr(moved["a"][0], "device", "")) == "meta"
    assert cast("tuple[object, object]", moved["a"][1])[1] == "text"
    pair = cast("object", moved["b"])
    assert isinstance(pair, Pair)
    assert (str(getattr(pair.left, "device", "")), pair.right) == ("meta", 7)
    loader = DeviceLoader([torch.zeros(1)], meta, beside=False)
    assert len(loader) == 1
    assert [str(getattr(one, "device", "")) for one in loader] == ["meta"]


@NEEDS_TORCH
def test_what_is_drawn_is_drawn_again() -> None:
    torch = import_module("torch")
    drawn: list[object] = []
    try:
        for _ in range(2):
            enable_reproducibility(7)
            drawn.append([random.random(), torch.rand(2).tolist()])
    finally:
        torch.use_deterministic_algorithms(False)
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("gone", [accelerate, backward, prepare_optimizer])
def test_what_the_peer_has_given_up_says_what_to_do(gone: Callable[..., object]) -> None:
    with pytest.raises(DeprecationWarning, match="gone"):
        gone(object())


class Pair(NamedTuple):
    """What a loader's own collate function may make."""

    left: object
    right: object


class Hangs:
    """torch.distributed, of which nobody can leave the group."""

    def __init__(self) -> None:
        self.left = threading.Event()

    def is_initialized(self) -> bool:
        return True

    def destroy_process_group(self) -> None:
        self.left.wait(30.0)


def test_a_group_that_cannot_be_left_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hangs = Hangs()
    monkeypatch.setattr(torchlib, "distributed", lambda: hangs)
    monkeypatch.setitem(sys.modules, "torch.distributed", sys)
    place = Place(
        rank=0,
        world_size=2,
        local_rank=0,
        local_world_size=2,
        node_rank=0,
        addr="127.0.0.1",
        options={"shutdown_timeout_s": 0.05},
    )
    TorchBackend(place).on_shutdown()
    hangs.left.set()
    assert "was not left within 0.05 s; going on" in capsys.readouterr().err


@NEEDS_TORCH
def test_a_loader_is_shared_out_and_batches_can_be_tensors(tmp_path: Path) -> None:
    trainer = TorchTrainer(
        needs_loader, scaling_config=runfold.ScalingConfig(num_workers=2), run_config=config(tmp_path)
    )
    assert trainer.fit().return_value == [4, 4]
    whole = TorchTrainer(batches, run_config=config(tmp_path / "one"), datasets={"train": [[1.0], [2.0], [3.0]]})
    assert whole.fit().return_value == [2, 1]


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed here")
def test_without_torch_the_run_says_how_to_have_it_and_is_not_tried_again(tmp_path: Path) -> None:
    trainer = TorchTrainer(lambda: None, run_config=config(tmp_path))
    with pytest.raises(TrainingFailedError, match=r"runfold\[torch\]") as caught:
        trainer.fit()
    assert caught.value.result is not None
    assert caught.value.result.attempts == 1


def test_options_are_checked() -> None:
    assert TorchConfig("gloo", timeout_s=5.0).options == {"timeout_s": 5.0, "backend": "gloo"}
    with pytest.raises(ValueError, match="init_method"):
        TorchConfig(init_method="file")
