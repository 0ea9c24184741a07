"""The log of a process of ours: one line a message, whatever is quoted in it."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Final

from runfold.events.escape import safe, safe_lines

_LOG: Final = logging.getLogger("runfold.workers")


class LineFormatter(logging.Formatter):
    """Keeps a message on its line, and a terminal that shows it unharmed; tracebacks keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the base class's name
        """Return the message on one line."""
        return safe(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """Return the message, and the traceback with it."""
        return "\n".join(safe_lines(super().format(record)))


def log_to_stderr(form: str) -> None:
    """Log to stderr from now on, in this form and in no other."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(form))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)  # noqa: TID251  # with our formatter


def log_failure(task: asyncio.Task[None], what: str) -> None:
    """Log what a task has failed by, as its done callback: for tasks whose owner only waits for their end."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.error("%s", what, exc_info=error)


def log_bug(task: asyncio.Task[None], what: str) -> None:
    """Log what a task has failed by that fails by a bug alone, as its done callback."""
    log_failure(task, f"{what}: a bug of runfold's own")
