"""A process of our own: started, told what to do in one line, stopped with bounded patience, never outliving us."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import msgspec

from runfold.config import child_environment
from runfold.errors import ServiceError
from runfold.serving import STOP_WORD

LOG_TAIL_MAX_BYTES: Final = 2000
KILL_TIMEOUT_S: Final = 5.0
LOGS_FOLDER: Final = "logs"


class Child:
    """One process running `runfold._serve ROLE`.

    Its standard input is a pipe from us: the first line is its configuration (so that no secret stands on a command
    line), and its closing, which happens by itself when we die, tells it that it is alone. With `by_word` it is told to
    stop there too: a SIGTERM would mean something else to it. `inherits`: descriptors it holds open too.
    """

    def __init__(
        self,
        role: str,
        data_dir: Path,
        name: str | None = None,
        *,
        by_word: bool = False,
        inherits: tuple[int, ...] = (),
    ) -> None:
        self.role = role
        self._by_word = by_word
        self._inherits = inherits
        self.name = name or role
        self.log_file = data_dir / LOGS_FOLDER / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id; 0 before it was started."""
        return self._process.pid if self._process is not None else 0

    @property
    def exit_code(self) -> int | None:
        """How it ended (a negative signal number when by a signal), or None while it runs."""
        return self._process.poll() if self._process is not None else None

    def start(self) -> None:
        """Start the process: it loads what it needs and waits for its configuration."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        # -P: the working directory is the user's; an `events` that stands there must not be taken for ours.
        words = [sys.executable, "-P", "-m", "runfold._serve", self.role]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=child_environment(),
                pass_fds=self._inherits,
                # A Ctrl-C in the terminal is for us; we stop our children in order.
                start_new_session=True,
            )

    async def configure(self, document: msgspec.Struct) -> None:
        """Say what it should do; from here on it works."""
        pipe = self._running().stdin
        if pipe is None:
            raise ServiceError(f"the {self.name} has no pipe to be told anything")
        try:
            # A line is shorter than what a pipe holds: this never waits.
            pipe.write(msgspec.json.encode(document) + b"\n")
            pipe.flush()
        except BrokenPipeError:
            await self.wait()
            raise self.ended_early() from None

    async def wait(self) -> int:
        """Wait until the process has ended, and return how."""
        process = self._running()
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def watch() -> None:
            process.wait()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=watch, name=f"wait for the {self.role}", daemon=True).start()
        await ended.wait()
        return process.wait()

    async def stop(self, patience_s: float) -> None:
        """End the process: a word, and SIGKILL when it has not ended in time. Nothing happens when it has.

        Raises:
            ServiceError: SIGKILL did not end it: it is in the middle of a system call that does not return.
        """
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            self._ask_to_stop(process)
            try:
                async with asyncio.timeout(patience_s):
                    await self.wait()
            except TimeoutError:
                process.kill()
                await self._killed()
        if process.stdin is not None:
            process.stdin.close()

    def hurry(self) -> None:
        """Tell a process that was told to stop not to wait for anything any more."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    async def _killed(self) -> None:
        try:
            async with asyncio.timeout(KILL_TIMEOUT_S):
                await self.wait()
        except TimeoutError:
            raise ServiceError(
                f"the {self.name} (process {self.pid}) has not ended within {KILL_TIMEOUT_S:g} s after SIGKILL\n"
                f"It ends once the system call returns that it is in: look for a disk or network mount that hangs."
            ) from None

    def _ask_to_stop(self, process: subprocess.Popen[bytes]) -> None:
        if not self._by_word or process.stdin is None:
            process.terminate()
            return
        try:
            process.stdin.write(STOP_WORD)
            process.stdin.close()
        except BrokenPipeError:
            return  # it has just ended

    def ended_early(self) -> ServiceError:
        """Return the error that says that it ended when it should not have, with the end of its log."""
        code = self.exit_code or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return ServiceError(f"the {self.name} ended unexpectedly ({how})\n{self.log_tail()}")

    def log_tail(self) -> str:
        """Return the end of what it wrote."""
        try:
            text = self.log_file.read_bytes()[-LOG_TAIL_MAX_BYTES:].decode(errors="replace").strip()
        except OSError:
            text = ""
        return f"{text}\n(the end of {self.log_file})" if text else f"It wrote nothing to {self.log_file}."

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServiceError(f"the {self.name} was not started")
        return self._process


class Children:
    """Controllers and supervisor of one data directory; `lived_in` is the descriptor by which that is locked."""

    def __init__(self, data_dir: Path, controllers_count: int = 1, lived_in: int | None = None) -> None:
        self.data_dir = data_dir
        inherits = () if lived_in is None else (lived_in,)
        self.controllers = [
            Child("controller", data_dir, f"controller-{k}" if k else None, inherits=inherits)
            for k in range(controllers_count)
        ]
        self.supervisor = Child("supervisor", data_dir, by_word=True, inherits=inherits)

    def start(self) -> None:
        """Start all: they load what they need while we do other things."""
        try:
            Path.cwd()
        except FileNotFoundError:
            # Every child would fail in its turn: code is looked up from here.
            raise ServiceError("the working directory is gone: change to one that exists") from None
        # The supervisor first: it has a process of its own to start.
        self.supervisor.start()
        for controller in self.controllers:
            controller.start()

    async def stop(self, supervisor_patience_s: float, controller_patience_s: float, *, in_order: bool) -> None:
        """Stop all: in order the supervisor first, so that a controller hears its last words.

        Raises:
            ServiceError: one cannot be ended; the others were stopped all the same.
        """
        groups = [[self.supervisor], self.controllers] if in_order else [[self.supervisor, *self.controllers]]
        ended: list[BaseException | None] = []
        for group in groups:
            stops = [
                child.stop(supervisor_patience_s if child is self.supervisor else controller_patience_s)
                for child in group
            ]
            ended += await asyncio.gather(*stops, return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error
