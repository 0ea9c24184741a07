"""What is trained on a fleet: steps are counted and reported, rank 0 saves some of them; until told that it ends."""

import json
import tempfile
import time
from pathlib import Path

import runfold

STEP_S = 0.02
SAVED_EVERY_COUNT = 10


def train(config: dict[str, str]) -> int:
    """Go on from the newest checkpoint; return the last step."""
    rank, step = runfold.get_context().get_world_rank(), -1
    checkpoint = runfold.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            step = json.loads((Path(folder) / "step.json").read_text())
    begins, enough = step + 1, Path(config["enough"])
    while not enough.exists():
        step += 1
        time.sleep(STEP_S)
        metrics = {"step": step, "begins": begins}
        wanted = runfold.should_checkpoint() or step % SAVED_EVERY_COUNT == 0
        if rank != 0 or not wanted:
            runfold.report(metrics)
            continue
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "step.json").write_text(json.dumps(step))
            runfold.report(metrics, checkpoint=runfold.Checkpoint.from_directory(folder))
    return step
