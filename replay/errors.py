"""What asking a log can end in, besides an answer.

ReplayError
├── NotFound        no such run, file or archive: it says where was looked
├── CannotRead      it is there, and cannot be opened, or holds nothing of a run
├── BadMoment       a moment that is none, or lies outside the run
├── BadSetting      a setting that a job does not have, or may not have so
├── ArchiveRefused  nothing was archived: what stands there is of another log, or the log is damaged
└── ExportRefused   nothing was exported: the log is damaged, and a copy of what is left would look whole
"""

from __future__ import annotations


class ReplayError(Exception):
    """Base of all errors of replay; the text is for people."""


class NotFound(ReplayError):
    """Nothing of that name: neither a run, nor a file, nor an archive."""


class CannotRead(ReplayError):
    """It is there, and cannot be read."""


class BadMoment(ReplayError):
    """A moment that cannot be understood, or at which the run did not exist."""


class BadSetting(ReplayError):
    """A setting that a job does not have, or a value that it may not have."""


class ArchiveRefused(ReplayError):
    """The archive was left as it was, and why."""


class ExportRefused(ReplayError):
    """Nothing was exported, and why."""
