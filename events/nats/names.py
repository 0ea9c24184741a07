"""What things are called on the broker: streams, buckets, users and inboxes of one namespace."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

DEFAULT_NAMESPACE: Final = "runfold"
_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")

JOBS_CONSUMER: Final = "controllers"
"""The one durable consumer of the JOBS stream."""


class Role(StrEnum):
    """The broker's four users."""

    ADMIN = "admin"
    CONTROLLER = "controller"
    WORKER = "worker"
    CLIENT = "client"

    @property
    def inbox(self) -> str:
        """The prefix of the subjects on which this user hears answers.

        The client's is the common one, so that the `nats` program and any NATS library work with its url.
        """
        return "_INBOX" if self is Role.CLIENT else f"_INBOX_{self.value}"


class Names:
    """The names of one namespace's streams; `prefix` starts every subject."""

    def __init__(self, namespace: str = DEFAULT_NAMESPACE) -> None:
        if not _NAMESPACE.fullmatch(namespace):
            raise ValueError(
                f"namespace {namespace!r} cannot be used: a to z, 0 to 9, _ and -, at most 32 of them, "
                f"the first a letter or digit"
            )
        self.prefix = namespace
        upper = namespace.upper()
        self.account = upper
        self.jobs = f"{upper}_JOBS"
        self.refusals = f"{upper}_REFUSALS"
        self.inbox = f"{upper}_INBOX"
        self.log = f"{upper}_LOG"
        self.assignments = f"{upper}_ASSIGNMENTS"
        self.output = f"{upper}_OUTPUT"
        self.status_bucket = f"{upper}_STATUS"
        self.leases_bucket = f"{upper}_LEASES"
        self.owners_bucket = f"{upper}_OWNERS"
        self.snapshots_bucket = f"{upper}_SNAPSHOTS"
        self.blobs_bucket = f"{upper}_BLOBS"
        self.blobs = f"OBJ_{self.blobs_bucket}"

    @staticmethod
    def stream_of(bucket: str) -> str:
        """Return the stream that holds a key-value bucket."""
        return f"KV_{bucket}"

    @staticmethod
    def key_subject(bucket: str, key: str) -> str:
        """Return the subject of a key of a bucket."""
        return f"$KV.{bucket}.{key}"
