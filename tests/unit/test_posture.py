"""What a rank says of its own standstill: collectives it has entered, pauses it has asked for."""

from __future__ import annotations

import threading

import pytest

from runfold.workers import pausing
from runfold.workers.errors import NotInTrainingFunctionError
from runfold.workers.link import Collect, Collected, FromRank, FromRunner, Paused, Refused, Report, Wish
from runfold.workers.pausing import paused_progress
from runfold.workers.posture import Posture


def collect(number: int) -> Collect:
    return Collect(number, "barrier", None, None)


def test_a_rank_waits_in_a_collective_until_that_one_is_answered() -> None:
    posture = Posture()
    told: list[str | None] = [posture.waits_in]

    def after(message: FromRunner) -> str | None:
        posture.told(message)
        return posture.waits_in

    posture.said(collect(3))
    told += [posture.waits_in, after(Collected(2, [])), after(Wish("w")), after(Collected(3, []))]
    assert told == [None, "barrier #3", "barrier #3", "barrier #3", None]
    assert after(Collected(3, [])) is None
    posture.said(collect(4))
    assert after(Refused(4, "barrier", "peer", "gone")) is None


def test_a_rank_that_reports_waits_no_more() -> None:
    posture = Posture()
    posture.said(collect(1))
    posture.said(Report(0, 0.0, None, {}))
    assert posture.waits_in is None


def test_pauses_are_heard() -> None:
    posture, heard = Posture(), list[bool]()
    for paused in (True, False):
        posture.said(Paused(paused))
        heard.append(posture.paused)
    assert heard == [True, False]


class FakeLink:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[FromRank] = []

    def send(self, message: FromRank, limit_bytes: int = 0) -> None:
        self.sent.append(message)


@pytest.fixture
def link() -> FakeLink:
    made = FakeLink()
    pausing.attach(made)
    return made


def test_a_pause_is_told_at_its_beginning_and_its_end(link: FakeLink) -> None:
    with paused_progress():
        assert link.sent == [Paused(True)]
        with paused_progress():
            pass
        assert link.sent == [Paused(True)]
    assert link.sent == [Paused(True), Paused(False)]


def test_the_clock_goes_on_once_every_thread_is_done_and_after_an_error_too(link: FakeLink) -> None:
    inside, leave = threading.Event(), threading.Event()

    def evaluate() -> None:
        with paused_progress():
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=evaluate)
    thread.start()
    inside.wait(30)
    with pytest.raises(RuntimeError), paused_progress():
        raise RuntimeError("boom")
    assert link.sent == [Paused(True)]
    leave.set()
    thread.join()
    assert link.sent == [Paused(True), Paused(False)]


def test_outside_of_a_training_function_there_is_nothing_to_pause() -> None:
    pausing.attach(None)
    with pytest.raises(NotInTrainingFunctionError, match="paused_progress"), paused_progress():
        pass
