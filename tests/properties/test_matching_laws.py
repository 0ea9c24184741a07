"""Whatever the order of arrivals, ends and timeouts: each call is answered once, and the same to all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from runfold.workers.link import Collect, Collected, CollectiveKind, Refused
from runfold.workers.matching import Matcher

if TYPE_CHECKING:
    from runfold.workers.matching import Outcome

KINDS: tuple[CollectiveKind, ...] = ("barrier", "broadcast_from_rank_zero", "all_gather")


class Play:
    """Ranks that call the collectives of their script, one at a time, each waiting for its answer."""

    def __init__(self, scripts: list[list[CollectiveKind]]) -> None:
        self.matcher = Matcher(len(scripts))
        self.scripts = scripts
        self.answers: list[list[Collected | Refused]] = [[] for _ in scripts]
        self.waits = [False] * len(scripts)
        self.left = [False] * len(scripts)
        self.now_s = 0.0

    def take(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            for rank in outcome.ranks:
                if not self.left[rank]:
                    assert self.waits[rank], "an answer to a rank that waits for none"
                    self.waits[rank] = False
                    assert outcome.answer.number == len(self.answers[rank]) + 1
                    self.answers[rank].append(outcome.answer)

    def step(self, rank: int, end: bool) -> None:
        self.now_s += 1.0
        self.take(self.matcher.expire(self.now_s))
        if self.left[rank]:
            return
        done = len(self.answers[rank])
        if end or (done == len(self.scripts[rank]) and not self.waits[rank]):
            self.left[rank] = True
            self.take(self.matcher.leave(rank, "has returned"))
        elif not self.waits[rank]:
            self.waits[rank] = True
            request = Collect(done + 1, self.scripts[rank][done], bytes([rank]), 5.0 if rank % 2 else None)
            self.take(self.matcher.arrive(rank, request, self.now_s))

    def settle(self) -> None:
        for _ in range(200):
            for rank in range(len(self.scripts)):
                self.step(rank, end=False)


@st.composite
def plays(draw: st.DrawFn, alike: bool) -> tuple[list[list[CollectiveKind]], list[tuple[int, bool]]]:
    size = draw(st.integers(1, 4))
    script = st.lists(st.sampled_from(KINDS), max_size=5)
    scripts = [draw(script)] * size if alike else [draw(script) for _ in range(size)]
    ends = st.just(False) if alike else st.sampled_from([False] * 9 + [True])
    return scripts, draw(st.lists(st.tuples(st.integers(0, size - 1), ends), max_size=60))


@given(plays(alike=False))
def test_everyone_who_waits_is_answered_and_nothing_is_kept(
    played: tuple[list[list[CollectiveKind]], list[tuple[int, bool]]],
) -> None:
    scripts, steps = played
    play = Play(scripts)
    for rank, end in steps:
        play.step(rank, end)
    play.settle()
    assert play.left == [True] * len(scripts)
    assert not any(wait for wait, left in zip(play.waits, play.left, strict=True) if not left)
    assert play.matcher._rounds == {}
    assert play.matcher.next_deadline_s() is None
    for number in range(5):
        given_answers = [answers[number] for answers in play.answers if len(answers) > number]
        assert all(answer == given_answers[0] for answer in given_answers)


@given(plays(alike=True))
def test_ranks_that_call_the_same_all_come_through(
    played: tuple[list[list[CollectiveKind]], list[tuple[int, bool]]],
) -> None:
    scripts, steps = played
    play = Play(scripts)
    # No rank is so slow here that another's five seconds pass.
    for rank, _ in steps:
        play.now_s -= 1.0
        play.step(rank, end=False)
    play.settle()
    for answers, script in zip(play.answers, scripts, strict=True):
        assert len(answers) == len(script)
        assert all(isinstance(answer, Collected) for answer in answers)
