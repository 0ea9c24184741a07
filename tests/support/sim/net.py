"""What is asked and sent between processes: a hop there, a hop back, and what may become of either."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from support.sim.process import Process
from support.sim.scenario import Messages

T = TypeVar("T")

BROKER: Final = "broker"
HOP_S: Final = (0.0004, 0.004)
ORDER_S: Final = 1e-6
REATTACH_S: Final = (0.25, 1.5)
"""How soon a follower that missed something is made anew."""


class NoAnswer(Exception):
    """Nothing came back in time: it may or may not have been done."""


class Net:
    """Everybody reaches everybody until cut off. `steps` counts what happened in it."""

    def __init__(self, dice: random.Random, messages: Messages) -> None:
        self.steps = 0
        self.down: set[str] = set()
        self.breaks: dict[str, int] = {}
        """How often each one's connection to the broker has broken."""
        self.dice = dice
        self._cuts: dict[frozenset[str], int] = {}
        self._late_s = messages.late_s
        self._lost, self._unheard = dice.choice(messages.lost), dice.choice(messages.unheard)
        self._doubled, self._late = dice.choice(messages.doubled), dice.choice(messages.late)

    def calm(self) -> None:
        """Let every message arrive, once and soon, from here on."""
        self._lost = self._unheard = self._doubled = self._late = 0.0

    def cut(self, one: str, other: str) -> None:
        """Let nothing pass between two."""
        pair = frozenset((one, other))
        self._cuts[pair] = self._cuts.get(pair, 0) + 1
        self.breaks[one] = self.breaks.get(one, 0) + 1

    def mend(self, one: str, other: str) -> None:
        """Take one cut back."""
        pair = frozenset((one, other))
        self._cuts[pair] -= 1
        if not self._cuts[pair]:
            del self._cuts[pair]

    def reaches(self, one: str, other: str = BROKER) -> bool:
        """Whether a message between two would arrive now."""
        return other not in self.down and one not in self.down and frozenset((one, other)) not in self._cuts

    def hop_s(self) -> float:
        """Draw how long a message is on its way."""
        dice = self.dice
        return dice.uniform(*self._late_s) if self._late and dice.random() < self._late else dice.uniform(*HOP_S)

    def happens(self, rate: float) -> bool:
        """Draw whether something happens."""
        return rate > 0.0 and self.dice.random() < rate

    @property
    def loses(self) -> bool:
        """Draw whether a message is lost."""
        return self.happens(self._lost)

    async def ask(
        self,
        who: Process,
        act: Callable[[], T],
        *,
        timeout_s: float,
        to: str = BROKER,
        linger: Callable[[], float] = lambda: 0.0,
    ) -> T:
        """Have something done at `to` and return its answer; raise `NoAnswer` when there is none in time.

        A message that has left arrives although its sender dies. `linger`: how long the answer takes to be ready.
        """
        await who.awake()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def back(value: T | Exception) -> None:
            self.steps += 1
            if answer.done() or not self.reaches(who.name, to):
                return
            if isinstance(value, Exception):
                answer.set_exception(value)
            else:
                answer.set_result(value)

        def arrive(*, again: bool = False) -> None:
            self.steps += 1
            if not self.reaches(who.name, to):
                return
            try:
                value: T | Exception = act()
            except Exception as error:
                value = error
            if not again and not self.happens(self._unheard):
                loop.call_later(linger() + self.hop_s(), back, value)

        if not self.loses:
            loop.call_later(self.hop_s(), arrive)
            if self.happens(self._doubled):
                loop.call_later(self.hop_s() + self.hop_s(), lambda: arrive(again=True))
        deadline = loop.call_later(timeout_s, _give_up, answer)
        try:
            value = await answer
        finally:
            deadline.cancel()
            await who.awake()
        return value

    def tell(self, one: str, other: str, act: Callable[[], None]) -> None:
        """Send something that nobody answers: it may be lost, late, or come twice."""
        loop = asyncio.get_running_loop()

        def arrive() -> None:
            self.steps += 1
            if self.reaches(one, other):
                act()

        if not self.loses:
            loop.call_later(self.hop_s(), arrive)
            if self.happens(self._doubled):
                loop.call_later(self.hop_s(), arrive)


def _give_up(answer: asyncio.Future[T]) -> None:
    if not answer.done():
        answer.set_exception(NoAnswer("nothing came back in time"))


class Stored(Protocol):
    """What a follower is given: its place in the stream."""

    @property
    def sequence(self) -> int:
        """Return the place."""
        ...


S = TypeVar("S", bound=Stored)


class Follower(Generic[S]):
    """An ordered consumer: what is stored after a position, in order, none twice; made anew whenever one is missed.

    `look` returns the stream's identity, its last sequence, and what stands after a sequence. `reset` is asked where
    to go on when the stream is another one, or shorter.
    """

    def __init__(
        self,
        net: Net,
        who: Process,
        look: Callable[[int], tuple[str, int, Iterable[S]]],
        hear: Callable[[S], None],
        *,
        identity: str | None = None,
        position: int = 0,
    ) -> None:
        self.identity = identity
        self.position = position
        self._has_all = False
        self.who = who
        self._net, self._look, self._hear = net, look, hear
        self._broken = True
        self._closed = False
        self._life = 0
        self._sent = 0
        self._not_before_s = 0.0
        self._attach_after(net.hop_s())

    @property
    def open(self) -> bool:
        """Whether it delivers, or will again."""
        return not self._closed and self.who.alive

    @property
    def caught_up(self) -> bool:
        """Whether everything stored was delivered, as far as the last heartbeat tells."""
        return self._has_all and not self._closed and self._net.reaches(self.who.name) and not self.who.sleeps

    def close(self) -> None:
        """Deliver nothing more."""
        self._closed = True

    def news(self) -> None:
        """Be told that the stream has grown."""
        if self._closed or self._broken:
            return
        if not self._net.reaches(self.who.name):
            self.disturb()
            return
        _, _, items = self._look(self._sent)
        for item in items:
            self._sent = item.sequence
            self._has_all = False
            if self._net.loses:
                self.disturb()
                return
            self._push(item)

    def disturb(self) -> None:
        """Lose the connection: begin anew from the last position that was delivered."""
        if self._closed or self._broken:
            return
        self._broken, self._has_all = True, False
        self._attach_after(self._net.dice.uniform(*REATTACH_S))

    def _attach_after(self, wait_s: float) -> None:
        asyncio.get_running_loop().call_later(wait_s, self._attach)

    def _attach(self) -> None:
        if self._closed or not self.who.alive:
            return
        if not self._net.reaches(self.who.name) or self.who.sleeps:
            self._attach_after(self._net.dice.uniform(*REATTACH_S))
            return
        identity, last, _ = self._look(self.position)
        if self.identity not in (None, identity) or last < self.position:
            self.position = 0
        self.identity = identity
        self._broken = False
        self._life += 1
        self._sent = self.position
        self.news()
        if not self._broken and self._sent == self.position:
            self._has_all = True

    def _push(self, item: S) -> None:
        loop = asyncio.get_running_loop()
        # Later than the one before, however little: timers of one time fire in any order.
        self._not_before_s = max(self._not_before_s + ORDER_S, loop.time() + self._net.hop_s())
        loop.call_at(self._not_before_s, self._deliver, self._life, item)

    def _deliver(self, life: int, item: S) -> None:
        self._net.steps += 1
        if self._closed or self._broken or life != self._life or not self.who.alive:
            return
        if not self._net.reaches(self.who.name):
            self.disturb()
            return
        self.position = item.sequence
        self._has_all = self.position == self._sent
        self._hear(item)
