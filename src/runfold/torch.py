"""PyTorch: what a training function written for the peer's `train.torch` imports, under the same names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.events.config import BackendConfig
from runfold.trainer import Trainer
from runfold.workers.backends.torchuse import (
    accelerate,
    backward,
    enable_reproducibility,
    get_device,
    get_devices,
    prepare_data_loader,
    prepare_model,
    prepare_optimizer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runfold.events.base import Json
    from runfold.events.config import ScalingConfig
    from runfold.runconfig import RunConfig
    from runfold.validation import ValidationConfig
    from runfold.workers.data import DataConfig

__all__ = [
    "TorchConfig",
    "TorchTrainer",
    "accelerate",
    "backward",
    "enable_reproducibility",
    "get_device",
    "get_devices",
    "prepare_data_loader",
    "prepare_model",
    "prepare_optimizer",
]


def TorchConfig(backend: str | None = None, init_method: str = "env", timeout_s: float = 1800.0) -> BackendConfig:  # noqa: N802  # the peer's name
    """Return the backend of a process group: nccl for ranks that have GPUs, tpu_dist for TPUs, else gloo, unless named.

    With `init_method` "tcp" MASTER_ADDR and MASTER_PORT are not set in the ranks.
    """
    if init_method not in ("env", "tcp"):
        raise ValueError(f"init_method: must be 'env' or 'tcp', not {init_method!r}")
    options: dict[str, Json] = {"timeout_s": timeout_s}
    if backend is not None:
        options["backend"] = backend
    if init_method != "env":
        options["init_method"] = init_method
    return BackendConfig(kind="torch", options=options)


class TorchTrainer(Trainer):
    """A trainer whose ranks are a process group of torch before the training function is called."""

    def __init__(
        self,
        train_loop_per_worker: Callable[..., object] | str,
        *,
        train_loop_config: Mapping[str, object] | None = None,
        torch_config: BackendConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, object] | None = None,
        dataset_config: DataConfig | None = None,
        validation_config: ValidationConfig | None = None,
    ) -> None:
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            scaling_config=scaling_config,
            run_config=run_config,
            backend_config=torch_config or TorchConfig(),
            datasets=datasets,
            dataset_config=dataset_config,
            validation_config=validation_config,
        )
