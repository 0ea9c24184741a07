"""The job as runfold's ranks run it."""

from pathlib import Path
from typing import TypedDict

import peer_jobs

import runfold


class Config(TypedDict):
    """Which job, and where it notes what happens."""

    job: str
    folder: str


def train(config: Config) -> None:
    """Be a rank."""
    context = runfold.get_context()
    folder = Path(config["folder"])
    peer_jobs.run(config["job"], folder, context.get_world_rank(), context.get_world_size(), runfold.report)
