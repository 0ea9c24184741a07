"""Whole runs through the client on a service: what ranks do, and what the log and the status say of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from runfold.events.nats.publish import publish_acked
from runfold.events.requests import AbortRun
from runfold.follow import follow_run
from runfold.ids import new_request_id
from runfold.jobs import job_from
from runfold.replay.audit import audit
from runfold.replay.verify import verify
from runfold.sources import live_history
from support.clients import client_of
from support.commands import Commands
from support.scripts import TRAINING
from support.waiting import until, within

if TYPE_CHECKING:
    from runfold.events.state import RunState

RUN_TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def user(served: Commands) -> Commands:
    """A folder with training functions beside a shared service."""
    served.write("jobs.py", TRAINING)
    return served


async def run(user: Commands, function: str, *settings: str, workers: int = 2) -> RunState:
    """Run one function to its end; its log must be clean and decide the same again."""
    job = job_from(f"jobs.py:{function}", workers=workers, settings=settings, working_dir=str(user.folder))
    async with client_of(user) as client:
        await client.submit(job)
        async with follow_run(client, str(job.id)) as following:
            state = await within(RUN_TIMEOUT_S, following.wait_ended())
        history = await live_history(client, state.run)
    assert history is not None
    assert audit(history).findings == ()
    assert verify(history).outcome == "agrees"
    return state


def name(state: RunState) -> str:
    """The state's name."""
    return type(state.phase).__name__.lower()


async def test_collectives_reach_every_rank(user: Commands) -> None:
    state = await run(user, "collect", workers=3)
    assert name(state) == "finished"
    assert state.return_value == {"everyone": [0, 1, 2], "first": {"from": 0}}


async def test_every_report_is_folded_before_the_run_finishes(user: Commands) -> None:
    state = await run(user, "ok", "config.steps=500")
    assert state.reports == 1000
    assert state.metrics is not None
    assert state.metrics["step"] == 499


@pytest.mark.parametrize(
    ("function", "kind", "said"),
    [
        ("exits_zero", "exit", ""),
        ("exits_at_once", "exit", "3"),
        ("killed", "signal", "SIGKILL"),
        ("raises_unpicklable", "user", "still told"),
        ("raises_much", "user", "yyyy"),
    ],
)
async def test_every_bad_end_is_a_failure_of_its_kind(user: Commands, function: str, kind: str, said: str) -> None:
    state = await run(user, function)
    assert name(state) == "errored"
    assert state.failure is not None
    assert state.failure.kind == kind
    assert said in f"{state.failure.error.type}: {state.failure.error.message}"


async def test_a_failure_within_the_budget_starts_the_group_again_on_its_places(user: Commands) -> None:
    state = await run(user, "boom", "failure.max_failures=2", "config.times=2")
    assert name(state) == "finished"
    assert state.attempt == 3
    assert state.budgets["worker"].spent == 2


async def test_a_rank_that_prints_a_hundred_megabytes_harms_nothing(user: Commands) -> None:
    state = await run(user, "prints_much", workers=1)
    assert name(state) == "finished"
    kept = user.ok("logs", state.run).out
    assert "no longer kept" in kept or "faster than they are kept" in kept


async def test_runs_wait_for_room_and_say_so(user: Commands) -> None:
    """Four slots: of two runs with three ranks each one waits."""
    waiting = job_from("jobs.py:wait", workers=3, working_dir=str(user.folder))
    after = job_from("jobs.py:ok", workers=3, working_dir=str(user.folder))
    async with client_of(user) as client:
        await client.submit(waiting)
        async with follow_run(client, str(waiting.id)) as first:
            # Only now: which of two runs finds its places first is chance.
            await until(lambda: first.state is not None and name(first.state) == "running", RUN_TIMEOUT_S)
        await client.submit(after)
        async with follow_run(client, str(after.id)) as following:

            async def is_waiting() -> bool:
                status = await client.status(str(after.id))
                return status is not None and status.state == "scheduling" and bool(status.waiting)

            await until(is_waiting, RUN_TIMEOUT_S)
            await client.request(str(waiting.id), AbortRun(id=new_request_id(), reason="make room"))
            state = await within(RUN_TIMEOUT_S, following.wait_ended())
    assert name(state) == "finished"


async def test_a_group_that_can_never_be_placed_is_an_error_at_once(user: Commands) -> None:
    state = await run(user, "ok", "failure.controller_failure_limit=0", workers=9)
    assert name(state) == "errored"
    assert state.failure is not None
    assert state.failure.kind == "placement"


async def test_a_thousand_bad_jobs_in_a_row_harm_no_run(user: Commands) -> None:
    async with client_of(user) as client:
        for number in range(1000):
            await publish_acked(client.connection, client.names.subjects.jobs, b"bad %d" % number, timeout_s=30)
    assert name(await run(user, "ok")) == "finished"


async def test_a_job_over_the_limit_is_refused_by_the_server_and_harms_no_other(user: Commands) -> None:
    async with client_of(user) as client:
        answer = await publish_acked(client.connection, client.names.subjects.jobs, b"x" * 300_000, timeout_s=30)
        assert "message size" in getattr(answer, "description", "")
    assert name(await run(user, "ok")) == "finished"


async def test_a_message_of_a_stranger_about_no_run_changes_nothing(user: Commands) -> None:
    async with client_of(user) as client:
        before = {status.run for status in await client.statuses()}
        subject = client.names.subjects.request("no-such-run", "abort")
        request = json.dumps({"kind": "abort_run", "id": "x", "reason": "whatever"}).encode()
        await publish_acked(client.connection, subject, request, timeout_s=30)
    state = await run(user, "ok")
    async with client_of(user) as client:
        assert {status.run for status in await client.statuses()} == before | {state.run}
