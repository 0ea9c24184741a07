"""Starting a one-shot run's children before anything heavy is loaded here: they load while we do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.children import Children
from runfold.errors import UsageError
from runfold.locate import ONCE_FOLDER

if TYPE_CHECKING:
    from runfold.events.job import Job
    from runfold.locate import Where


def start_early(where: Where, job: Job) -> Children:
    """Start controller and supervisor in a directory of the run's own; whoever gets them runs them, and removes it."""
    folder = where.data_dir / ONCE_FOLDER / str(job.id)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(
            f"a run called {job.id} is under way, or was killed\nIts files are in {folder}; remove them if it was."
        ) from None
    children = Children(folder)
    children.start()
    return children
