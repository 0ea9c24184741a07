"""Replica groups with torchft itself, where it is installed: one rank dies, heals from the others, and goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.commands import Commands

pytest.importorskip(
    "torchft", reason="torchft is not installed here; the CI step `torch` has it (pip install 'runfold[torchft]')"
)

TRAINING = """
import os, pathlib, time
from datetime import timedelta
import runfold

def train():
    import torch
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo

    group, state = runfold.get_context().get_replica_group(), {"sum": torch.zeros(1)}
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=30)),
        min_replica_size=1,
        load_state_dict=lambda loaded: state.update(loaded),
        state_dict=lambda: dict(state),
        replica_id=f"group_{group}",
        timeout=timedelta(seconds=60),
        quorum_timeout=timedelta(seconds=60),
        connect_timeout=timedelta(seconds=60),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        store_addr=os.environ["MASTER_ADDR"],
        store_port=int(os.environ["MASTER_PORT"]),
    )
    died = pathlib.Path("died")
    # The others begin without who is late: it dies whenever it has come, and they train on at least so long.
    while manager.current_step() < 40 or not died.exists():
        manager.start_quorum()
        gradient = torch.ones(1)
        manager.allreduce(gradient).wait()
        if manager.should_commit():
            state["sum"] = state["sum"] + gradient
            runfold.report({"step": manager.current_step(), "groups": manager.num_participants()})
        if group == 1 and manager.current_step() >= 10 and not died.exists():
            died.touch()
            os._exit(3)
        time.sleep(0.1)
    total = float(state["sum"])
    manager.shutdown()
    return total
"""


def test_a_group_that_dies_heals_from_the_others_while_they_train_on(runfold: Commands) -> None:
    runfold.write("heals.py", TRAINING)
    settings = {"backend.kind": "torchft", "failure.max_failures": 1}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    status = runfold.ok("run", "heals.py:train", "--workers", "3", *words, "-o", "json").document
    budgets = status["budgets"]
    assert isinstance(budgets, dict)
    assert (status["state"], status["attempt"], budgets["worker"]["spent"]) == ("finished", 1, 1)
    assert isinstance(status["return_value"], float)
