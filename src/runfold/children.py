"""A process of our own: started, told what to do in one line, stopped with bounded patience, never outliving us."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.config import child_environment
from runfold.errors import ServiceError

if TYPE_CHECKING:
    from pathlib import Path

LOG_TAIL_MAX_BYTES: Final = 2000
KILL_TIMEOUT_S: Final = 5.0


class Child:
    """One process running `runfold._serve ROLE`.

    Its standard input is a pipe from us: the first line is its configuration (so that no secret stands on a command
    line), and its closing, which happens by itself when we die, tells it to stop.
    """

    def __init__(self, role: str, log_file: Path) -> None:
        self.role = role
        self.log_file = log_file
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The process id; 0 before it was started."""
        return self._process.pid if self._process is not None else 0

    @property
    def exit_code(self) -> int | None:
        """How it ended (a negative signal number when by a signal), or None while it runs."""
        return self._process.returncode if self._process is not None else None

    async def start(self) -> None:
        """Start the process: it loads what it needs and waits for its configuration."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # the working directory is the user's; an `events` there must not be taken for ours
                "-m",
                "runfold._serve",
                self.role,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=child_environment(),
                # A Ctrl-C in the terminal is for us; we stop our children in order.
                start_new_session=True,
            )

    async def configure(self, document: msgspec.Struct) -> None:
        """Say what it should do; from here on it works."""
        pipe = self._running().stdin
        if pipe is None:
            raise ServiceError(f"the {self.role} has no pipe to be told anything")
        try:
            pipe.write(msgspec.json.encode(document) + b"\n")
            await pipe.drain()
        except ConnectionError:
            await self.wait()
            raise self.ended_early() from None

    async def wait(self) -> int:
        """Wait until the process has ended, and return how."""
        return await self._running().wait()

    async def stop(self, patience_s: float) -> None:
        """End the process: SIGTERM, and SIGKILL when it has not ended in time. Nothing happens when it has."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), patience_s)
        except TimeoutError:
            process.kill()
            await asyncio.wait_for(process.wait(), KILL_TIMEOUT_S)

    def ended_early(self) -> ServiceError:
        """Return the error that says that it ended when it should not have, with the end of its log."""
        code = self.exit_code or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return ServiceError(f"the {self.role} ended unexpectedly ({how})\n{self.log_tail()}")

    def log_tail(self) -> str:
        """Return the end of what it wrote."""
        try:
            text = self.log_file.read_bytes()[-LOG_TAIL_MAX_BYTES:].decode(errors="replace").strip()
        except OSError:
            text = ""
        return f"{text}\n(the end of {self.log_file})" if text else f"It wrote nothing to {self.log_file}."

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise ServiceError(f"the {self.role} was not started")
        return self._process
