"""The rank process: loads the training function, runs it when all places are ready, and tells what came of it.

It is forked by the rank spawner, talks to its runner over the descriptor `link` alone, and holds no credentials.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from runfold.events.base import Json
from runfold.events.failures import ErrorInfo, FailureKind
from runfold.events.limits import VALUE_INLINE_MAX_BYTES
from runfold.events.values import Unencodable, pack, unpack
from runfold.workers import session
from runfold.workers.around import EXIT_ASKED, Around, AskedToEnd
from runfold.workers.backends import NONE, Backend, Place, backend_of
from runfold.workers.become import become
from runfold.workers.capture import Capture
from runfold.workers.config import apply_environment, environment_with, needs_exec
from runfold.workers.errors import LinkError, LoadError
from runfold.workers.failure import describe
from runfold.workers.imports import newly_installed
from runfold.workers.limits import LINK_START_TIMEOUT_S, RETURN_BLOB_MAX_BYTES, WARM_MODULES_MIN_COUNT
from runfold.workers.link import Entered, Failed, FromRunner, Go, Hello, Imported, Loaded, Returned, Start, Stop
from runfold.workers.load import Entrypoint, framework_versions, load_callbacks, load_entrypoint
from runfold.workers.payload import pickle_any
from runfold.workers.processes import flush_output, tell
from runfold.workers.ranklink import RankLink
from runfold.workers.stackdump import ignore_signal, show_stacks

EXIT_FAILED: Final = 1
EXIT_LINK_LOST: Final = 76
_EXIT_CODE_MAX: Final = 255
_START_DECODER: Final = msgspec.msgpack.Decoder(Start)


SPARE: Final = b"spare"
"""What a spawner is told so that it forks a rank that waits for its start as long as it takes."""


def main(spec: bytes, fds: dict[str, int]) -> int:
    """Run as a rank, as the child of a rank spawner; what to run comes over the link."""
    show_stacks(fds["stacks"])
    imported = frozenset(sys.modules)
    link = RankLink(socket.socket(fileno=fds["link"]))
    try:
        link.send(Hello(os.getpid()))
        start = _told(link, None if spec == SPARE else LINK_START_TIMEOUT_S)
        if not isinstance(start, Start):
            raise LinkError(f"the runner began with {type(start).__name__}, not with Start")
        if needs_exec(start.env):
            _start_anew(start, fds["link"], fds["stacks"])
        return _run(link, start, imported)
    except LinkError as error:
        tell(f"runfold: this rank ends, as its runner cannot be reached: {error}")
        return EXIT_LINK_LOST


def _told(link: RankLink, timeout_s: float | None) -> FromRunner:
    try:
        return link.receive(timeout_s)
    except TimeoutError:
        raise LinkError(f"it did not say within {timeout_s:g} s what is to be run") from None


def _start_anew(start: Start, link_fd: int, stacks_fd: int) -> None:
    """Replace this process by a fresh program with the job's environment, keeping its id, streams and link."""
    handover = os.memfd_create("runfold-start", 0)
    os.write(handover, msgspec.msgpack.encode(start))
    for fd in (link_fd, stacks_fd):
        os.set_inheritable(fd, True)
    ignore_signal()
    code = "from runfold.workers.rank import main_anew; main_anew()"
    arguments = [sys.executable, "-P", "-c", code, str(link_fd), str(stacks_fd), str(handover)]
    os.execve(sys.executable, arguments, environment_with(start.env))  # noqa: S606  # no shell is wanted


def main_anew() -> None:
    """Go on as a rank in a fresh program: descriptors of the link, for stacks, and of the encoded `Start`."""
    link_fd, stacks_fd, handover = map(int, sys.argv[1:])
    show_stacks(stacks_fd)
    for fd in (link_fd, stacks_fd):
        os.set_inheritable(fd, False)
    os.lseek(handover, 0, os.SEEK_SET)
    with os.fdopen(handover, "rb") as file:
        start = _START_DECODER.decode(file.read())
    try:
        code = _run(RankLink(socket.socket(fileno=link_fd)), start)
    except LinkError as error:
        tell(f"runfold: this rank ends, as its runner cannot be reached: {error}")
        code = EXIT_LINK_LOST
    sys.exit(code)


