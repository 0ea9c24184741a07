"""Bugs planted on purpose, in collaborators that take the real ones' place while a play lasts: will they be found?

The production code knows nothing of them; a scenario is played with one of them inside `with planted(name):`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final
from unittest import mock

import msgspec

from runfold.controller.compose import Draft
from runfold.controller.loop import Loop
from runfold.controller.ports import Delivered, Inbox
from runfold.events.entry import AnyInput, Head, hash_entry
from runfold.events.facts import RankExited, RankFailed
from runfold.events.fold import fold
from runfold.events.state import AnyState, RunState

SKIPPED: Final = 2
"""How many messages a controller leaves out that resumes at the wrong cursor."""


class HastyLoop(Loop):
    """Shows what an entry makes of the run before the entry is acknowledged."""

    async def _commit(self, state: AnyState, written: Draft) -> RunState:
        after = fold(state if isinstance(state, RunState) else None, written.entry)
        head = Head(n=written.entry.n, hash=hash_entry(written.data))
        self._showing.show(after, head, decided=bool(written.entry.transitions))
        return await super()._commit(state, written)


class SkippingInbox:
    """An inbox that is opened some messages too late."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    async def open(self, cursor: tuple[str, int] | None, arrived: Callable[[], None]) -> None:
        await self._inbox.open(None if cursor is None else (cursor[0], cursor[1] + SKIPPED), arrived)

    @property
    def caught_up(self) -> bool:
        return self._inbox.caught_up

    def take(self) -> Delivered | None:
        return self._inbox.take()

    async def purge(self, cursor: tuple[str, int]) -> None:
        await self._inbox.purge(cursor)

    async def close(self) -> None:
        await self._inbox.close()


class ForgetfulLoop(Loop):
    """Resumes at the wrong cursor."""

    async def _begin(self) -> RunState:
        self._ports = replace(self._ports, inbox=SkippingInbox(self._ports.inbox))
        return await super()._begin()


class CredulousLoop(Loop):
    """Takes failures of the attempt before for failures of the present one."""

    def _draft(self, state: AnyState, inputs: Sequence[AnyInput], cursor: tuple[str, int] | None) -> Draft:
        if isinstance(state, RunState):
            inputs = [self._believed(state.attempt, item) for item in inputs]
        return super()._draft(state, inputs, cursor)

    def _believed(self, attempt: int, item: AnyInput) -> AnyInput:
        is_stale = isinstance(item, RankFailed | RankExited) and item.attempt == attempt - 1
        return msgspec.structs.replace(item, attempt=attempt) if is_stale else item


BUGS: Final[dict[str, type[Loop]]] = {
    "skip the write-ahead wait": HastyLoop,
    "count a stale failure": CredulousLoop,
    "resume at the wrong cursor": ForgetfulLoop,
}


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """Have a bug for a while."""
    with mock.patch("runfold.controller.host.Loop", BUGS[bug]):
        yield
