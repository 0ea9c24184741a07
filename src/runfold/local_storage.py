"""The checkpoints of local mode: sealed and retained in this process, by the rules of a run that has a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.events.checkpoints import Kept, doomed, ranked, score_of, with_rank
from runfold.workers.layout import StorageSpec
from runfold.workers.payload import pickle_any
from runfold.workers.sealing import SealOrder, delete, look, seal
from runfold.workers.storage import open_storage

if TYPE_CHECKING:
    from pathlib import Path

    from runfold.events.job import Job
    from runfold.workers.checkpoint import Checkpoint
    from runfold.workers.link import Report


class LocalCheckpoints:
    """One run's. `first_index` and `begins_from` are what an earlier run under the same name has left."""

    def __init__(self, job: Job, storage_dir: Path, given: object | None) -> None:
        self._job = job
        filesystem = None if given is None else pickle_any(given)
        name = job.storage_name or str(job.id)
        url = job.storage_path or ("runfold" if filesystem is not None else str(storage_dir))
        self.spec = StorageSpec(url=url, name=name, options=job.storage_options, filesystem=filesystem)
        self.storage = open_storage(self.spec)
        self.first_index = 0
        self.begins_from: str | None = None
        self._kept: tuple[Kept, ...] = ()
        if name != job.id and self.storage.files.exists(self.storage.root):
            self._continue()

    def _continue(self) -> None:
        config = self._job.checkpoint
        found = look(self.storage, str(self._job.id), config.checkpoint_score_attribute)
        usable = [one for one in found.checkpoints if config.resume_doubtful or one.name not in found.doubtful]
        for one in usable:
            kept = Kept(name=one.name, index=one.index, attempt=one.attempt)
            self._kept = ranked(self._kept, kept, one.name)
        self.begins_from = usable[-1].name if usable else None
        self.first_index = max((one.index + 1 for one in found.checkpoints), default=0)

    def commit(self, report: Report) -> None:
        """Seal what a report has uploaded, and delete what is kept no more."""
        if report.checkpoint is None:
            return
        name, index, config = report.checkpoint, self.first_index + report.index, self._job.checkpoint
        order = SealOrder(name=name, index=index, attempt=1, ranks=with_rank("", 0), world_size=1)
        seal(self.storage, str(self._job.id), order)
        score, _ = score_of(report.metrics, config)
        self._kept = ranked(self._kept, Kept(name=name, index=index, attempt=1, score=score), name)
        gone = {one.name for one in doomed(self._kept, name, config.num_to_keep)}
        self._kept = tuple(one for one in self._kept if one.name not in gone)
        delete(self.storage, gone, sealed=True)

    @property
    def names(self) -> list[str]:
        """The checkpoints that are kept, the best last."""
        return [one.name for one in self._kept]

    @property
    def latest(self) -> Checkpoint | None:
        """The newest checkpoint."""
        newest = max(self._kept, key=lambda one: one.index, default=None)
        return None if newest is None else self.storage.checkpoint(newest.name)
