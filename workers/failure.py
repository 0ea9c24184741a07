"""An exception of user code as something that can be told: never pickled, always bounded, in the user's frames."""

from __future__ import annotations

import os
import resource
import traceback
from pathlib import Path
from typing import Final

from runfold.events.failures import ErrorInfo, FailureKind
from runfold.events.limits import ERROR_INLINE_MAX_BYTES
from runfold.workers.capture import Capture
from runfold.workers.errors import CheckpointDamagedError, CollectiveError, StorageError
from runfold.workers.limits import ERROR_FULL_MAX_BYTES
from runfold.workers.severed import is_peer_gone

# Not resolved: as the frames of this folder name it, by a link or not.
_OURS: Final = str(Path(__file__).parent) + os.sep
_MESSAGE_MAX_BYTES: Final = ERROR_INLINE_MAX_BYTES // 2
_TRACEBACK_MAX_BYTES: Final = ERROR_INLINE_MAX_BYTES - _MESSAGE_MAX_BYTES


def describe(error: BaseException, *, loading: bool = False) -> tuple[ErrorInfo, bytes | None]:
    """Return the error to tell, and its whole text if that had to be cut to `error_inline_max_bytes`."""
    message = _clean(_message(error))
    text, stack = "", traceback.StackSummary()
    with Capture() as tracing:
        # Reads what user code may have filled with anything: the attributes of a SyntaxError, notes, causes.
        trace = traceback.TracebackException.from_exception(error, compact=True)
        _keep_user_frames(trace)
        text, stack = _clean("".join(trace.format())), trace.stack
    if tracing.error is not None:
        stack = _user_frames(traceback.extract_tb(error.__traceback__))
        text = _clean("".join([*stack.format(), f"{_type_name(error)}: {message}\n"]))
    short_message, short_text = _cut(message, _MESSAGE_MAX_BYTES), _cut(text, _TRACEBACK_MAX_BYTES)
    info = ErrorInfo(
        type=_type_name(error),
        message=short_message,
        kind=_kind(error, message, loading),
        traceback=short_text,
        where=_where(stack),
    )
    whole = short_message == message and short_text == text
    return info, None if whole else _cut(text, ERROR_FULL_MAX_BYTES).encode()


def _kind(error: BaseException, message: str, loading: bool) -> FailureKind:
    if loading:
        return "load"
    if isinstance(error, SystemExit):
        return "exit"
    if isinstance(error, MemoryError):
        return "oom"
    if isinstance(error, StorageError | CheckpointDamagedError):
        return "storage"
    return "peer" if isinstance(error, CollectiveError) or is_peer_gone(error, message) else "user"


def _type_name(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__.rpartition("<locals>.")[2]
    # Our own errors are told by their bare names, like those of Python.
    bare = kind.__module__ in ("builtins", "__main__") or kind.__module__.startswith("runfold.")
    return name if bare else f"{kind.__module__}.{name}"


def _message(error: BaseException) -> str:
    text = ""
    with Capture() as captured:
        if isinstance(error, SystemExit):
            text = f"sys.exit({'' if error.code is None else repr(error.code)}) was called"
        else:
            text = str(error)
    if isinstance(error, MemoryError) and captured.error is None:
        return "; ".join(part for part in (text, _memory_limit()) if part)
    return text if captured.error is None else f"(its __str__ raised {type(captured.error).__name__})"


def _memory_limit() -> str:
    """Return which limit stood in the way of more memory, if one is set: the interpreter's own error does not say."""
    limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit_bytes == resource.RLIM_INFINITY:
        return ""
    return f"its address space is limited to {limit_bytes // 1024**2} MiB (RLIMIT_AS)"


def _clean(text: str) -> str:
    """Return `text` as it can be written: lone surrogates as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _cut(text: str, limit_bytes: int) -> str:
    """Return `text` with its middle taken out, and that said, if it is over the limit."""
    data = text.encode()
    if len(data) <= limit_bytes:
        return text
    note = f"\n… {len(data) - limit_bytes} bytes and more left out …\n"
    half = (limit_bytes - len(note.encode())) // 2
    return data[:half].decode(errors="ignore") + note + data[-half:].decode(errors="ignore")


def _is_user_frame(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith((_OURS, "<frozen importlib"))


def _keep_user_frames(trace: traceback.TracebackException) -> None:
    """Take runfold's and the import system's frames out, of the error and of all it is chained to."""
    seen: set[int] = set()
    waiting: list[traceback.TracebackException | None] = [trace]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.stack = _user_frames(one.stack)
        waiting += [one.__cause__, one.__context__, *(one.exceptions or ())]


def _user_frames(stack: traceback.StackSummary) -> traceback.StackSummary:
    here = _here()
    return traceback.StackSummary.from_list([_named(frame, here) for frame in stack if _is_user_frame(frame)])


def _here() -> str:
    """Return the working directory with a separator behind it; nothing that a file begins with when it is gone."""
    try:
        return str(Path.cwd()) + os.sep
    except OSError:
        return "\0"


def _named(frame: traceback.FrameSummary, here: str) -> traceback.FrameSummary:
    """Name a file under the working directory as seen from there: logs are read on other machines, and kept."""
    if frame.filename.startswith(here):
        _ = frame.line  # read, and kept, while the name still leads to the file
        frame.filename = frame.filename.removeprefix(here)
    return frame


def _where(stack: traceback.StackSummary) -> str | None:
    if not stack:
        return None
    last = stack[-1]
    return f"{last.filename}:{last.lineno} in {last.name}"
