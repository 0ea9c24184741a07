"""A state does not grow with its log: what it remembers has limits, each reached, the newest kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from runfold.events.base import Cause, Json, Moment
from runfold.events.checkpoints import Checkpoints
from runfold.events.evolve import evolve
from runfold.events.gathering import left
from runfold.events.hooks import followed
from runfold.events.limits import (
    CHECKPOINTS_GATHERING_MAX_COUNT,
    CHECKPOINTS_LEFT_MAX_COUNT,
    HOOKS_DUE_MAX_COUNT,
    MARKS_MAX_COUNT,
    WARNINGS_MAX_COUNT,
)
from runfold.events.nats import blobs
from runfold.events.nats.blobs import Blobs
from runfold.events.nats.names import Role
from runfold.events.tasks import DELETE
from runfold.events.transitions import GroupLaidOut, Warned
from support.runs import Run

if TYPE_CHECKING:
    from support.broker import BrokerForTest

BEYOND = 5


def listed(value: Json) -> list[str]:
    assert isinstance(value, list)
    return [str(name) for name in value]


def test_checkpoints_that_wait_for_ranks_are_so_many_and_the_oldest_are_given_up() -> None:
    run = Run(2).running()
    for index in range(CHECKPOINTS_GATHERING_MAX_COUNT + BEYOND):
        run.says(run.shard(0, index))
    found = run.state.checkpoints
    assert [one.at for one in found.gathering] == list(range(BEYOND, CHECKPOINTS_GATHERING_MAX_COUNT + BEYOND))
    ordered = [one.task for one in run.state.tasks if one.task.kind == DELETE]
    given_up = {*found.leftovers, *(name for task in ordered for name in listed(task.arguments["names"]))}
    assert given_up <= {f"checkpoint_{index:06d}_1" for index in range(BEYOND)}
    assert given_up, "to be deleted"


def test_directories_that_will_never_be_whole_are_remembered_up_to_a_number() -> None:
    names = [f"checkpoint_{index:06d}_1" for index in range(CHECKPOINTS_LEFT_MAX_COUNT + BEYOND)]
    assert left(Checkpoints(), names).leftovers == tuple(names[:CHECKPOINTS_LEFT_MAX_COUNT])


def test_reports_are_marked_up_to_a_number() -> None:
    run = Run(1).running()
    for index in range(MARKS_MAX_COUNT + BEYOND):
        run.says(replace(run.reported(0, index), cursor=f"place {index}"))
    marks = [mark.at for mark in run.state.checkpoints.marks]
    assert marks == list(range(BEYOND, MARKS_MAX_COUNT + BEYOND))


def test_warnings_are_kept_up_to_a_number() -> None:
    state = Run(1).state
    for k in range(WARNINGS_MAX_COUNT + BEYOND):
        warned = Warned(cause=Cause(input=0), reason=f"warning {k}", about="")
        state = evolve(state, warned, Moment(n=9 + k, t=9.0))
    assert state.warnings == tuple(f"warning {k}" for k in range(BEYOND, WARNINGS_MAX_COUNT + BEYOND))


def test_questions_that_nobody_waits_for_are_due_up_to_a_number() -> None:
    run = Run(1, gates={"after_worker_group_start": "warn"})
    laid_out = GroupLaidOut(attempt=1, layout=(), addr="127.0.0.1", port=1, cause=Cause(input=0), reason="r")
    state = run.state
    for _ in range(HOOKS_DUE_MAX_COUNT + BEYOND):
        state = followed(state, laid_out, state, 9)
    assert len(state.hooks.due) == HOOKS_DUE_MAX_COUNT


async def test_a_blob_that_is_too_large_is_the_callers_error(
    broker: BrokerForTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "BLOB_MAX_BYTES", 1000)
    store = Blobs(await broker.connect(Role.CLIENT))
    assert await store.get(await store.put(b"x" * 1000)) == b"x" * 1000
    with pytest.raises(ValueError, match="a blob of 1001 bytes cannot be stored: the limit is 1000 bytes"):
        await store.put(b"x" * 1001)
