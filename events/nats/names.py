"""What things are called on the broker beside the subjects: streams, buckets, users and their inboxes."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from runfold.events.subjects import DEFAULT_NAMESPACE, Subjects

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
    """The names of one namespace's streams and buckets; `subjects` builds its subjects."""

    def __init__(self, namespace: str = DEFAULT_NAMESPACE) -> None:
        subjects = Subjects(namespace)
        self.subjects = subjects
        self.account = namespace.upper()
        self.jobs = subjects.stream("JOBS")
        self.refusals = subjects.stream("REFUSALS")
        self.inbox = subjects.stream("INBOX")
        self.log = subjects.stream("LOG")
        self.assignments = subjects.stream("ASSIGNMENTS")
        self.output = subjects.stream("OUTPUT")
        self.status_bucket = subjects.stream("STATUS")
        self.leases_bucket = subjects.stream("LEASES")
        self.owners_bucket = subjects.stream("OWNERS")
        self.snapshots_bucket = subjects.stream("SNAPSHOTS")
        self.blobs_bucket = subjects.stream("BLOBS")
        self.blobs = f"OBJ_{self.blobs_bucket}"

    @property
    def namespace(self) -> str:
        """The first token of every subject."""
        return self.subjects.namespace

    @staticmethod
    def stream_of(bucket: str) -> str:
        """Return the stream that holds a key-value bucket."""
        return f"KV_{bucket}"

    @staticmethod
    def key_subject(bucket: str, key: str) -> str:
        """Return the subject of a key of a bucket."""
        return f"$KV.{bucket}.{key}"
