"""The newest value of something, passed on: one at a time, not too often, again until it was done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from runfold.controller.ports import Board, Unavailable
from runfold.controller.safe import shown

T = TypeVar("T")

RETRY_MIN_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
CONTESTED_MAX_COUNT: Final = 8
"""How often one document is written again in a row because another writer came first."""

_log = logging.getLogger(__name__)


class Latest(Generic[T]):
    """Calls `act` with the newest value offered. What is overtaken before its turn is never acted on."""

    def __init__(self, act: Callable[[T], Awaitable[None]], every_s: float = 0.0) -> None:
        self._act = act
        self._every_s = every_s
        self._waiting: list[T] = []  # one at most
        self._at_once = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._not_before = 0.0

    def offer(self, value: T, *, at_once: bool = False) -> None:
        """Replace what waits; `at_once` lets it pass before `every_s` is over."""
        self._waiting = [value]
        self._at_once = self._at_once or at_once
        self._idle.clear()
        self._wake.set()

    async def drained(self) -> None:
        """Return once the newest value was acted on; nothing that waits is held back any longer."""
        self._at_once = True
        self._wake.set()
        await self._idle.wait()

    async def serve(self) -> None:
        """Work until cancelled."""
        loop = asyncio.get_running_loop()
        retry_s = RETRY_MIN_S
        while True:
            if not await self._due():
                continue
            value = self._waiting.pop()
            self._at_once = False
            try:
                await self._act(value)
            except Unavailable as error:
                if retry_s == RETRY_MIN_S:
                    _log.warning("what a run shows waits for the broker: %s", shown(error))
                if not self._waiting:
                    self._waiting = [value]
                self._at_once = True
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, RETRY_MAX_S)
                continue
            retry_s = RETRY_MIN_S
            self._not_before = loop.time() + self._every_s
            if not self._waiting:
                self._idle.set()

    async def _due(self) -> bool:
        """Wait for a value, or for its time; whether one is due."""
        early_s = self._not_before - asyncio.get_running_loop().time()
        if self._waiting and (self._at_once or early_s <= 0):
            return True
        self._wake.clear()
        try:
            async with asyncio.timeout(early_s if self._waiting else None):
                await self._wake.wait()
        except TimeoutError:
            return True
        return False


class Document:
    """Writes one last-value document, never over a newer one.

    `order` reads what documents are compared by; `last_sequence` is that of the one that stands, None when unknown.
    """

    def __init__(
        self, board: Board, order: Callable[[bytes], tuple[int, ...] | None], last_sequence: int | None = None
    ) -> None:
        self._board = board
        self._order = order
        self._last_sequence = last_sequence
        self._standing: tuple[int, ...] | None = None

    async def read(self) -> bytes | None:
        """Return the document that stands."""
        data, self._last_sequence = await self._board.read()
        self._standing = None if data is None else self._order(data)
        return data

    async def put(self, data: bytes, order: tuple[int, ...]) -> bool:
        """Make this the document that stands; False when a newer one does. Raises `Unavailable`."""
        if self._last_sequence is None:
            await self.read()
        for _ in range(CONTESTED_MAX_COUNT):
            # Before each try: a newer one may have been read when the document before this one was refused.
            if self._standing is not None and self._standing > order:
                return False
            sequence = await self._board.write(data, self._last_sequence or 0)
            if sequence is not None:
                self._last_sequence, self._standing = sequence, order
                return True
            if await self.read() == data:
                return True  # our own, whose answer was lost
        raise Unavailable(f"another writer came first {CONTESTED_MAX_COUNT} times in a row")
