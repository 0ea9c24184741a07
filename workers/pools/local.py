"""The slots of a pool: who gets them, whole or not at all, and who waits behind whom. No I/O, no clock.

Amounts are exact (ten-thousandths). The queue is strict: by priority, then by acceptance; nobody overtakes the first
that waits, so that a large group is not starved by small ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec.structs import replace

from runfold.events.base import Value
from runfold.events.config import PlacementStrategy, Timeouts
from runfold.events.facts import PlaceOffer
from runfold.events.slices import Slice
from runfold.workers.pools.kept import with_kept
from runfold.workers.pools.labels import NODE_LABEL, Labels, fits, nowhere, shared_out, words
from runfold.workers.pools.room import Room, largest, shared

_UNITS: Final = 10_000


class Demand(Value, frozen=True, kw_only=True):
    """What a run's group needs: so many ranks, each with these resources.

    `selectors` say which nodes they may stand on, by label: one for all ranks, or one for each (see `labels`).
    `accelerator_type` is one that a cluster knows of its nodes, `prepared` what it is to prepare there, by name.
    `mends`: it is for another place of a group at work, that of the run `of`; `whole`: of one that waits for it, which
    is this. `slice`: the kind of TPU slices that the ranks come in, whole; they are to be had within `start_within_s`
    of its turn.
    """

    run: str
    attempt: int
    num_workers: int
    resources: dict[str, float]
    priority: int = 0
    accepted_at: str = ""
    strategy: PlacementStrategy = "PACK"
    excluded: tuple[str, ...] = ()
    selectors: tuple[dict[str, str], ...] = ()
    mends: bool = False
    of: str = ""
    accelerator_type: str | None = None
    prepared: tuple[str, ...] = ()
    slice: Slice | None = None
    start_within_s: float = Timeouts().start_timeout_s
    whole: Demand | None = None

    @property
    def holder(self) -> str:
        """Under which name its places stand in the book: another place of a group is one of its run's."""
        return self.of or self.run

    @property
    def order(self) -> tuple[bool, int, str, str]:
        """Who comes first: who holds places already, higher priority, earlier acceptance, then the name.

        A group at work that has lost a place would else wait for those who wait for its other places.
        """
        return (not self.mends, -self.priority, self.accepted_at, self.run)


class Waiting(Value, frozen=True, kw_only=True):
    """How a run waits: runs ahead of it, CPUs free and needed (rounded down and up).

    `what` it waits for, in words, where that is not CPUs. `contested`: the places that its group keeps meanwhile are of
    use to others that wait, or it could be placed whole. `hopeless`: it could be placed whole now, while no node could
    have the place that is looked for, even empty.
    """

    ahead: int
    free: int
    needed: int
    what: str = ""
    contested: bool = False
    hopeless: bool = False


class Granted(Value, frozen=True, kw_only=True):
    """A demand that has its places."""

    demand: Demand
    places: tuple[PlaceOffer, ...]


class GivenUp(Value, frozen=True, kw_only=True):
    """A demand whose places were not to be had: not in time, or because something went wrong."""

    demand: Demand
    kind: Literal["late", "failed"]
    reason: str


