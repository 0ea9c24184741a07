"""Processes of user code beside the group, for the supervisor: a validation, the hook process of a run, its keeper.

They are forked by a fork server of the supervisor's, hold no credentials, and end with it. Each talks over the
descriptor `link`: an order first, then what is asked, answered one after another.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

import msgspec

from runfold.events.base import Json
from runfold.events.failures import ErrorInfo
from runfold.events.values import pack, unpack
from runfold.workers import keeper
from runfold.workers.asked import asked
from runfold.workers.become import become
from runfold.workers.callbacks import RunContext
from runfold.workers.capture import Capture
from runfold.workers.config import forget_secrets
from runfold.workers.failure import describe
from runfold.workers.frames import frame
from runfold.workers.keeper import KEEPER_FRAME_MAX_BYTES, receive
from runfold.workers.layout import VALIDATION, StorageSpec, Validated
from runfold.workers.load import Code, load_callbacks, load_object
from runfold.workers.retry import Retries, retried
from runfold.workers.storage import open_storage

VALIDATE: Final = b"validate"
HOOKS: Final = b"hooks"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is for: the job's environment, its user code, where its storage is."""

    codes: tuple[Code, ...]
    context: RunContext
    env: dict[str, str] = {}
    working_dir: str | None = None
    storage: StorageSpec | None = None
    retries_max: int = 3


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Call a hook, or validate the checkpoint `hook`."""

    hook: str
    arguments: dict[str, Json] = {}


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it (packed)."""

    value: Json = None
    error: ErrorInfo | None = None


def unanswered(kind: str, message: str) -> Said:
    """Return what is said of a question whose answer is not its user's code's: why there is none."""
    return Said(error=ErrorInfo(type=kind, message=message, kind="runner"))


_ORDERS: Final = msgspec.msgpack.Decoder(Order)
_QUESTIONS: Final = msgspec.msgpack.Decoder(Question)


def main(spec: bytes, fds: dict[str, int]) -> int:
    """Run as what `spec` says, as the child of the supervisor's fork server."""
    forget_secrets()
    if spec == keeper.SPEC:
        return keeper.main(spec, fds)
    with socket.socket(fileno=fds["link"]) as link:
        order = receive(link)
        if order is None:
            return 0
        return _validate(link, _ORDERS.decode(order)) if spec == VALIDATE else _serve_hooks(link, _ORDERS.decode(order))


def _say(link: socket.socket, said: Said) -> None:
    link.sendall(frame(msgspec.msgpack.encode(said), KEEPER_FRAME_MAX_BYTES))


def _failed(error: BaseException) -> Said:
    told: ErrorInfo | None = None
    with Capture():
        told, _ = describe(error)
    return Said(error=told or ErrorInfo(type=type(error).__name__, message="it cannot be described", kind="user"))


# --- a validation


def _validate(link: socket.socket, order: Order) -> int:
    data = receive(link)
    if data is None:
        return 0
    question = _QUESTIONS.decode(data)
    metrics: Json = None
    with Capture() as trying:
        become("validation", order.env, order.working_dir, order.codes[0].entrypoint)
        metrics = validated(order, question)
    _say(link, Said(value=metrics) if trying.error is None else _failed(trying.error))
    return 0


def validated(order: Order, question: Question) -> Json:
    """Validate a checkpoint in this process; return its metrics, which are kept beside it."""
    if order.storage is None:
        raise ValueError("a validation needs the run's storage")
    storage = open_storage(order.storage)
    function, _ = load_object(order.codes[0].entrypoint, Path.cwd(), order.codes[0].blob)
    if not callable(function):
        raise TypeError(f"the validation function is {type(function).__name__!r} and cannot be called")
    arguments = {name: unpack(value) for name, value in question.arguments.items()}
    found: object = function(storage.checkpoint(question.hook), **arguments)
    if not isinstance(found, Mapping):
        raise TypeError(f"a validation must return a dict of metrics, not {type(found).__name__}")
    metrics = pack(dict(cast("Mapping[object, object]", found)), "metrics")
    kept = Validated(metrics=metrics) if isinstance(metrics, dict) else Validated()
    where = storage.inner(question.hook, VALIDATION)
    retried(
        lambda: storage.files.write(where, msgspec.json.encode(kept)),
        Retries(retries_max=order.retries_max),
        VALIDATION,
    )
    return metrics


# --- hooks


def _serve_hooks(link: socket.socket, order: Order) -> int:
    callbacks: list[object] = []
    with Capture() as loading:
        become("hooks", order.env, order.working_dir, "runfold-hooks")
        callbacks = load_callbacks(order.codes, Path.cwd())
    while (data := receive(link)) is not None:
        question = _QUESTIONS.decode(data)
        value: Json = None
        with Capture() as asking:
            if loading.error is not None:
                raise loading.error
            value = asked(callbacks, question.hook, question.arguments, order.context)
        _say(link, Said(value=value) if asking.error is None else _failed(asking.error))
    return 0
