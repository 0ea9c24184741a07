"""What a supervisor tells a run of a node whose slots go and come back: in the order in which it can be understood."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace

from runfold.events.assignment import Assignment
from runfold.events.facts import CapacityChanged, PlaceOffer, PreemptionCancelled, PreemptionNoticed, RunnerLost
from runfold.events.pools import SetCapacity
from runfold.workers.capacity import TELL_EVERY_S, Capacity
from runfold.workers.desk import Desk, Site
from runfold.workers.placing import SayLost, demand_of
from runfold.workers.pools.local import Granted, Slots

if TYPE_CHECKING:
    from collections.abc import Callable

    from runfold.events.assignment import Mark
    from runfold.events.facts import AnyFact
    from runfold.events.nats.connection import Connection
    from runfold.workers.facts import Facts
    from runfold.workers.pipe import RunnerSpec
    from runfold.workers.pools.pool import Watched

RUN = Assignment(
    run="digits", epoch=1, n=1, hash="", attempt=1, want="train", num_workers=4, resources={"CPU": 1.0}, room_for=4
)
LATER_S = 2 * TELL_EVERY_S


class Runner:
    """A runner that ends when the test says so, however it is told to."""

    def __init__(self, node: str) -> None:
        self.node, self.alive, self.told, self.secret = node, True, 0, b"s"

    def stop(self, reason: str, grace_s: float, said_by: Mark | None = None) -> None:
        pass


class Rig:
    """A pool of two nodes with two slots each; one run has all of them, and was told so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.said: list[AnyFact] = []
        self.runners: dict[str, Runner] = {}
        self.book = Slots({"a": {"CPU": 2.0}, "b": {"CPU": 2.0}})
        self.capacity = Capacity(self.book, cast("Connection", None), "local", None, lambda: None)
        spool = SimpleNamespace(settled=True)
        facts = SimpleNamespace(source="pool-local", boot="s", say=self.said.append, superseded=False, spool=spool)
        site = Site(url="", namespace="", pool="local", base_dir="")
        self.desk = Desk(RUN, cast("Facts", facts), site, self._start, lambda: None)
        self.book.ask(demand_of(RUN))
        (granted,) = self.book.grant()
        self.desk.place(granted)
        self.tends()
        self.said.clear()

    def _start(self, spec: RunnerSpec, _: Callable[[], None]) -> Watched:
        self.runners[spec.node] = Runner(spec.node)
        return cast("Watched", self.runners[spec.node])

    def has(self, node: str, slots: int) -> None:
        """Let a node have so many slots, and the supervisor take its turn."""
        self.capacity._done(SetCapacity(id=f"{node}-{slots}-{self.now}", slots=slots, node=node, by="ada"))
        self.tends()

    def tends(self, after_s: float = 0.0) -> None:
        """Let the supervisor take a turn, so much later."""
        self.now += after_s
        self.capacity.tend(self.book, {"digits": self.desk}, self.now)

    def ends(self, node: str) -> None:
        """Let the runner on a node end, and its end be told."""
        self.runners[node].alive = False
        self.desk.lost(SayLost(node=node, signal=9))
        self.tends()

    def leaves(self, node: str) -> None:
        """Let the run have left a node: its place is given back, and nothing of it lives there."""
        self.runners[node].alive = False
        self.book.part("digits", node)
        self.desk.give_up(node)
        self.tends()

    def placed_again(self, node: str) -> None:
        """Let the run have another place on a node."""
        offer = PlaceOffer(node=node, slots=2)
        self.book.hold(demand_of(RUN), offer)
        granted = Granted(demand=replace(demand_of(RUN), run="digits/place-1"), places=(offer,))
        assert self.desk.mend(1, granted)

    @property
    def told(self) -> list[str]:
        """What was said, each in a word; of the room which nodes there are."""
        return [
            f"nodes {' '.join(fact.slots)}" if isinstance(fact, CapacityChanged) else WORDS[type(fact)]
            for fact in self.said
            if isinstance(fact, (*WORDS, CapacityChanged))
        ]


WORDS: dict[type, str] = {PreemptionNoticed: "notice", PreemptionCancelled: "stays", RunnerLost: "lost"}


@pytest.mark.parametrize("slots", [1, 2])
def test_what_is_taken_is_lost_before_its_node_is_back(slots: int) -> None:
    rig = Rig()
    rig.has("b", 0)
    assert rig.told == ["notice"]
    rig.tends(LATER_S)
    rig.has("b", slots)
    rig.tends(LATER_S)
    assert rig.told == ["notice", "nodes a"], "its runner has not ended: that b is back would be taken to stay"
    rig.ends("b")
    rig.tends(LATER_S)
    if slots == 1:
        assert rig.told == ["notice", "nodes a", "lost"], "the place of two is held still, on a node that has one"
        rig.leaves("b")
        rig.tends(LATER_S)
    assert rig.told == ["notice", "nodes a", "lost", "nodes a b"]


def test_a_node_that_went_and_came_between_two_tellings_is_said_to_stay() -> None:
    rig = Rig()
    rig.has("b", 1)
    rig.tends(LATER_S)
    rig.said.clear()
    rig.has("b", 0)
    rig.leaves("b")
    rig.has("b", 2)
    rig.tends(LATER_S)
    assert rig.told == ["stays", "nodes a b"], "the run never heard that it was gone"


def test_a_node_that_is_known_to_be_gone_is_told_as_another_when_it_comes() -> None:
    rig = Rig()
    rig.has("b", 0)
    rig.leaves("b")
    rig.tends(LATER_S)
    rig.has("b", 2)
    rig.tends(LATER_S)
    assert rig.told == ["notice", "nodes a", "nodes a b"]


def test_that_a_node_was_back_is_not_told_behind_the_next_notice_of_it() -> None:
    rig = Rig()
    rig.has("b", 0)
    rig.leaves("b")
    rig.tends(LATER_S)
    rig.book.resize("b", 2)
    rig.placed_again("b")
    rig.has("b", 1)
    rig.tends(LATER_S)
    assert rig.told == ["notice", "nodes a", "notice"]
    rig.ends("b")
    rig.leaves("b")
    rig.tends(LATER_S)
    assert rig.told[3:] == ["lost", "nodes a b"]


def test_a_run_that_does_not_ask_for_room_is_told_that_its_node_is_back() -> None:
    rig = Rig()
    rig.desk.assignment = replace(RUN, room_for=0)
    rig.has("b", 0)
    rig.leaves("b")
    rig.tends(LATER_S)
    assert rig.told == ["notice"]
    rig.has("b", 2)
    assert rig.told == ["notice", "stays"], "nobody else would say so"
