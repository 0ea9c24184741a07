"""Asking for something while the broker goes away: it comes back, or has ended with its run and the archive answers."""

from __future__ import annotations

import pickle
from contextlib import aclosing
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace

from runfold import asking
from runfold.client import ENDED_ALREADY
from runfold.controller.status import status as status_of
from runfold.errors import NotAcceptedError, NotFoundError, UnreachableError
from runfold.events.nats.errors import BrokerAway, BrokerError, Unanswered
from runfold.events.requests import AbortRun
from support.runs import Run
from support.virtual import run_virtual

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from runfold.client import Client
    from runfold.events.status import Status
    from runfold.locate import Where

WHERE = cast("Where", SimpleNamespace(data_dir="data", stopped=False, was_killed=lambda _: False))
AWAY = "the service is running, but its broker does not answer"
REQUEST = AbortRun(id="mine", reason="enough")
GONE = Unanswered("status", "the connection was lost")


def test_a_broker_that_was_away_for_too_long_is_no_answer_with_words_of_its_own() -> None:
    away = pickle.loads(pickle.dumps(BrokerAway(AWAY)))
    assert isinstance(away, Unanswered)
    assert (str(away), away.args) == (AWAY, (AWAY,))
    assert str(GONE) == "the broker did not answer a message on status: the connection was lost"


def ended(*, asked: bool) -> Status:
    """The status of an aborted run, which had heard our request or another's."""
    one = Run(1).running()
    one.says(AbortRun(id="mine" if asked else "another", reason="enough"))
    one.says(one.released())
    assert one.state.terminal
    return status_of(one.state, one.head, "2026-01-01T00:00:00Z")


def ask(
    monkeypatch: pytest.MonkeyPatch, *answers: Callable[[], str], archived: Status | None = None
) -> tuple[str, int]:
    """Ask, each time of a client that answers so; then of none. Returns the answer and how often it was asked."""
    waiting = list(answers)

    async def request(_: str, request: AbortRun) -> str:
        assert request == REQUEST
        return waiting.pop(0)()

    async def each() -> AsyncGenerator[Client, None]:
        if waiting:
            yield cast("Client", SimpleNamespace(request=request))

    async def found(_: object, run: str) -> Status:
        if archived is None:
            raise NotFoundError(run)
        return archived

    monkeypatch.setattr(asking, "clients", lambda _: aclosing(each()))
    monkeypatch.setattr(asking, "known_status", found)
    answer = run_virtual(asking.ask(WHERE, "digits-1", REQUEST))
    return answer, len(answers) - len(waiting)


def gone() -> str:
    raise GONE


def test_a_broker_that_comes_back_is_asked_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, gone, gone, lambda: "accepted") == ("accepted", 3)


def test_of_a_broker_that_ended_with_its_run_the_archive_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, gone, archived=ended(asked=True))[0].startswith("accepted")
    assert ask(monkeypatch, gone, archived=ended(asked=False))[0] == ENDED_ALREADY


def test_a_refusal_is_one_in_the_archive_too(monkeypatch: pytest.MonkeyPatch) -> None:
    archived = ended(asked=True)
    refused = {**archived.requests, "mine": "refused: not now"}
    with pytest.raises(NotAcceptedError, match="not now"):
        ask(monkeypatch, gone, archived=replace(archived, requests=refused))


def test_a_broker_that_stays_away_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokerError, match="the connection was lost"):
        ask(monkeypatch, gone)


def test_a_run_nobody_knows_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFoundError):
        ask(monkeypatch)


def test_a_run_that_goes_on_by_its_archive_was_asked_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Run(1).running()
    with pytest.raises(UnreachableError, match="has not ended"):
        ask(monkeypatch, archived=status_of(one.state, one.head, "2026-01-01T00:00:00Z"))