def _run(link: RankLink, start: Start, imported: frozenset[str] | None = None) -> int:
    """Load, and train once told to; `imported`: the modules that were there before, if this process was forked."""
    entrypoint: Entrypoint | None = None
    around = Around()
    with Capture() as loading:
        become(f"rank-{start.rank}", start.env, start.working_dir, start.entrypoint)
        entrypoint = load_entrypoint(start.entrypoint, Path.cwd(), _blob(start))
        around = Around(load_callbacks(start.callbacks, Path.cwd()))
    if entrypoint is None or loading.error is not None:
        return _tell_failure(link, loading.error or LoadError("nothing was loaded"), 0, kind="load")
    link.send(Loaded(entrypoint.digest, framework_versions()))
    # Without limit: the runner says `Stop`, closes the link or dies, and this process with it. A wish that comes
    # earlier is said again after `Go`.
    while not isinstance(go := link.receive(None), Go | Stop):
        pass
    if not isinstance(go, Go):
        return 0
    link.count_from(go.first)
    link.send(Entered(time.monotonic()))
    current = session.Session(link, start, go, around)
    session.activate(current)
    return _train(link, start, current, entrypoint, around, imported)


def _train(
    link: RankLink,
    start: Start,
    current: session.Session,
    entrypoint: Entrypoint,
    around: Around,
    imported: frozenset[str] | None,
) -> int:
    """Meet, train, tell."""
    value: object = None
    backend: Backend = NONE
    hook = Capture()
    with Capture() as setting_up:
        backend = backend_of(start.backend, _place(start))
        apply_environment(backend.environment())
        meet = MeetByLink(current, first=start.rank == start.replica_first)
        backend.on_start(meet)
        with hook:
            around.call("after_init_train_context")
        if hook.error is None:
            backend.on_training_start(meet)
    if hook.error is not None:
        # Whichever backend there is: it has met, and a callback that cannot begin will not the next time.
        return _tell_failure(link, hook.error, current.reports, kind="load")
    if setting_up.error is not None:
        return _tell_failure(link, setting_up.error, current.reports, kind=_kind_of(setting_up.error, start))
    imported = _tell_imports(link, imported, loading=True)
    with Capture() as training:
        around.heed_the_end()
        with backend.context():
            value = entrypoint.function(*[unpack(start.config)] if entrypoint.takes_config else [])
        current.finish()
    failed = training.error is not None and not isinstance(training.error, AskedToEnd)
    with Capture() as ending:
        around.call("before_worker_shutdown")
        if not failed:
            backend.on_shutdown()
    error = training.error or ending.error
    _leave(current, error)
    if isinstance(error, AskedToEnd):
        flush_output()
        return EXIT_ASKED
    if error is None:
        return _tell_value(link, value, current.reports)
    code = _tell_failure(link, error, current.reports)
    if failed:
        _shut_down(backend)
    _tell_imports(link, imported, loading=False)
    return code


def _shut_down(backend: Backend) -> None:
    """Take down the communication of a rank that has failed, and said so.

    Only then: where a process group ends its peers fail, and that would be told before what brought it about.
    """
    with Capture():
        backend.on_shutdown()


def _leave(current: session.Session, error: BaseException | None) -> None:
    """End the session. What was reported is told also when the training failed while earlier files were uploaded."""
    session.activate(None)
    if error is not None:
        current.give_up()


def _kind_of(error: BaseException, start: Start) -> FailureKind:
    """Return what setting up has failed at."""
    meets = start.backend.kind != "none" and not isinstance(error, ImportError | LoadError)
    return "rendezvous" if meets else "load"


def _place(start: Start) -> Place:
    """Return a rank as its backend sees it: among those that it meets with."""
    return Place(
        rank=start.rank - start.replica_first,
        world_size=start.world_size if start.replica_group is None else start.replica_size,
        local_rank=start.local_rank,
        local_world_size=start.local_world_size,
        node_rank=start.node_rank,
        addr=start.addr,
        own_addr=start.own_addr,
        resources=start.resources,
        gpus=start.gpus,
        replica_group=start.replica_group or 0,
        replica_groups=start.replica_groups,
        lighthouse=start.lighthouse,
    )


