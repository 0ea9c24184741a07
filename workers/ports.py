"""A port that is held: bound and listening, so that nobody else gets it, until whoever needs it takes it over."""

from __future__ import annotations

import socket
from typing import Final

_BACKLOG_COUNT: Final = 128


class HeldPort:
    """A listening socket on an address of this machine."""

    def __init__(self, addr: str) -> None:
        self._socket: socket.socket | None = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.bind((addr, 0))
            self._socket.listen(_BACKLOG_COUNT)
            name: tuple[str, int] = self._socket.getsockname()
        except OSError:
            self._socket.close()
            raise
        self.number = name[1]

    def take(self) -> socket.socket | None:
        """Hand over the listening socket; None when it was taken before."""
        taken, self._socket = self._socket, None
        return taken

    def close(self) -> None:
        """Let the port go, unless it was taken."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
