"""What the functions of a training process raise.

```text
RunfoldError
├── NotInTrainingFunctionError (RuntimeError)
├── NotAvailableError (NotImplementedError)
├── MetricsError (ValueError, TypeError)
├── LoadError
├── DataError (ValueError)
├── LinkError (ConnectionError)
├── SpawnError
├── StorageError (RuntimeError)
│   └── UploadError (OSError)
├── CheckpointNameError (ValueError)
│   └── CheckpointClashError
├── CheckpointDamagedError (OSError)
└── CollectiveError
    ├── CollectiveMismatchError
    ├── CollectivePeerError
    ├── CollectiveTooLargeError (ValueError)
    └── CollectiveTimeoutError (TimeoutError)
        └── BroadcastCollectiveTimeoutError
```
"""

from __future__ import annotations

from runfold.events.escape import safe_lines


class RunfoldError(Exception):
    """Base of all errors that runfold raises on purpose."""

    def __str__(self) -> str:
        """Return the message, harmless to a terminal: it may quote anybody, and an interpreter prints it as it is."""
        return "\n".join(safe_lines(super().__str__()))


class NotInTrainingFunctionError(RunfoldError, RuntimeError):
    """A function of the session was called outside of a training function."""


class NotAvailableError(RunfoldError, NotImplementedError):
    """Something this version does not do yet; the message says what to do instead."""


class MetricsError(RunfoldError, ValueError, TypeError):
    """Metrics that cannot be recorded; the message names the key."""


class LoadError(RunfoldError):
    """The entry point could not be found, or is nothing that can be trained with."""


class DataError(RunfoldError, ValueError):
    """Something that was given as a data set is none, or cannot be shared out as asked for."""


class LinkError(RunfoldError, ConnectionError):
    """The connection between a rank and its runner is gone, or what came over it is no message."""


class SpawnError(RunfoldError):
    """A process could not be started."""


class StorageError(RunfoldError, RuntimeError):
    """A run's storage cannot be used; the message says what to do."""


class UploadError(StorageError, OSError):
    """A checkpoint was not uploaded; what was reported with it is recorded, the checkpoint is not."""


class CheckpointNameError(RunfoldError, ValueError):
    """What was given names no directory of a checkpoint."""


class CheckpointClashError(CheckpointNameError):
    """The directory is another checkpoint's."""


class CheckpointDamagedError(RunfoldError, OSError):
    """A checkpoint's files are not what was uploaded; the message names the first one."""


class CollectiveError(RunfoldError):
    """A collective that did not come about; all ranks that took part in it get the same error."""


class CollectiveMismatchError(CollectiveError):
    """Ranks called different collectives at the same place; the message names both."""


class CollectivePeerError(CollectiveError):
    """A rank that was waited for has returned or ended; the message names it."""


class CollectiveTooLargeError(CollectiveError, ValueError):
    """A value over `collective_max_bytes`, or all values of a gather over `gather_max_bytes`."""


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """Not all ranks arrived in time. `missing_ranks` names those that did not."""

    def __init__(self, message: str, missing_ranks: tuple[int, ...] = (), timeout_s: float | None = None) -> None:
        # TimeoutError is an OSError, which would read three arguments as errno, text and file name.
        super().__init__(message)
        self.missing_ranks = missing_ranks
        self.timeout_s = timeout_s

    def __reduce__(self) -> tuple[type[CollectiveTimeoutError], tuple[str, tuple[int, ...], float | None]]:
        return type(self), (str(self), self.missing_ranks, self.timeout_s)


class BroadcastCollectiveTimeoutError(CollectiveTimeoutError):
    """`broadcast_from_rank_zero` timed out."""
