"""A replica group that is replaced by real processes: told to an observer here, asked of a gate in the hook process."""

from __future__ import annotations

import time
from pathlib import Path

import runfold
from runfold.workers.callbacks import ControllerState, GroupInfo


class Told(runfold.ReplicaGroupCallback):
    """Writes down what it is told."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def note(self, what: str, group: GroupInfo) -> None:
        with self.file.open("a", encoding="utf-8") as noting:
            noting.write(f"{what} {group.replica}.{group.life} {[worker.world_rank for worker in group.workers]}\n")

    def before_replica_group_shutdown(self, replica_group: GroupInfo) -> None:
        self.note("ends", replica_group)

    def after_replica_group_start(self, replica_group: GroupInfo) -> None:
        self.note("begins", replica_group)


class Asked(Told):
    """Is asked, too."""

    @runfold.gate
    def before_replica_group_shutdown(self, replica_group: GroupInfo) -> None:
        self.note("asked: ends", replica_group)

    @runfold.gate(on_error="warn")
    def after_replica_group_start(self, replica_group: GroupInfo) -> None:
        self.note("asked: begins", replica_group)
        raise RuntimeError("only told")


class Shown(runfold.ControllerCallback):
    """Shows the ranks that their run is running: who fails before takes all of them along."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def after_controller_state_update(self, previous_state: ControllerState, current_state: ControllerState) -> None:
        if current_state.name == "running":
            self.file.touch()


def fails_once(config: dict[str, str]) -> int:
    """Rank 3 fails in its first life; the others train on until it is back."""
    context, once, running = runfold.get_context(), Path(config["folder"], "once"), Path(config["folder"], "running")
    if context.get_world_rank() == 3 and not once.exists():
        while not running.exists():
            time.sleep(0.01)
        once.touch()
        raise RuntimeError("once")
    runfold.report({"step": 0})
    return context.get_attempt()


def test_the_hooks_of_replica_groups_are_called_where_they_belong(tmp_path: Path) -> None:
    result = runfold.Trainer(
        fails_once,
        train_loop_config={"folder": str(tmp_path)},
        scaling_config=runfold.ScalingConfig(num_workers=4, replica_group_size=2),
        run_config=runfold.RunConfig(
            name="replicas",
            data_dir=tmp_path / "data",
            callbacks=(Told(tmp_path / "told"), Asked(tmp_path / "asked"), Shown(tmp_path / "running")),
            failure_config=runfold.FailureConfig(max_failures=1),
        ),
    ).fit()
    assert (result.state, result.attempts, result.return_value) == ("finished", 1, 1)
    told = (tmp_path / "told").read_text(encoding="utf-8").splitlines()
    asked = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
    assert told == ["ends 1.1 [2, 3]", "begins 1.2 [2, 3]"]
    assert sorted(asked) == ["asked: begins 1.2 [2, 3]", "asked: ends 1.1 [2, 3]"]
