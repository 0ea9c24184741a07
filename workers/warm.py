"""The warm process: a fork server beside the rank spawner that has imported, once, the libraries that the ranks import.

```text
runner ── rank spawner ── rank of the first attempt: imports all by itself, and tells which modules those were
                     └─── warm process: imports those that are installed, looks whether it may be forked
                              └── ranks of later attempts: the user's module is executed in each of them, as ever
```

It is forked from the rank spawner, which has nothing of the user's, in the environment and working directory of the
ranks. What importing has printed is printed in each rank again. Random generators that libraries seed from the system
when they are imported are seeded anew in each rank: no two ranks draw the same, as if each had imported by itself.
"""

from __future__ import annotations

import functools
import importlib
import os
import random
import socket
import sys
import weakref
from pathlib import Path
from typing import Final

import msgspec

from runfold.workers import rank
from runfold.workers.become import become
from runfold.workers.capture import Capture
from runfold.workers.fitness import Before, forget_exit_functions
from runfold.workers.frames import frame
from runfold.workers.imports import Stamps, new_modules
from runfold.workers.processes import flush_output, name_process
from runfold.workers.zygote import COMMAND_MAX_BYTES, ForkServer, Role, Unfit

SPEC: Final = b"warm"
"""What a spawner is told so that it forks a warm process and not a rank."""


class Warmth(msgspec.Struct, frozen=True):
    """What to import, as whom: a copy of what the ranks are, but for what differs between them."""

    modules: list[str]
    env: dict[str, str]
    working_dir: str | None
    program: str


def main(_spec: bytes, fds: dict[str, int]) -> int:
    """Import, then serve; or say why not, and end."""
    command = socket.socket(fileno=fds["command"])
    with os.fdopen(fds["asked"], "rb") as file:
        asked = msgspec.msgpack.decode(file.read(), type=Warmth)
    before = Before()
    _import(asked)
    end_without_torch()
    name_process("runfold-warm")
    flush_output()
    printed = (_written(1), _written(2))
    if (reason := before.unfit()) is not None:
        command.sendall(frame(msgspec.msgpack.encode(Unfit(reason)), COMMAND_MAX_BYTES))
        os._exit(0)
    stamps = Stamps(list(new_modules(before.modules).values()))
    forget = functools.partial(_changed, stamps)
    ForkServer(command, functools.partial(_rank, printed), Role.RANKS, forget).run()
    forget_exit_functions()
    return 0


def _import(asked: Warmth) -> None:
    with Capture():
        become("runfold-warm", asked.env, asked.working_dir, asked.program)
        found_first = [sys.path[0]]
        source = asked.program.rpartition(":")[0]
        if source.endswith(".py"):
            # A library that looks for a module finds the one beside the script first, as it would in a rank.
            found_first.append(str((Path.cwd() / source).resolve().parent))
            sys.path.insert(0, found_first[-1])
        for name in asked.modules:
            # What cannot be imported here is imported by the rank, and told by it if it cannot be there either.
            with Capture():
                importlib.import_module(name)
        for entry in found_first:
            sys.path.remove(entry)


def _written(fd: int) -> bytes:
    """Return what has been printed: both streams are files in memory."""
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _changed(stamps: Stamps) -> str | None:
    file = stamps.changed()
    return None if file is None else f"{file} has changed since it was imported"


def _rank(printed: tuple[bytes, bytes], spec: bytes, fds: dict[str, int]) -> int:
    for stream, text in zip((sys.stdout, sys.stderr), printed, strict=True):
        if text:
            stream.buffer.write(text)
            stream.flush()
    seed_anew()
    return rank.main(spec, fds)


def end_without_torch() -> None:
    """Let processes end without taking torch's operators back one by one, which takes 20 ms and changes nothing."""
    finalizers: dict[weakref.finalize[..., object], object] = getattr(weakref.finalize, "_registry", {})
    for finalizer in list(finalizers):
        known = finalizer.peek()
        if known is not None and getattr(known[1], "__module__", None) == "torch.library":
            finalizer.atexit = False


def seed_anew() -> None:
    """Give this process random numbers of its own, in every library that is imported."""
    random.seed()
    with Capture():
        if (numpy := sys.modules.get("numpy.random")) is not None:
            numpy.seed()
    with Capture():
        if (torch := sys.modules.get("torch")) is not None:
            torch.default_generator.seed()
