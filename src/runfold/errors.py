"""What the command line and the Python API raise; the exit code stands on the class.

```text
RunfoldError (exit code 1)
├── UsageError (ValueError)                2   what was asked for cannot be asked for
├── NotFoundError                          4   no such run, on the service or in the archive
├── UnreachableError (ConnectionError)     5   no broker answers
│   └── BrokerAwayError                    5   the service runs, and its broker was waited for in vain
├── NotAcceptedError                       1   the controller refused a request, or the broker what was published
│   └── JobRefusedError                    2   the controller refused a job: nothing was started
├── RestoreRefusedError                    1   nothing to restore, or nothing to restore it from; nothing was changed
├── NoAnswerError (TimeoutError)           1   nobody answered a request in time; it may still be done
├── ServiceError                           1   a process of our own did not start, or ended too early
│   └── StreamsLostError                   1   the broker came back without what it kept; nothing is made anew
├── RunAbortedError                        3   the run ended ABORTED; carries `.result`
└── TrainingFailedError                    1   the run ended ERRORED; carries `.result`
    ├── WorkerGroupError                   1   ranks failed: `.worker_failures` by rank
    ├── PreemptionError                    1   its nodes were taken back once too often
    └── ControllerError                    1   the controller could not go on, or the teardown failed
```

Errors of the functions called inside a training function are in `runfold.workers.errors`; all share the base.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from runfold.workers.errors import RunfoldError

if TYPE_CHECKING:
    from runfold.result import Result

__all__ = [
    "BrokerAwayError",
    "ControllerError",
    "JobRefusedError",
    "NoAnswerError",
    "NotAcceptedError",
    "NotFoundError",
    "PreemptionError",
    "RestoreRefusedError",
    "RunAbortedError",
    "RunfoldError",
    "ServiceError",
    "StreamsLostError",
    "TrainingFailedError",
    "UnreachableError",
    "UsageError",
    "WorkerGroupError",
    "exit_code_of",
]

EXIT_FINE = 0
EXIT_FINDINGS = 1
EXIT_USAGE = 2
EXIT_ABORTED = 3
EXIT_NOT_FOUND = 4
EXIT_UNREACHABLE = 5
EXIT_INTERRUPTED = 128 + 2
"""Ctrl-C ended a command that only looked on: what a shell says of a program that SIGINT has ended."""

EXIT_UNHEARD = 128 + 13
"""Nobody reads what is printed: what a shell says of a program that SIGPIPE has ended."""


class UsageError(RunfoldError, ValueError):
    """What was asked for cannot be asked for; the message names the option or field."""

    exit_code: ClassVar[int] = EXIT_USAGE


class NotFoundError(RunfoldError):
    """No such run: neither the service nor the archive knows it."""

    exit_code: ClassVar[int] = EXIT_NOT_FOUND


class UnreachableError(RunfoldError, ConnectionError):
    """No broker answers where one was looked for."""

    exit_code: ClassVar[int] = EXIT_UNREACHABLE


class BrokerAwayError(UnreachableError):
    """The service runs, but its broker does not answer; it was waited for. Nothing is known of what was asked."""


class NotAcceptedError(RunfoldError):
    """The controller refused a job or a request; the message says why, nothing else changed."""


class JobRefusedError(NotAcceptedError):
    """The controller refused a job; the message names the field and says why. Nothing was started."""

    exit_code: ClassVar[int] = EXIT_USAGE


class RestoreRefusedError(RunfoldError):
    """There is nothing to restore, or nothing fit to restore it from; nothing was changed."""


class NoAnswerError(RunfoldError, TimeoutError):
    """Nobody answered in time. What was asked stands on the broker and may still be done."""


class ServiceError(RunfoldError):
    """A process of our own did not start, or ended too early; the message holds the end of its log."""


class StreamsLostError(ServiceError):
    """The broker came back without streams that it kept; nothing is made anew, since that would hide the loss."""


class _Ended(RunfoldError):
    """A run ended otherwise than FINISHED; what it did until then is in `result`."""

    def __init__(self, message: str, result: Result | None = None) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[type[_Ended], tuple[object, ...]]:
        return type(self), (str(self), self.result)


class RunAbortedError(_Ended):
    """The run ended ABORTED: somebody asked for it."""

    exit_code: ClassVar[int] = EXIT_ABORTED


class TrainingFailedError(_Ended):
    """The run ended ERRORED."""


class WorkerGroupError(TrainingFailedError):
    """Ranks failed and no budget was left: what each rank said, by rank."""

    def __init__(
        self, message: str, worker_failures: dict[int, str] | None = None, result: Result | None = None
    ) -> None:
        super().__init__(message, result)
        self.error_message = message
        self.worker_failures = worker_failures or {}

    def __reduce__(self) -> tuple[type[WorkerGroupError], tuple[object, ...]]:
        return type(self), (str(self), self.worker_failures, self.result)


class PreemptionError(TrainingFailedError):
    """Nodes were taken back more often than `max_preemption_failures` allows."""


class ControllerError(TrainingFailedError):
    """The controller could not go on, or the group could not be released."""


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for an error that reached the top."""
    return getattr(error, "exit_code", EXIT_FINDINGS)
