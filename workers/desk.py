"""What a supervisor keeps of one run, and how it does what `placing` says."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from runfold.events.assignment import Assignment
from runfold.events.facts import (
    AnyFact,
    CapacityChanged,
    Placed,
    PlacementFailed,
    PlaceOffer,
    PlaceReplaced,
    PreemptionCancelled,
    PreemptionNoticed,
    Queued,
    Released,
    RunnerLost,
)
from runfold.workers.beside import Beside
from runfold.workers.facts import Facts
from runfold.workers.mending import Mend
from runfold.workers.pipe import RunnerSpec
from runfold.workers.places import Place
from runfold.workers.placing import RunHere, RunnerHere, SayLost
from runfold.workers.pools.local import Demand, GivenUp, Granted, Waiting
from runfold.workers.pools.pool import Left, Notice, Watched
from runfold.workers.pools.room import Room
from runfold.workers.spool import About, about

SECRET_BYTES: Final = 32


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """What is equal for all runners of a supervisor."""

    url: str
    namespace: str
    pool: str
    base_dir: str
    storage_dir: str = ""
    addr: str = "127.0.0.1"
    places_dir: str | None = None
    adopt: bool = False


class Home(msgspec.Struct, frozen=True):
    """What is known of a run where its processes are started (see `storages.Home`)."""

    run: str
    base_dir: str
    storage_dir: str


class Desk:
    """One run at this supervisor. `settled_s`: until then runners of an earlier supervisor may turn up."""

    def __init__(
        self,
        assignment: Assignment,
        facts: Facts,
        site: Site,
        start: Callable[[RunnerSpec, Callable[[], None]], Watched],
        on_change: Callable[[], None],
        settled_s: float = 0.0,
        beside: Beside | None = None,
    ) -> None:
        self.beside = beside
        self.assignment = assignment
        self.facts = facts
        self._site = site
        self._start_runner = start
        self._on_change = on_change
        self._asked: int | None = None
        self._held: int | None = None
        self._refused: int | None = None
        self._released: int | None = None
        self._orphans: int | None = None
        self._off: tuple[str, ...] = ()
        self._mended: dict[tuple[int, int], str] = {}
        self._mends_off: dict[str, tuple[str, ...]] = {}
        self._moved: dict[int, str] = {}
        self._secret = b""
        self._waiting: Waiting | None = None
        # Whether another supervisor of this pool has spoken for the run before.
        is_heir = any(given.source == facts.source and given.boot != facts.boot for given in assignment.joined)
        self._settled_s = settled_s if is_heir else 0.0
        self._adopted = False
        self._strays: list[Left] = []
        self._taken: dict[str, str] = {}
        self._parting = False
        self.runners: list[Watched] = []

    @property
    def here(self) -> RunHere:
        """What the planner needs to know."""
        return RunHere(
            asked=self._asked,
            held=self._held,
            refused=self._refused,
            released=self._released,
            orphans=self._orphans,
            off=self._off,
            mended=tuple(self._mended),
            mends_off=dict(self._mends_off),
            granted=tuple(self._moved.values()),
            superseded=self.facts.superseded,
            runners=tuple(self._seen(runner) for runner in self.runners),
            unsure=self._settled_s > 0 and self.facts.spool.incarnation is None,
            settled_s=self._settled_s,
            adopted=self._adopted,
            strays=any(stray.alive for stray in self._strays),
        )

    @property
    def settled_s(self) -> float:
        """Until when runners of an earlier supervisor may turn up; 0 where there was none."""
        return self._settled_s

    def _seen(self, runner: Watched) -> RunnerHere:
        """Return what is known of a runner. One that was ended for its places is missed at once, however it ended."""
        here = runner.here
        if runner.node not in self._taken:
            return here
        return replace(here, code=None, signal=None, orderly=False, unseen=False, place_taken=False)

    @property
    def holds(self) -> bool:
        """Whether slots are held for the run."""
        return self._held is not None

    @property
    def everyone(self) -> list[Watched]:
        """The runners that are watched here, those among them that hold nothing."""
        return [*self.runners, *self._strays]

    def knows(self, place: Place) -> bool:
        """Whether a runner found at a place is one of those watched here, or is being started."""
        return any(runner.alive and runner.pid in (None, place.pid) for runner in self.everyone)

    def adopt(self, runner: Left) -> bool:
        """Watch a runner that an earlier supervisor has started; False for one that is no part of what is held."""
        place = runner.place
        taken = any(other.alive and other.node == runner.node for other in self.runners)
        # Of a group that has kept its places, each runner has the attempt in which it was started.
        if (self._held not in (None, place.attempt) and not self.assignment.kept) or taken:
            self._strays.append(runner)
            runner.stop("another runner has its place", 0.0)
            return False
        self._held, self._adopted, self._released = place.attempt, True, None
        self.runners = [other for other in self.runners if other.node != runner.node] + [runner]
        return True

    def asked(self) -> None:
        """The demand of the present attempt stands in the queue."""
        self._asked, self._refused, self._waiting = self.assignment.attempt, None, None
        self._off = self.assignment.excluded_nodes

    def withdrawn(self) -> None:
        """The run waits no more."""
        self._asked = self._waiting = None

    def refuse(self, why: str) -> None:
        """Say that the present attempt can never be placed."""
        self._refused, self._off = self.assignment.attempt, self.assignment.excluded_nodes
        self._say(PlacementFailed(**self._about(), verdict="never", reason=why))

    def not_placed(self, given_up: GivenUp) -> None:
        """Say that the places of an attempt were not to be had; another attempt may have them."""
        if given_up.demand.attempt == self.assignment.attempt:
            self.withdrawn()
            self._refused = given_up.demand.attempt
            self._say(PlacementFailed(**self._about(), verdict=given_up.kind, reason=given_up.reason))

    def waits(self, waiting: Waiting) -> None:
        """Say how the run waits, if that is news."""
        if waiting != self._waiting:
            self._waiting = waiting
            if waiting.what and not waiting.ahead:
                self._say(PlacementFailed(**self._about(), verdict="busy", reason=waiting.what))
                return
            self._say(
                Queued(
                    **self._about(),
                    ahead=waiting.ahead,
                    free=waiting.free,
                    needed=waiting.needed,
                    contested=waiting.contested,
                    hopeless=waiting.hopeless,
                )
            )

    def place(self, granted: Granted) -> None:
        """Say that the group has its places, and start a runner on each."""
        self.withdrawn()
        self._held = granted.demand.attempt
        self._released, self._adopted = None, False
        self._say(Placed(**self._about(), places=granted.places))
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self.runners = [self._start(place, granted.demand) for place in granted.places]

    def mends(self, step: Mend) -> None:
        """The demand for another place stands in the queue; the runner of the one that was left ends."""
        self._mended[step.place, step.left] = step.demand.run
        self._mends_off[step.demand.run] = step.demand.excluded
        self._moved.pop(step.place, None)
        job, node = self.assignment.job, self.assignment.places[step.place].node
        stands = {place.node for place in self.assignment.places if place.left is None} | set(self._moved.values())
        if node in stands:
            return  # another place of the group has been found there since, with a runner of its own
        grace_s = job.timeouts.restart_grace_s if job is not None else 0.0
        for runner in self.runners:
            if runner.node == node and runner.alive:
                runner.stop("the group has left this place", grace_s, self.assignment.mark)

    @property
    def mended(self) -> list[str]:
        """The names under which other places were asked for."""
        return list(dict.fromkeys(self._mended.values()))

    def mend(self, number: int, granted: Granted) -> bool:
        """Say that another place stands for the one with this number, and start a runner on it.

        False where a runner of the group lives already, as when it has got two places at once: another is asked for.
        """
        offer = granted.places[0]
        self._held, self._released = self._held or granted.demand.attempt, None
        self._mends_off.pop(granted.demand.run, None)
        if any(runner.alive and runner.node == offer.node for runner in self.runners):
            self._mended = {key: name for key, name in self._mended.items() if name != granted.demand.run}
            return False
        self._secret = self._secret or self._inherited or secrets.token_bytes(SECRET_BYTES)
        self._moved[number] = offer.node
        left = max((left for place, left in self._mended if place == number), default=None)
        self._say(PlaceReplaced(**self._about(), place=number, offer=offer, left=left))
        self.give_up(offer.node)
        self.runners.append(self._start(offer, granted.demand))
        return True

    @property
    def _inherited(self) -> bytes:
        """The group's secret, as a runner tells it that an earlier supervisor has started; empty for none."""
        return next((one.secret for one in self.runners if one.secret), b"")

    def dismiss(self, node: str) -> None:
        """End the runner on a place that the group never had, as far as the log knows."""
        for runner in self.runners:
            if runner.node == node:
                runner.stop("no place of the group is known here", 0.0)

    def give_up(self, node: str) -> None:
        """Nothing of the group lives on a node, and its slots are given back."""
        self.runners = [runner for runner in self.runners if runner.node != node]
        # What becomes of a runner that is started there later has reasons of its own.
        self._taken.pop(node, None)

    def stop_runners(self, reason: str, grace_s: float) -> None:
        """Tell the runners to stop."""
        for runner in self.everyone:
            runner.stop(reason, grace_s, self.assignment.mark)

    def lost(self, step: SayLost) -> None:
        """Say that a runner is gone."""
        if step.orphan:
            self._orphans = self.assignment.attempt
        for runner in self.runners:
            if runner.node == step.node:
                runner.told = self.assignment.attempt
        reason, taken = self._taken.get(step.node, step.reason), step.node in self._taken
        lost = RunnerLost(**self._about(), node=step.node, exit_code=step.code, signal=step.signal, reason=reason)
        self._say(replace(lost, taken=taken))

    def take_away(self, node: str, reason: str) -> None:
        """End the runner on a node: its places are the run's no more."""
        if node not in self._taken:
            self._taken[node] = reason
            for runner in self.runners:
                if runner.node == node:
                    runner.stop(reason, 0.0)

    def takes(self, node: str) -> bool:
        """Whether the runner on a node is being ended for its places, or its end has still to be told."""
        here = [runner for runner in self.runners if runner.node == node and node in self._taken]
        return any(runner.alive or runner.told < self.assignment.attempt for runner in here)

    def room(self, room: Room) -> None:
        """Say what the pool has room for."""
        self._say(
            CapacityChanged(
                **self._about(),
                slots=room.slots,
                whole=room.whole,
                room=room.room,
                fits=room.fits,
                slices=room.slices,
            )
        )

    def freed(self) -> None:
        """Nothing of the group lives, and its slots are given back."""
        self._held, self._adopted, self._mended, self._mends_off, self._moved = None, False, {}, {}, {}
        self.runners, self._taken = [], {}

    def release(self) -> None:
        """Say that the group holds nothing any more."""
        self._released = self.assignment.attempt
        self._say(Released(**self._about()))

    def notice(self, nodes: tuple[str, ...], within_s: float | None, reason: str) -> None:
        """Say that the group's nodes will be taken back."""
        self._say(PreemptionNoticed(**self._about(), nodes=nodes, within_s=within_s, reason=reason))

    def part(self, within_s: float, reason: str) -> None:
        """Say once that all nodes of the group go, for the supervisor does."""
        nodes = tuple(runner.node for runner in self.runners if runner.alive)
        if nodes and not self._parting:
            self._parting = True
            self.notice(nodes, within_s, reason)

    @property
    def may_save(self) -> bool:
        """Whether ranks may be at work here that have not saved yet what they are asked for when their nodes go."""
        if self.assignment.want != "train" or not any(runner.alive for runner in self.runners):
            return False
        work = self.assignment.job
        return work is None or work.taken is None or work.wanted is not None

    def pass_on(self, notice: Notice, nodes: tuple[str, ...]) -> None:
        """Say what the pool has heard of nodes of the group: that they go, or stay after all."""
        if notice.cancelled:
            self._say(PreemptionCancelled(**self._about(), nodes=nodes))
        else:
            self.notice(nodes, notice.within_s, notice.reason)

    def _start(self, place: PlaceOffer, demand: Demand) -> Watched:
        site, job = self._site, self.assignment.job
        spec = RunnerSpec(
            url=site.url,
            namespace=site.namespace,
            run=self.assignment.run,
            attempt=demand.attempt,
            pool=site.pool,
            node=place.node,
            source=place.node,
            secret=self._secret,
            held_as=demand.run,
            base_dir=site.base_dir,
            storage_dir=site.storage_dir,
            addr=site.addr,
            slots=place.slots,
            resources=demand.resources,
            places_dir=site.places_dir,
            adopt=site.adopt,
            adopt_within_s=job.timeouts.adopt_within_s if site.adopt and job is not None else 0.0,
            secret_env=job.secret_env if job is not None else (),
            runtime_env=self.assignment.runtime_env,
        )
        return self._start_runner(spec, self._on_change)

    def _about(self) -> About:
        return about(self.assignment.attempt, time.monotonic())

    async def close(self) -> None:
        """End what is done beside the group, then say nothing more."""
        if self.beside is not None:
            await self.beside.close()
        await self.facts.close()

    def _say(self, fact: AnyFact) -> None:
        self.facts.say(fact)
