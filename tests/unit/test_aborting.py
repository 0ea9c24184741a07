"""An interrupt of a run that is waited for: its abort is asked for, and nobody waits for it without end."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from runfold.aborting import Abort, abort_when_asked, ending_max_s
from runfold.errors import NoAnswerError, NotAcceptedError, NotFoundError, RunAbortedError
from runfold.events.config import Timeouts
from runfold.events.limits import REQUEST_TIMEOUT_S
from runfold.events.nats.errors import Unanswered
from runfold.events.nats.names import Names
from runfold.interrupts import Interrupts
from support.virtual import run_virtual

if TYPE_CHECKING:
    from runfold.client import Client
    from runfold.events.requests import AbortRun

TIMEOUTS = Timeouts()


def interrupted(
    *answers: Exception | None, own: bool = True, again_after_s: float | None = None
) -> tuple[str, float, list[float]]:
    """Interrupt once (or again after a while) while the run goes on.

    Answers go one each, the last to all that follow. Returns how it was given up, when, and the times of requests.
    """
    asked: list[float] = []

    async def request(run: str, request: AbortRun, timeout_s: float) -> str:
        assert (run, request.reason) == ("digits", "interrupted (SIGTERM)")
        asked.append(asyncio.get_running_loop().time())
        answer = answers[min(len(asked), len(answers)) - 1]
        if isinstance(answer, NoAnswerError):
            await asyncio.sleep(timeout_s)
        if answer is not None:
            raise answer
        return "accepted"

    async def stream_info(stream: str) -> None:
        raise Unanswered(stream, "nobody there")

    async def story() -> tuple[str, float]:
        client = SimpleNamespace(request=request, api=SimpleNamespace(stream_info=stream_info), names=Names())
        caught = Interrupts()
        caught.came(signal.SIGTERM)
        if again_after_s is not None:
            asyncio.get_running_loop().call_later(again_after_s, caught.came, signal.SIGTERM)
        abort = Abort(cast("Client", client), "digits", "me", TIMEOUTS, lambda _: None, own=own)
        with pytest.raises(RunAbortedError) as raised:
            await abort_when_asked(abort, caught)
        return str(raised.value), asyncio.get_running_loop().time()

    told, at_s = run_virtual(story())
    return told, at_s, asked


def test_nobody_answers() -> None:
    told, at_s, _ = interrupted(NoAnswerError("no controller answered\nIt stands"))
    assert told == "digits was stopped at once, without waiting for its orderly end: no controller answered"
    assert at_s == REQUEST_TIMEOUT_S


def test_a_run_that_does_not_exist_yet_and_a_broker_that_is_away_are_asked_again() -> None:
    gone = Unanswered("status", "the connection was lost")
    _, at_s, asked = interrupted(NotFoundError("not yet"), gone, None)
    assert len(asked) == 3
    assert at_s == asked[-1] + ending_max_s(TIMEOUTS)
    told, at_s, _ = interrupted(NotFoundError("not yet"))
    assert "no controller took the job within 10 s" in told
    assert at_s == pytest.approx(REQUEST_TIMEOUT_S, abs=1.0)
    told, at_s, _ = interrupted(gone)
    assert "the connection was lost" in told
    assert at_s == pytest.approx(REQUEST_TIMEOUT_S, abs=1.0)


def test_an_accepted_abort_has_the_deadlines_of_the_run() -> None:
    told, at_s, asked = interrupted(None)
    assert (at_s, asked) == (ending_max_s(TIMEOUTS), [0.0])
    assert f"it did not end within {ending_max_s(TIMEOUTS):g} s of its abort" in told
    assert interrupted(NotAcceptedError("it ends already"))[1] == ending_max_s(TIMEOUTS)


def test_a_second_interrupt_ends_the_wait_at_once() -> None:
    told, at_s, _ = interrupted(NoAnswerError("none"), again_after_s=0.5)
    assert (at_s, "a second interrupt came" in told) == (0.5, True)
    assert interrupted(None, again_after_s=2.5)[1] == 2.5


def test_of_a_service_s_run_it_is_said_that_it_goes_on() -> None:
    told, _, _ = interrupted(NoAnswerError("none"), own=False)
    assert told.startswith("digits is not waited for any longer: none\nThe service goes on with it")
