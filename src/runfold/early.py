"""Starting a one-shot run's processes before anything heavy is loaded here: they start and load while we do."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runfold.children import Children
from runfold.errors import ServiceError, UsageError
from runfold.events.nats.broker import start_broker
from runfold.events.nats.errors import BrokerStartFailed
from runfold.locate import ONCE_FOLDER
from runfold.once import occupy

if TYPE_CHECKING:
    from pathlib import Path

    from runfold.events.job import Job
    from runfold.events.nats.broker import Broker
    from runfold.locate import Where


@dataclass(frozen=True, slots=True)
class Early:
    """Started, and not yet told what to do. Whoever gets them runs them, stops them, and removes their directory.

    `lived_in` is the descriptor by which that is locked; closed when nothing of this is left.
    """

    children: Children
    broker: Broker
    lived_in: int


def _occupied(folder: Path) -> int:
    try:
        return occupy(folder)
    except FileNotFoundError:
        # A salvage has removed it: between its making and its lock it looks like a killed run's.
        return occupy(folder)


def start_early(where: Where, job: Job) -> Early:
    """Start broker, controller and supervisor in a directory of the run's own."""
    folder = where.data_dir / ONCE_FOLDER / str(job.id)
    try:
        lived_in = _occupied(folder)
    except FileExistsError:
        raise UsageError(
            f"a run called {job.id} is under way, or was killed\n"
            f"Its files are in {folder}; if it was, `{where.hint('salvage', str(job.id))}` archives what they hold."
        ) from None
    children = Children(folder, lived_in=lived_in)
    try:
        children.start()
        broker = start_broker(folder, namespace=where.settings.namespace, die_with_parent=True)
        return Early(children, broker, lived_in)
    except (BrokerStartFailed, ServiceError, OSError) as error:
        # The children end by themselves: they were told nothing, and their pipes close with us.
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lived_in)
        if isinstance(error, BrokerStartFailed):
            raise ServiceError(str(error)) from error
        raise
