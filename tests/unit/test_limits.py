"""Limits of what a controller shows and keeps: each is reached, said by its name, and nothing is lost by it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from runfold.events.config import FailureConfig, ScalingConfig
from runfold.events.fold import fold_all
from runfold.events.limits import (
    FOLDED_EVERY_S,
    REPLACED_BOOTS_MAX_COUNT,
    REQUEST_IDS_MAX,
    STARTUP_BACKOFF_MAX_S,
    STARTUP_BACKOFF_S,
    STATUS_EVERY_S,
    VALUE_DEPTH_MAX_COUNT,
    WORLD_SIZE_MAX,
)
from runfold.events.requests import AdmitNode
from runfold.events.values import Unencodable, pack
from support.hosting import Group, assignment, hosting, job, shown, status, taken
from support.memory_ports import MemoryWorld
from support.runs import Run
from support.virtual import run_virtual


def run(story: Coroutine[None, None, None]) -> None:
    run_virtual(story)


def test_an_assignment_that_is_too_large_quarantines_its_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            before = assignment(one)
            monkeypatch.setattr("runfold.controller.showing.ASSIGNMENT_MAX_BYTES", len(one.assignment.data or b"") + 20)
            one.inbox.publish("request.join", b'{"id": "p", "source": "pool-local", "boot": "p"}')
            marked = await shown(one, lambda now: now.quarantined is not None)
            assert (marked.quarantined or "").startswith("the assignment of entry 1: ")
            assert "more than assignment_max_bytes" in (marked.quarantined or "")
            assert assignment(one) == before
            monkeypatch.undo()
            other = await taken(world, job("digits-2"))
            await Group(other).trains()

    run(story())


def test_a_status_that_is_too_large_leaves_out_its_ranks_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            monkeypatch.setattr("runfold.controller.showing.STATUS_MAX_BYTES", len(one.status.data or b"") - 1)
            group.reports(1)
            now = await shown(one, lambda now: bool(now.warnings))
            assert (now.ranks, now.state) == ((), "running")
            assert "more than status_max_bytes" in now.warnings[0]
            monkeypatch.undo()
            await group.finishes()
        assert fold_all(one.log.entries).reports == 1
        assert status(one).warnings == ()

    run(story())


def test_what_is_shown_is_coalesced() -> None:
    """Many entries in a moment: neither a status nor a word of what is folded for each."""

    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            statuses, folded = len(one.happened.of("status")), len(one.happened.of("folded"))
            entries = len(one.log.entries)
            for _ in range(20):
                group.runner.number += 1
                one.inbox.publish("request.nonsense", b"{}")
                await asyncio.sleep(0)
            await asyncio.sleep(5 * FOLDED_EVERY_S)
            spent = len(one.log.entries) - entries
            assert spent >= 1
            assert len(one.happened.of("status")) - statuses <= min(spent, 5 * FOLDED_EVERY_S / STATUS_EVERY_S) + 1
            assert len(one.happened.of("folded")) - folded <= 6

    run(story())


def test_the_answers_to_requests_are_kept_up_to_a_number() -> None:
    one = Run(1).running()
    for k in range(REQUEST_IDS_MAX + 5):
        one.says(AdmitNode(id=f"request-{k}", node="local"))
    answered = [answer.id for answer in one.state.answered]
    assert answered == [f"request-{k}" for k in range(5, REQUEST_IDS_MAX + 5)]


def test_the_former_lives_of_a_source_are_known_up_to_a_number() -> None:
    one = Run(1)
    for k in range(REPLACED_BOOTS_MAX_COUNT + 3):
        one.join("local", boot=f"boot-{k}")
    source = one.state.sources["local"]
    assert source.boot == f"local-boot-{REPLACED_BOOTS_MAX_COUNT + 2}"
    assert len(source.replaced) == REPLACED_BOOTS_MAX_COUNT
    assert source.replaced[-1] == f"local-boot-{REPLACED_BOOTS_MAX_COUNT + 1}"


def test_a_world_is_no_larger_than_it_may_be() -> None:
    ScalingConfig(num_workers=WORLD_SIZE_MAX)
    with pytest.raises(ValueError, match=f"at most world_size_max \\({WORLD_SIZE_MAX}\\), not {WORLD_SIZE_MAX + 1}"):
        ScalingConfig(num_workers=WORLD_SIZE_MAX + 1)


def test_values_are_nested_no_deeper_than_they_may_be() -> None:
    def nested(levels: int) -> dict[str, object]:
        value: dict[str, object] = {}
        for _ in range(levels - 1):
            value = {"a": value}
        return value

    pack(nested(VALUE_DEPTH_MAX_COUNT))
    with pytest.raises(Unencodable, match=f"nested deeper than {VALUE_DEPTH_MAX_COUNT} levels"):
        pack(nested(VALUE_DEPTH_MAX_COUNT + 2))


def test_the_back_off_of_starts_doubles_up_to_a_limit() -> None:
    one = Run(1, failure=FailureConfig(controller_failure_limit=-1))
    waits: list[float] = []
    for _ in range(9):
        one.places()
        one.says(one.runner_lost())
        one.says(one.released())
        phase = one.state.phase
        waits.append(round(getattr(phase, "not_before_t", 0.0) - phase.since_t, 3))
        one.waits(STARTUP_BACKOFF_MAX_S + 1.0)
    assert waits[:3] == [STARTUP_BACKOFF_S, 2 * STARTUP_BACKOFF_S, 4 * STARTUP_BACKOFF_S]
    assert waits[-1] == STARTUP_BACKOFF_MAX_S
