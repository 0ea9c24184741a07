"""What can go wrong between us and the broker.

BrokerError
├── BrokerStartFailed        nats-server did not come up
│   ├── StoreLocked          another server holds the store directory
│   └── PortTaken            another process listens on the kept port
├── BrokerUnreachable        no server answers there, or it refuses our credentials
├── BrokerClosed             this connection was closed for good
├── Unanswered               no answer: the message may or may not have been stored (may be sent again)
│   └── BrokerAway           it has been away for longer than who asks waits for it
├── ApiRefused               the JetStream API answered with an error
├── StreamMismatch           a stream exists with another configuration
├── StreamsMissing           a stream that holds truth is gone; it is never made anew by itself
├── BlobMissing              no blob of that digest
└── BlobDamaged              a blob's bytes are not those of its digest
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class BrokerError(Exception):
    """Anything that goes wrong between us and the broker."""


class BrokerStartFailed(BrokerError):
    """nats-server did not come up."""


class StoreLocked(BrokerStartFailed):
    """Another server holds the store directory; two on one directory would silently lose messages."""

    def __init__(self, directory: str, pid: int | None) -> None:
        self.pid = pid
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__(
            f"the broker's store {directory} is in use by {holder} (nats-server). Nothing was started. "
            f"Use the service that runs there, or stop it first."
        )


class PortTaken(BrokerStartFailed):
    """Another process listens on the port that this data directory keeps."""

    def __init__(self, port: int, holder: str, port_file: str) -> None:
        self.port = port
        super().__init__(
            f"port {port} of 127.0.0.1, which this data directory keeps for its broker, is in use by {holder}. "
            f"Nothing was started. End that process, or remove {port_file} to have another port chosen "
            f"(clients must then read connection.json again)."
        )


class BrokerUnreachable(BrokerError):
    """No server answers at that address, or it refuses our credentials."""


class BrokerClosed(BrokerError):
    """This connection was closed for good; nothing more can be said or heard on it."""


class Unanswered(BrokerError):
    """No answer came: the message may or may not have been stored. Sending the same bytes again is safe."""

    def __init__(self, subject: str, why: str, *, said: str = "") -> None:
        super().__init__(said or f"the broker did not answer a message on {subject}: {why}")


class BrokerAway(Unanswered):
    """The server was waited for while it was away, and is not back; `str` says what was waited for."""

    def __init__(self, text: str) -> None:
        super().__init__("", "", said=text)


class ApiRefused(BrokerError):
    """The JetStream API answered with an error."""

    def __init__(self, subject: str, code: int, err_code: int, description: str) -> None:
        self.subject = subject
        self.code = code
        self.err_code = err_code
        self.description = description
        super().__init__(f"the broker refused {subject}: {description} (code {code}, error {err_code})")


class StreamMismatch(BrokerError):
    """Streams exist with another configuration than this version needs."""

    def __init__(self, differences: Sequence[str]) -> None:
        self.differences = tuple(differences)
        super().__init__(
            "the broker's streams are not configured as this version needs; nothing was changed:\n  "
            + "\n  ".join(self.differences)
        )


class StreamsMissing(BrokerError):
    """Streams that hold truth are gone; making empty ones would hide the loss."""

    def __init__(self, names: Sequence[str], why: str) -> None:
        self.names = tuple(names)
        super().__init__(
            f"the broker lacks {', '.join(names)}: {why}. Nothing was created, since an empty stream would hide "
            f"the loss. Check that the store directory is the right one; restore runs from their archive otherwise."
        )


class BlobMissing(BrokerError):
    """The object store holds no blob of that digest."""

    def __init__(self, digest: str) -> None:
        self.digest = digest
        super().__init__(f"the broker holds no blob {digest}: it was never uploaded there, or was removed")


class BlobDamaged(BrokerError):
    """A blob's bytes are not those of its digest."""

    def __init__(self, digest: str, found: str) -> None:
        self.digest = digest
        super().__init__(f"blob {digest} is damaged: its bytes are those of {found}; it was not used")
