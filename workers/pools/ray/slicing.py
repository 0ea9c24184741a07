"""Reserving whole TPU slices on a cluster, as the plan in `pools/slices.py` says: all of them, or nothing.

The heads are kept for as long as the slices are: who has a head has the slice, and nobody else waits for its hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Literal, Protocol

import msgspec
from msgspec.structs import replace

from runfold.events.slices import Slice
from runfold.workers.errors import RunfoldError
from runfold.workers.pools.local import Demand
from runfold.workers.pools.ray.held import Head
from runfold.workers.pools.ray.library import (
    HEAD,
    ActorLost,
    ActorUnreachable,
    Group,
    GroupRefused,
    Ray,
    RayError,
    heads_of,
)
from runfold.workers.pools.ray.slices import pod_of, workers_per_slice
from runfold.workers.pools.slices import (
    FIRST_HOST,
    HOST_NUMBER_LABEL,
    KIND_LABEL,
    SLICE_LABEL,
    AskHead,
    Done,
    Fail,
    Place,
    Progress,
    Release,
    SliceDemand,
    Wait,
    head_resource,
    reserving,
)


class Sliced(msgspec.Struct, frozen=True, kw_only=True):
    """The placement over all slices: the node (its id) of each bundle, and the heads of the slices."""

    group: Group
    bundles: list[str]
    heads: list[Head]


class SlicesNotHad(RunfoldError):
    """Slices were not to be had; nothing of them is reserved any more."""

    def __init__(self, kind: Literal["late", "failed"], reason: str) -> None:
        super().__init__(reason)
        self.kind: Literal["late", "failed"] = kind


class View(Protocol):
    """The cluster as the pool sees it."""

    def avoided(self, demand: Demand) -> tuple[str, ...]:
        """Return the slices that are not whole, or not free for a demand."""
        ...

    def news(self) -> Awaitable[object]:
        """Return what ends when the cluster is seen to have changed."""
        ...

    def remove(self, group: Group) -> None:
        """Give a placement group back."""
        ...

    def later(self, doing: Coroutine[object, object, None], what: str) -> None:
        """Give something back, which nobody here waits for; the pool does before it is closed."""
        ...


class Slicing:
    """The slices of one demand on their way: `reserve` has all of them, or nothing is reserved when it has ended."""

    def __init__(self, ray: Ray, demand: Demand, kind: Slice, names: tuple[str, str], view: View) -> None:
        self._ray, self._demand, self._kind, self._view = ray, demand, kind, view
        self._stem, self._suffix = names
        self.heads: list[Head] = []
        self._asks_count = 0
        self._pending: tuple[Group, asyncio.Future[object]] | None = None
        self._whole: tuple[Group, list[str]] | None = None
        self._here = Progress()
        self._wanted = SliceDemand(
            num_workers=demand.num_workers,
            workers_per_slice=workers_per_slice(demand, kind),
            deadline_s=time.monotonic() + demand.start_within_s,
        )

    async def reserve(self, bundle: Mapping[str, float]) -> Sliced:
        """Reserve the slices, a bundle for each rank.

        Raises:
            SlicesNotHad: they were not to be had in time, or something went wrong.
        """
        try:
            while self._whole is None:
                await self._step(bundle)
            group, bundles = self._whole
            return Sliced(group=group, bundles=bundles, heads=list(self.heads))
        finally:
            if self._whole is None:
                self._release()

    async def _step(self, bundle: Mapping[str, float]) -> None:
        self._wanted = replace(self._wanted, avoid=self._view.avoided(self._demand))
        step = reserving(self._wanted, self._here, time.monotonic())
        try:
            match step:
                case AskHead(number=number, avoid=avoid):
                    await self._ask_head(number, avoid)
                case Place(selectors=selectors):
                    await self._ask_whole(bundle, selectors)
                case Wait(until_s=until_s):
                    await self._wait(until_s)
                case Release():
                    self._release()
                case Fail(kind=kind, reason=reason):
                    raise SlicesNotHad(kind, reason)
                case Done():
                    pass
        except (ActorLost, ActorUnreachable, GroupRefused, RayError) as error:
            self._here = replace(self._here, error=str(error))

    async def _ask_head(self, number: int, avoid: tuple[str, ...]) -> None:
        if self._pending is not None and all(await self._ray.bundles(self._pending[0])):
            # It has its place by now: what is seen to be in use there is what it has.
            self._here = replace(self._here, avoided=avoid)
            return
        self._forget_pending()
        self._asks_count += 1
        labels = {HOST_NUMBER_LABEL: FIRST_HOST, KIND_LABEL: self._kind.pod_type}
        if avoid:
            labels[SLICE_LABEL] = f"!in({','.join(avoid)})"
        name = f"{self._stem}{HEAD}{number}-{self._asks_count}{self._suffix}"
        await self._ask(name, [{head_resource(self._kind): 1.0}], "PACK", [labels])
        self._here = replace(self._here, asked=True, avoided=avoid)

    async def _ask_whole(self, bundle: Mapping[str, float], selectors: Sequence[Mapping[str, str]]) -> None:
        name, given = f"{self._stem}{self._suffix}", self._demand.selectors
        each = given if len(given) == len(selectors) else (given or ({},))[:1] * len(selectors)
        labels = [{**own, **slice_} for own, slice_ in zip(each, selectors, strict=True)]
        await self._ask(name, [bundle] * len(selectors), self._demand.strategy, labels)
        # Its hosts may be giving back what an earlier group had: they have as long as the heads had.
        self._wanted = replace(self._wanted, deadline_s=time.monotonic() + self._demand.start_within_s)
        self._here = replace(self._here, placed="asked", held=True)

    async def _ask(
        self, name: str, bundles: Sequence[Mapping[str, float]], strategy: str, selectors: Sequence[Mapping[str, str]]
    ) -> None:
        made = await asked(self._ray, self._view.later, name, bundles, strategy, selectors)
        self._pending = (made[0], asyncio.ensure_future(made[1]))

    async def _wait(self, until_s: float) -> None:
        """Wait for what was asked for, or until the cluster has changed."""
        if self._pending is None:
            return
        group, ready = self._pending
        news = asyncio.ensure_future(self._view.news())
        try:
            timeout_s = max(0.0, until_s - time.monotonic())
            await asyncio.wait({ready, news}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        if not ready.done():
            return
        ready.result()
        where = [node or "" for node in await self._ray.bundles(group)]
        if not all(where):
            self._here = replace(self._here, error="a host was lost while it was being reserved")
        elif self._here.placed == "asked":
            self._pending, self._whole = None, (group, where)
            self._here = replace(self._here, placed="yes")
        else:
            await self._has_head(group, where[0])

    async def _has_head(self, group: Group, node: str) -> None:
        name = next((pod_of(one)[0] for one in await self._ray.nodes() if one.id == node), "")
        if not name or name in self._here.names:
            error = f"the node {node} has a head of a slice, and " + (
                f"is in the slice {name}, which has another" if name else f"no label {SLICE_LABEL}"
            )
            self._here = replace(self._here, error=error)
            return
        self._pending = None
        self.heads.append(Head(group=group, node=node))
        self._here = replace(self._here, names=(*self._here.names, name), asked=False, held=True)

    def _forget_pending(self) -> None:
        """Give back what was asked for and is not there yet."""
        if self._pending is not None:
            group, ready = self._pending
            self._pending = None
            if not ready.cancel() and not ready.cancelled():
                ready.exception()  # it was to be had, or not, and is wanted no more
            self._view.remove(group)

    def _release(self) -> None:
        self._forget_pending()
        for head in self.heads:
            self._view.remove(head.group)
        self.heads.clear()
        self._here = replace(self._here, held=False)


async def asked(
    ray: Ray,
    later: Callable[[Coroutine[object, object, None], str], None],
    name: str,
    bundles: Sequence[Mapping[str, float]],
    strategy: str,
    selectors: Sequence[Mapping[str, str]],
) -> tuple[Group, Awaitable[object]]:
    """Ask for a placement group as `Ray.create_group` does; one that comes to be when nobody waits is given back."""
    making = asyncio.ensure_future(ray.create_group(name, bundles, strategy, selectors))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        later(_give_back(ray, making), f"the placement group {name}")
        raise


async def _give_back(ray: Ray, making: Awaitable[tuple[Group, Awaitable[object]]]) -> None:
    with contextlib.suppress(GroupRefused):
        group, ready = await making
        asyncio.ensure_future(ready).cancel()
        await ray.remove_group(group)


async def heads_held(ray: Ray, name: str, groups: Collection[Group]) -> list[Head]:
    """Return the heads of the slices of a placement group with this name, among all those that stand."""
    found = heads_of(name, groups)
    return [Head(group=one, node=next(iter(await ray.bundles(one)), None) or "") for one in found]
