"""How long `submit` waits to hear that its job was taken or refused. Virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from runfold.cli import submit
from runfold.client import Client, Receipt
from runfold.errors import JobRefusedError
from support.virtual import run_virtual

RECEIPT = Receipt("digits-1", "sha256:1", 7, repeated=False)


def waited(monkeypatch: pytest.MonkeyPatch, *, taken_s: float = 1e9, refused_s: float = 1e9) -> float:
    """Return how long an answer was waited for, of a controller that takes or refuses the job after a time."""
    following = SimpleNamespace(state=None)

    @asynccontextmanager
    async def followed(*_: object, **__: object) -> AsyncIterator[SimpleNamespace]:
        yield following

    async def refused(*_: object) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s >= refused_s:
            raise JobRefusedError("another job has this id")
        if now_s >= taken_s:
            following.state = "accepted"

    monkeypatch.setattr(submit, "follow_run", followed)
    monkeypatch.setattr(submit, "raise_refused", refused)

    async def story() -> float:
        await submit._answered(cast("Client", None), RECEIPT, submit.ANSWER_TIMEOUT_S)
        return asyncio.get_running_loop().time()

    return run_virtual(story())


def test_a_job_that_nobody_takes_is_waited_for_so_long_and_stored_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waited(monkeypatch) == pytest.approx(submit.ANSWER_TIMEOUT_S, abs=2 * submit.ANSWER_POLL_S)


def test_a_controller_that_is_slow_is_waited_for_no_longer_than_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waited(monkeypatch, taken_s=5.0) == pytest.approx(5.0, abs=2 * submit.ANSWER_POLL_S)


def test_a_refusal_that_comes_late_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobRefusedError, match="another job has this id"):
        waited(monkeypatch, refused_s=5.0)