class MeetByLink:
    """What a backend's ranks tell each other goes over the rank's own link, like the user's collectives."""

    def __init__(self, current: session.Session, *, first: bool) -> None:
        self._session = current
        self._first = first

    def __call__(self, data: bytes | None) -> bytes:
        """Return rank 0's bytes."""
        given = None if data is None and not self._first else _bytes("meet(data)", data)
        return self._session.collect("broadcast_from_rank_zero", given, session.UNSET_TIMEOUT)[0]

    def gather(self, data: bytes) -> list[bytes]:
        """Return everybody's bytes."""
        return self._session.collect("all_gather", _bytes("meet.gather(data)", data), session.UNSET_TIMEOUT)


def _bytes(call: str, data: object) -> bytes:
    """Return what a backend gave, if the others can be told it: a backend's author is not held to the types."""
    if isinstance(data, bytes | bytearray):
        return bytes(data)
    how = "text.encode()" if isinstance(data, str) else "json.dumps(…).encode(), for instance"
    if data is None:
        how = "rank 0 gives what all are told, None is for the others" if call == "meet(data)" else 'b"" for nothing'
    raise TypeError(f"{call}: give bytes, not {type(data).__name__}: {how}")


def _blob(start: Start) -> bytes | None:
    return start.blob if start.blob_path is None else Path(start.blob_path).read_bytes()


def _tell_imports(link: RankLink, before: frozenset[str] | None, *, loading: bool) -> frozenset[str] | None:
    """Tell what was imported besides, if it is worth importing in advance; return what is there now."""
    if before is None:
        return None
    modules = newly_installed(before)
    if len(modules) < WARM_MODULES_MIN_COUNT:
        return before
    link.send(Imported(modules, loading))
    return frozenset(sys.modules)


def _tell_failure(link: RankLink, error: BaseException, reports: int, *, kind: FailureKind | None = None) -> int:
    told: tuple[ErrorInfo, bytes | None] | None = None
    with Capture() as describing:
        told = describe(error, loading=kind == "load")
    if told is None:
        # An exception whose own methods misbehave beyond what `describe` foresees.
        reason = f"it could not be described: {type(describing.error).__name__}"
        told = ErrorInfo(type=type(error).__name__, message=reason, kind=kind or "user"), None
    info, full = told
    if kind is not None:
        info = msgspec.structs.replace(info, kind=kind)
    tell((info.traceback or info.headline).rstrip())
    flush_output()
    link.send(Failed(time.monotonic(), reports, info, full))
    return _exit_code(error)


def _exit_code(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        code = error.code
        return 0 if code is None else code if isinstance(code, int) and 0 <= code <= _EXIT_CODE_MAX else EXIT_FAILED
    return EXIT_FAILED


def _tell_value(link: RankLink, value: object, reports: int) -> int:
    packed: Json = None
    blob: bytes | None = None
    with Capture() as packing:
        packed, blob = pack_value(value)
    if packing.error is not None:
        # The return value's own methods are user code too.
        packing.error.add_note("while what the training function returned was recorded")
        return _tell_failure(link, packing.error, reports)
    flush_output()
    link.send(Returned(time.monotonic(), reports, packed, blob))
    return 0


def pack_value(value: object) -> tuple[Json, bytes | None]:
    """Return what a training function returned: packed, or pickled when it cannot be packed or is large."""
    try:
        packed = pack(value, "the return value")
        if len(msgspec.json.encode(packed)) <= VALUE_INLINE_MAX_BYTES:
            return packed, None
    except (Unencodable, UnicodeEncodeError):
        pass
    blob = pickle_any(value)
    if len(blob) > RETURN_BLOB_MAX_BYTES:
        raise ValueError(
            f"the return value is {len(blob)} bytes, over return_blob_max_bytes ({RETURN_BLOB_MAX_BYTES}): "
            "write it to a file and return its path"
        )
    return None, blob