class Slots:
    """The book of a pool's nodes: what is free on each, who holds what, who waits. `labels` are those of nodes."""

    def __init__(self, nodes: Mapping[str, Mapping[str, float]], labels: Labels | None = None) -> None:
        self._total = {node: _exact(amounts) for node, amounts in nodes.items()}
        self._ever = dict(self._total)
        self._labels = {node: {NODE_LABEL: node, **(labels or {}).get(node, {})} for node in nodes}
        self._free = {node: dict(amounts) for node, amounts in self._total.items()}
        self._waiting: dict[str, Demand] = {}
        self._held: dict[str, Granted] = {}

    def never(self, demand: Demand) -> str | None:
        """Return why a demand could not be met by the whole pool standing empty; None if it could.

        Nodes that are excluded now may be used again, and slots that were taken away come back: they are waited for.
        """
        if demand.prepared:
            what = ", ".join(demand.prepared)
            return f"runtime_env asks for {what}: that is prepared on a Ray cluster alone, and this pool is none"
        need = _exact(demand.resources)
        usable = list(self._ever)
        for name in need:
            if not any(self._ever[node].get(name) for node in usable):
                return f"each rank needs {demand.resources[name]:g} {name}, and this pool has no {name}"
        labels = {node: self._labels.get(node, {}) for node in usable}
        if (why := nowhere(demand.selectors, labels)) is not None:
            return why
        if _fit({node: self._ever[node] for node in usable}, need, demand, labels) is not None:
            return None
        each = ", ".join(f"{amount:g} {name}" for name, amount in demand.resources.items())
        has = ", ".join(f"{node}: {_words(self._ever[node])}" for node in usable) or "no usable node"
        where = " or ".join(dict.fromkeys(f"on nodes with {words(one)}" for one in demand.selectors))
        return f"{demand.num_workers} ranks with {each} each{where and f' {where}'}, and the whole pool has {has}"

    def ask(self, demand: Demand) -> None:
        """Put a demand into the queue, in place of an earlier one of the same run."""
        self._waiting[demand.run] = demand

    def hold(self, demand: Demand, place: PlaceOffer) -> None:
        """Note that a run holds a place already: an earlier supervisor gave it."""
        held = self._held.get(demand.run)
        places = (*held.places, place) if held is not None else (place,)
        self._held[demand.run] = Granted(demand=demand if held is None else held.demand, places=places)
        self._give(self._held[demand.run].demand, place, -1)

    def withdraw(self, run: str) -> None:
        """Take a run out of the queue."""
        self._waiting.pop(run, None)

    def release(self, run: str) -> None:
        """Give back what a run holds."""
        granted = self._held.pop(run, None)
        if granted is None:
            return
        for place in granted.places:
            self._give(granted.demand, place, 1)

    def part(self, run: str, node: str) -> None:
        """Give back what a run holds on a node."""
        if (held := self._held.get(run)) is None:
            return
        for place in held.places:
            if place.node == node:
                self._give(held.demand, place, 1)
        self._held[run] = replace(held, places=tuple(place for place in held.places if place.node != node))

    def grant(self) -> list[Granted]:
        """Give places to those first in the queue, as far as they go."""
        granted: list[Granted] = []
        for demand in self._queue():
            if demand.run in self._held:  # from an earlier attempt
                break
            need = _exact(demand.resources)
            off = {*demand.excluded, *(place.node for place in self._places_beside(demand))}
            usable = {node: free for node, free in self._free.items() if node not in off}
            places = _fit(usable, need, demand, self._labels)
            if places is None:
                if self._waits_for_nodes(demand):
                    continue  # whatever becomes free is not for it, and it keeps nobody back
                break
            for place in places:
                self._give(demand, place, -1)
            del self._waiting[demand.run]
            granted.append(Granted(demand=demand, places=places))
            self._note(granted[-1])
        return granted

    def _places_beside(self, demand: Demand) -> tuple[PlaceOffer, ...]:
        """Return the other places of a run that wants one more: it has one on each node."""
        held = self._held.get(demand.of)
        return held.places if held is not None else ()

    def _note(self, granted: Granted) -> None:
        """Note who holds what: another place of a group at work is held as its first ones are."""
        name = granted.demand.holder
        held = self._held.get(name)
        self._held[name] = granted if held is None else replace(held, places=(*held.places, *granted.places))

    def take_back(self, granted: Granted) -> None:
        """Take places back that were granted and are not taken, and nothing else of what their run holds."""
        holder = granted.demand.holder
        if (held := self._held.get(holder)) is None:
            return
        places = list(held.places)
        for place in granted.places:
            if place in places:
                places.remove(place)
                self._give(held.demand, place, 1)
        if places:
            self._held[holder] = replace(held, places=tuple(places))
        else:
            del self._held[holder]

    def given_up(self) -> list[GivenUp]:
        """Return nothing: who is in this queue waits for as long as it takes."""
        return []

    def waiting(self) -> dict[str, Waiting]:
        """Return how each run of the queue waits."""
        return {
            demand.run: with_kept(
                Waiting(ahead=ahead, free=self._free_for(demand), needed=_rounded_up(demand)),
                demand,
                self._waiting.values(),
                self._waits_for_nodes,
                self._could_be,
            )
            for ahead, demand in enumerate(self._queue())
        }

    def _could_be(self, whole: Demand) -> bool:
        """Whether a group that keeps places could be placed whole now, on what it holds and what is free."""
        own = self._free_with_own(whole)
        usable = {node: free for node, free in own.items() if node not in whole.excluded}
        return _fit(usable, _exact(whole.resources), whole, self._labels) is not None

    def _waits_for_nodes(self, demand: Demand) -> bool:
        """Whether a demand could not be met by the nodes that it may use if they all stood empty."""
        usable = {node: total for node, total in self._total.items() if node not in demand.excluded}
        return _fit(usable, _exact(demand.resources), demand, self._labels) is None

    def _free_for(self, demand: Demand) -> int:
        free = (max(self._free[node].get("CPU", 0), 0) for node in self._free if node not in demand.excluded)
        return sum(free) // _UNITS

    @property
    def free(self) -> int:
        """Whole CPUs free; none where more is held than there is by now."""
        return sum(max(amounts.get("CPU", 0), 0) for amounts in self._free.values()) // _UNITS

    @property
    def nodes(self) -> dict[str, int]:
        """Whole CPUs of each node, free or not."""
        return {node: amounts.get("CPU", 0) // _UNITS for node, amounts in self._total.items() if any(amounts.values())}

    # --- other sizes

    def resize(self, node: str | None, slots: int) -> str | None:
        """Let the pool, or one node, have so many CPUs from now on; return why not, if so."""
        if node is not None and node not in self._total:
            return f"there is no node {node!r} in this pool; there are {', '.join(self._total)}"
        most = {name: amounts.get("CPU", 0) // _UNITS for name, amounts in self._ever.items()}
        wanted = {node: slots} if node is not None else shared(slots, most)
        if wanted is None:
            return (
                f"{slots} slots are more than the {sum(most.values())} of its {len(most)} nodes; name one with --node"
            )
        for name, count in wanted.items():
            before = self._total[name].get("CPU", 0)
            self._total[name] = {**self._total[name], "CPU": count * _UNITS}
            self._free[name]["CPU"] = self._free[name].get("CPU", 0) + count * _UNITS - before
            self._ever[name] = {**self._ever[name], "CPU": max(self._ever[name].get("CPU", 0), count * _UNITS)}
        return None

    def overdrawn(self) -> list[tuple[str, str]]:
        """Return which run must leave which node, so that no node has given more than it has: the last come first."""
        leaving: list[tuple[str, str]] = []
        for node, free in self._free.items():
            short = {name: -amount for name, amount in free.items() if amount < 0}
            for run, held in sorted(self._held.items(), key=lambda one: one[1].demand.order, reverse=True):
                slots = sum(place.slots for place in held.places if place.node == node)
                if not slots or all(amount <= 0 for amount in short.values()):
                    continue
                need = _exact(held.demand.resources)
                short = {name: amount - need.get(name, 0) * slots for name, amount in short.items()}
                leaving.append((run, node))
        return leaving

    def room(self, demand: Demand) -> Room:
        """Return what there is room for, of a group with this demand's shape and at most its size.

        What its run holds counts as free; what others hold does not, nor does anything while one waits that comes
        before it. Nodes that the run stays off count: which these are it knows before the pool does.
        """
        need, most = _exact(demand.resources), demand.num_workers
        free = self._free_with_own(demand)
        allowed = {node: _allowed(demand.selectors, self._labels.get(node, {}), most) for node in self.nodes}
        everywhere = {node: free[node] for node in allowed}

        def can_be_placed(size: int) -> bool:
            return _fit(everywhere, need, replace(demand, num_workers=size), self._labels) is not None

        return Room(
            slots=self.nodes,
            whole={node: min(_ranks_on(self._total[node], need, most), ranks) for node, ranks in allowed.items()},
            room={node: min(_ranks_on(free[node], need, most), ranks) for node, ranks in allowed.items()},
            fits=largest(most, can_be_placed),
        )

    def _free_with_own(self, demand: Demand) -> dict[str, dict[str, int]]:
        behind = any(
            other.order < demand.order and not self._waits_for_nodes(other)
            for other in self._waiting.values()
            if other.holder != demand.holder
        )
        free: dict[str, dict[str, int]] = {
            node: dict.fromkeys(amounts, 0) if behind else dict(amounts) for node, amounts in self._free.items()
        }
        held = self._held.get(demand.holder)
        for place in held.places if held is not None else ():
            for name, amount in _exact(held.demand.resources if held is not None else {}).items():
                if name in free.get(place.node, {}):
                    free[place.node][name] += amount * place.slots
        return free

    def _give(self, demand: Demand, place: PlaceOffer, sign: int) -> None:
        """Give the resources of a place back, or take them; what the pool has no more is nobody's."""
        free = self._free.get(place.node, {})
        for name, amount in _exact(demand.resources).items():
            if name in free:
                free[name] += sign * amount * place.slots

    def _queue(self) -> list[Demand]:
        return sorted(self._waiting.values(), key=lambda demand: demand.order)


def _exact(amounts: Mapping[str, float]) -> dict[str, int]:
    return {name: round(amount * _UNITS) for name, amount in amounts.items() if amount > 0}


def _words(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{amount / _UNITS:g} {name}" for name, amount in amounts.items())


def _rounded_up(demand: Demand) -> int:
    return -(-_exact(demand.resources).get("CPU", 0) * demand.num_workers // _UNITS)


def _fit(
    free: Mapping[str, Mapping[str, int]], need: Mapping[str, int], demand: Demand, labels: Labels
) -> tuple[PlaceOffer, ...] | None:
    """Return places for all ranks of a demand, or None."""
    room = {node: _ranks_on(amounts, need, demand.num_workers) for node, amounts in free.items()}
    given = shared_out(room, demand.num_workers, demand.strategy, demand.selectors, labels, _share)
    if sum(given.values()) < demand.num_workers:
        return None
    return tuple(PlaceOffer(node=node, slots=slots) for node, slots in given.items() if slots)


def _share(room: Mapping[str, int], wanted: int, strategy: PlacementStrategy) -> dict[str, int]:
    """Return how many ranks each node takes of those wanted; fewer in all when they do not fit."""
    match strategy:
        case "STRICT_PACK":
            return dict([(node, wanted) for node, ranks in room.items() if ranks >= wanted][:1])
        case "STRICT_SPREAD":
            return _spread({node: min(ranks, 1) for node, ranks in room.items()}, wanted)
        case "SPREAD":
            return _spread(room, wanted)
        case "PACK":
            return _pack(room, wanted)


def _allowed(selectors: Sequence[Mapping[str, str]], labels: Mapping[str, str], most: int) -> int:
    """Return how many ranks may stand on a node by its labels."""
    if len(selectors) <= 1:
        return most if all(fits(selector, labels) for selector in selectors) else 0
    return sum(fits(selector, labels) for selector in selectors)


def _ranks_on(amounts: Mapping[str, int], need: Mapping[str, int], at_most: int) -> int:
    return min((max(amounts.get(name, 0), 0) // amount for name, amount in need.items()), default=at_most)


def _pack(room: Mapping[str, int], wanted: int) -> dict[str, int]:
    given: dict[str, int] = {}
    # The roomiest first: as few nodes as possible.
    for node in sorted(room, key=lambda name: -room[name]):
        given[node] = min(room[node], wanted)
        wanted -= given[node]
    return given


def _spread(room: Mapping[str, int], wanted: int) -> dict[str, int]:
    given = dict.fromkeys(room, 0)
    while wanted > 0:
        open_nodes = [node for node in room if given[node] < room[node]]
        if not open_nodes:
            break
        for node in open_nodes[:wanted]:
            given[node] += 1
        wanted -= min(wanted, len(open_nodes))
    return given
