"""What a training function asks for beside its checkpoint: its data, and all checkpoints of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.workers.given import CheckpointConsistencyMode, ReportedCheckpoint, metrics_in
from runfold.workers.session import current
from runfold.workers.waits import told_on

if TYPE_CHECKING:
    from runfold.workers.data import DatasetShard


def get_dataset_shard(dataset_name: str = "train") -> DatasetShard:
    """Return this rank's shard of a data set given to the trainer. `KeyError` for one that was not."""
    session = current("get_dataset_shard")
    if session.data is None:
        raise KeyError(f"there is no dataset {dataset_name!r}: the trainer was given none (datasets={{…}})")
    return session.data.shard(dataset_name)


def get_all_reported_checkpoints(
    consistency_mode: CheckpointConsistencyMode = CheckpointConsistencyMode.VALIDATED,
    timeout_s: float | None = None,
) -> list[ReportedCheckpoint]:
    """Return the checkpoints that the run keeps, the best last, with their metrics and what came of validations.

    Waits until everything this rank has reported is dealt with (COMMITTED), and until nothing is being validated
    (VALIDATED, the default); after `timeout_s` it returns what there is. Any rank may call it, by itself.
    """
    session = current("get_all_reported_checkpoints")
    validated = CheckpointConsistencyMode(consistency_mode) is CheckpointConsistencyMode.VALIDATED
    storage = session.storage
    found: list[ReportedCheckpoint] = []
    with told_on("the wait for the checkpoints that were reported"):
        listed = session.inquire(validated=validated, timeout_s=timeout_s)
    for name, status in listed.checkpoints:
        try:
            metrics = metrics_in(storage, name)
        except FileNotFoundError:
            continue  # deleted since
        found.append(ReportedCheckpoint(checkpoint=storage.checkpoint(name), metrics=metrics, status=status))
    return found
