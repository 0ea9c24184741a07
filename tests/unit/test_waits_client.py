"""What commands wait for is waited for so long: a broker that takes what is said and answers nothing. Virtual time."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from runfold import archiving, client, health, left, restoring, run, stacks
from runfold.archiving import Archiver
from runfold.client import Client
from runfold.controller import wiring
from runfold.controller.ports import Unavailable
from runfold.errors import NoAnswerError, UnreachableError
from runfold.events.config import ScalingConfig
from runfold.events.entry import Head
from runfold.events.job import Job
from runfold.events.log import LogUnavailable
from runfold.events.nats.consume import Delivered
from runfold.events.nats.errors import Unanswered
from runfold.events.nats.log import JetStreamLog
from runfold.events.status import Status
from runfold.locate import Address
from support.runs import Run
from support.silent import NO_MESSAGE, SilentConnection, passed

JOB = Job(id="digits-1", entrypoint="examples.digits:train", scaling=ScalingConfig(num_workers=1))


def of(connection: SilentConnection) -> Client:
    return Client(connection, Address("nats://silent", "runfold", local=True))


def queue(c: SilentConnection) -> Coroutine[None, None, None]:
    return wiring.BrokerPorts(c, c, c, c).jobs.refuse(7, b"{}")


Story = Callable[[SilentConnection], Coroutine[None, None, object]]
ERRORS: dict[str, tuple[Story, type[Exception], str, float]] = {
    "a job": (lambda c: of(c).submit(JOB), UnreachableError, "the job was not acknowledged", client.PUBLISH_TIMEOUT_S),
    "a list": (lambda c: of(c).statuses(), NoAnswerError, "the broker did not list", client.LISTING_TIMEOUT_S),
    "a refusal": (queue, Unavailable, "no answer within 5 s", wiring.REFUSE_TIMEOUT_S),
}


@pytest.mark.parametrize("what", ERRORS)
def test_who_asks_is_told_after_the_limit_that_nothing_came(what: str) -> None:
    story, kind, words, limit_s = ERRORS[what]
    outcome, after_s = passed(story)
    assert isinstance(outcome, kind)
    assert words in str(outcome)
    assert after_s == pytest.approx(limit_s)


def test_a_job_that_is_not_acknowledged_may_be_stored_all_the_same() -> None:
    outcome, _ = passed(lambda c: of(c).submit(JOB))
    assert "It may be stored all the same; then it is run digits-1." in str(outcome)


def test_a_pool_that_is_not_heard_is_a_problem_with_its_advice() -> None:
    found, after_s = passed(lambda c: health._pools(of(c)))
    assert isinstance(found, health.Check)
    assert (found.verdict, found.found) == ("problem", "no supervisor was heard within 10 s")
    assert after_s == pytest.approx(health.POOL_BEAT_TIMEOUT_S)


def test_a_service_that_is_stopped_is_not_held_up_by_what_it_would_say(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    async def story(c: SilentConnection) -> None:
        @asynccontextmanager
        async def opened(_: Address) -> AsyncIterator[Client]:
            yield of(c)

        monkeypatch.setattr(left, "open_client", opened)
        await left.say_what_is_left(of(c).address, said.append)

    outcome, after_s = passed(story)
    assert (outcome, said) == (None, [])
    assert after_s == pytest.approx(left.ASKING_MAX_S)


def test_a_group_that_is_not_seen_to_go_is_waited_for_so_long() -> None:
    outcome, after_s = passed(lambda c: run._wait_gone(of(c), "digits-1"), {"STREAM.MSG.GET": NO_MESSAGE})
    assert outcome is None, "the run is over; what is left of its group ends with the service"
    assert run.GONE_TIMEOUT_S <= after_s <= run.GONE_TIMEOUT_S + run.GONE_POLL_S + 0.001


def test_a_log_that_takes_no_fence_is_not_restored() -> None:
    begun = Run()
    last = {"subject": "x", "seq": 1, "time": "2026-11-30T05:35:00Z", "data": b64encode(begun.bytes[-1]).decode()}
    outcome, after_s = passed(
        lambda c: restoring._fence(c, JetStreamLog(c, "digits-1")), {"STREAM.MSG.GET": {"message": last}}
    )
    assert isinstance(outcome, Unanswered), outcome
    assert after_s == pytest.approx(restoring.PUBLISH_TIMEOUT_S)


def test_of_ranks_whose_stacks_do_not_come_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def followed(*_: object) -> AsyncIterator[None]:
        yield

    async def accepted(*_: object) -> str:
        return "accepted"

    monkeypatch.setattr(stacks, "follow_run", followed)

    async def story(c: SilentConnection) -> object:
        asked = SimpleNamespace(connection=c, request=accepted)
        return await stacks._look(cast("Client", asked), "digits-1", "me")

    outcome, after_s = passed(story)
    assert outcome == []
    assert after_s == pytest.approx(stacks.ANSWER_TIMEOUT_S)


def test_an_archive_that_cannot_be_written_is_tried_again_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []
    tried: list[float] = []

    async def fails(*_: object) -> None:
        tried.append(asyncio.get_running_loop().time())
        raise LogUnavailable("not answered")

    async def story(c: SilentConnection) -> None:
        archiver = Archiver(of(c), tmp_path, said.append)
        monkeypatch.setattr(archiver, "_go_on", fails)
        status = Status(
            run="digits-1",
            state="running",
            since="2026-11-30T05:35:00Z",
            since_t=0.0,
            reason="",
            head=Head(n=3, hash=""),
            epoch=1,
            controller="ctl-0",
        )
        archiver._take(cast("Delivered", SimpleNamespace(data=msgspec.json.encode(status))))
        writing = asyncio.create_task(archiver._write())
        await asyncio.sleep(10 * archiving.RETRY_MAX_S)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)

    outcome, _ = passed(story)
    assert outcome is None
    pauses = [after - before for before, after in pairwise(tried)]
    assert pauses[:3] == pytest.approx([2.0, 4.0, 8.0])
    assert max(pauses) == pytest.approx(archiving.RETRY_MAX_S)
    assert said == ["digits-1 is archived later: not answered"], "once, and not each time"
