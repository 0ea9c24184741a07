"""Asking what the ranks of a run do right now: the request, and what the log says came of it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from runfold.errors import NotAcceptedError, UnreachableError
from runfold.events.facts import TaskEnded
from runfold.events.nats.blobs import Blobs
from runfold.events.requests import DumpStacks
from runfold.events.tasks import STACKS
from runfold.events.transitions import RequestAccepted, TaskClosed, TaskOrdered
from runfold.follow import follow_run
from runfold.ids import new_request_id
from runfold.runs import check_rank, clients, known_status, live_status
from runfold.unknown import not_running_text

if TYPE_CHECKING:
    from runfold.client import Client
    from runfold.events.beats import RunnerBeat
    from runfold.events.stacks import RankSeen
    from runfold.follow import Told
    from runfold.locate import Where

ANSWER_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class RankLook:
    """A rank as it was seen, and the stacks that it wrote."""

    seen: RankSeen
    text: str


class _Looks:
    """Hears the log until what was asked for is there."""

    def __init__(self, request_id: str) -> None:
        self.seen: dict[int, RankSeen] = {}
        self.done = asyncio.Event()
        self._request_id = request_id
        self._open: set[str] | None = None

    def entry(self, told: Told) -> None:
        transitions = told.entry.transitions
        if any(isinstance(one, RequestAccepted) and one.id == self._request_id for one in transitions):
            orders = [one.task for one in transitions if isinstance(one, TaskOrdered)]
            self._open = {task.id for task in orders if task.kind == STACKS}
        if self._open is None:
            return
        for item in told.entry.inputs:
            if isinstance(item, TaskEnded) and item.task in self._open:
                self.seen.update((one.rank, one) for one in item.seen)
        self._open -= {one.task for one in transitions if isinstance(one, TaskClosed)}
        if not self._open or told.state.terminal:
            self.done.set()

    def beat(self, beat: RunnerBeat) -> None:
        """Beats say nothing of this."""


async def look_at_ranks(where: Where, run: str, by: str, rank: int | None = None) -> list[RankLook]:
    """Have the ranks of a run looked at, and return what was seen of each; `rank` is the one that somebody asks for.

    Raises:
        UsageError: the run has no such rank.
        NotAcceptedError: no rank is at work.
        NotFoundError: there is no such run.
    """
    async with clients(where) as each:
        async for client in each:
            status = await live_status(client, run)
            if status is not None and not status.terminal:
                check_rank(run, rank, status.world_size)
                return await _look(client, run, by)
    status = await known_status(where, run)  # NotFoundError for a run that nobody knows
    if not status.terminal:
        raise UnreachableError(f"{run} had not ended.\n{not_running_text(where, run)}.")
    raise NotAcceptedError(f"{run} is over: no rank is at work")


async def _look(client: Client, run: str, by: str) -> list[RankLook]:
    request = DumpStacks(id=new_request_id(), by=by)
    looks, blobs = _Looks(request.id), Blobs(client.connection)
    async with follow_run(client, run, looks):
        await client.request(run, request)
        with contextlib.suppress(TimeoutError):  # what there is, is shown
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await looks.done.wait()
    return [RankLook(seen, await _text(blobs, seen)) for _, seen in sorted(looks.seen.items())]


async def _text(blobs: Blobs, seen: RankSeen) -> str:
    return "" if seen.stacks is None else (await blobs.get(seen.stacks)).decode(errors="replace")
