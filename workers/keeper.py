"""The keeper: a process beside the ranks that works in the run's storage for their runner, one thing after another.

Client libraries block, crash and need the job's environment: none of that belongs into the runner. It is forked like a
rank, and ends with its runner.
"""

from __future__ import annotations

import socket
from typing import Final

import msgspec

from runfold.events.base import Json
from runfold.events.failures import ErrorInfo
from runfold.events.tasks import DELETE, DOUBT, OPEN, SEAL, SealedAs, Task
from runfold.workers.capture import Capture
from runfold.workers.config import apply_environment
from runfold.workers.errors import StorageError
from runfold.workers.frames import HEADER, frame
from runfold.workers.layout import StorageSpec
from runfold.workers.processes import name_process
from runfold.workers.retry import Retries, retried
from runfold.workers.sealing import SealOrder, delete, doubt, left_before, look, seal
from runfold.workers.storage import Storage, as_storage_error, check_name, open_storage

SPEC: Final = b"keeper"
"""What a spawner is told so that it forks a keeper and not a rank."""
KEEPER_FRAME_MAX_BYTES: Final = 64 * 1024 * 1024


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Do this in the storage, with the job's environment; after an error so often again."""

    task: Task
    run: str
    spec: StorageSpec
    env: dict[str, str] = {}
    retries_max: int = 3


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: an error, what a seal says, or another value."""

    error: ErrorInfo | None = None
    sealed: SealedAs | None = None
    value: Json = None


def main(_spec: bytes, fds: dict[str, int]) -> int:
    """Serve until the runner closes the link."""
    name_process("runfold-keeper")
    asks, answers = msgspec.msgpack.Decoder(Ask), msgspec.msgpack.Encoder()
    with socket.socket(fileno=fds["link"]) as link:
        while (data := receive(link)) is not None:
            answer = _answered(asks.decode(data))
            link.sendall(frame(answers.encode(answer), KEEPER_FRAME_MAX_BYTES))
    return 0


def _answered(ask: Ask) -> Answer:
    answer: Answer | None = None
    with Capture() as trying:
        apply_environment(ask.env)
        answer = retried(lambda: done(ask), Retries(retries_max=ask.retries_max), f"task {ask.task.id}")
    if answer is None:
        error = as_storage_error(trying.error or StorageError("nothing was done"), ask.spec)
        message = str(error) or type(error).__name__
        return Answer(error=ErrorInfo(type=type(error).__name__, message=message, kind="storage"))
    return answer


def done(ask: Ask) -> Answer:
    """Do a task, and return what came of it; raise what went wrong."""
    storage, arguments = open_storage(ask.spec), ask.task.arguments
    match ask.task.kind:
        case kind if kind == SEAL:
            return Answer(sealed=seal(storage, ask.run, msgspec.convert(arguments, SealOrder)))
        case kind if kind == DELETE:
            return Answer(value=list(_deleted(storage, arguments)))
        case kind if kind == DOUBT:
            doubt(storage, ask.run, _names(arguments))
            return Answer()
        case kind if kind == OPEN:
            return Answer(value=_looked(storage, ask.run, arguments))
        case kind:
            raise StorageError(f"a keeper of this version knows no task of kind {kind!r}")


def _names(arguments: dict[str, Json]) -> list[str]:
    names = msgspec.convert(arguments.get("names", []), list[str])
    for name in names:
        check_name(name)  # it came over the wire, and is about to be a path
    return names


def _deleted(storage: Storage, arguments: dict[str, Json]) -> list[str]:
    before = arguments.get("before")
    left = left_before(storage, before) if isinstance(before, int) else []
    return delete(storage, [*_names(arguments), *left], sealed=arguments.get("sealed") is True)


def _looked(storage: Storage, run: str, arguments: dict[str, Json]) -> Json:
    attribute = arguments.get("attribute")
    found: Json = msgspec.to_builtins(look(storage, run, attribute if isinstance(attribute, str) else None))
    return found


def receive(link: socket.socket) -> bytes | None:
    """Return the next frame's payload; None at the end of the link."""
    header = _exactly(link, HEADER.size)
    if header is None:
        return None
    (length,) = HEADER.unpack(header)
    return _exactly(link, length)


def _exactly(link: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        piece = link.recv(count - len(data))
        if not piece:
            return None
        data += piece
    return bytes(data)
