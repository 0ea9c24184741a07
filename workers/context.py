"""Who a rank is, as its training function asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from runfold.events.values import unpack
from runfold.workers.errors import StorageError

if TYPE_CHECKING:
    from runfold.events.base import Json
    from runfold.workers.link import Start
    from runfold.workers.storage import Storage


class TrainContext:
    """Who this rank is, and in which run."""

    def __init__(self, start: Start, storage: Storage | None = None) -> None:
        self._start = start
        self._storage = storage

    def get_run_id(self) -> str:
        """Return the id of the run, as `runfold get` takes it."""
        return self._start.run

    def get_attempt(self) -> int:
        """Return the number of the attempt, from 1."""
        return self._start.attempt

    def get_experiment_name(self) -> str:
        """Return the name of the run, as given in its configuration."""
        return self._start.name

    def get_world_size(self) -> int:
        """Return how many ranks the group has."""
        return self._start.world_size

    def get_world_rank(self) -> int:
        """Return this rank's number in the group, from 0."""
        return self._start.rank

    def get_local_rank(self) -> int:
        """Return this rank's number among those on its node, from 0."""
        return self._start.local_rank

    def get_local_world_size(self) -> int:
        """Return how many ranks of the group are on this node."""
        return self._start.local_world_size

    def get_node_rank(self) -> int:
        """Return the number of this node in the group, from 0."""
        return self._start.node_rank

    def get_gpu_ids(self) -> tuple[str, ...]:
        """Return the ids of the GPUs that are this rank's own; none where its pool gives none."""
        return self._start.gpus

    def get_replica_group(self) -> int:
        """Return the number of this rank's replica group, from 0; 0 where the ranks have no groups."""
        return self._start.replica_group or 0

    def get_replica_group_count(self) -> int:
        """Return how many replica groups the run has; 1 where the ranks have no groups."""
        return self._start.replica_groups

    def get_replica_rank(self) -> int:
        """Return this rank's number among those that it meets in collectives, from 0."""
        return self._start.rank - self._start.replica_first

    def get_arguments(self) -> dict[str, Json]:
        """Return what a callback's `before_init_train_context` gave this rank, by name."""
        return {name: unpack(value) for name, value in self._start.arguments.items()}

    def get_storage(self) -> Storage:
        """Return the run's storage: its `root` is a path on its `files.filesystem`."""
        if self._storage is None:
            raise StorageError("get_storage: this run has no storage")
        return self._storage

    # --- what the peer has taken away, and where it is now

    def get_metadata(self) -> NoReturn:
        """Say what to do instead."""
        raise DeprecationWarning("get_metadata is gone: give what the ranks need as train_loop_config")

    def get_trial_name(self) -> NoReturn:
        """Say what to do instead."""
        raise DeprecationWarning("get_trial_name is gone: get_experiment_name() is the run's name")

    def get_trial_id(self) -> NoReturn:
        """Say what to do instead."""
        raise DeprecationWarning("get_trial_id is gone: get_run_id() is the run's id")

    def get_trial_resources(self) -> NoReturn:
        """Say what to do instead."""
        raise DeprecationWarning("get_trial_resources is gone: give what the ranks need as train_loop_config")

    def get_trial_dir(self) -> NoReturn:
        """Say what to do instead."""
        raise DeprecationWarning("get_trial_dir is gone: get_storage() is where the run keeps its checkpoints")
