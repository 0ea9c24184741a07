"""One live run a storage path: the second is refused and told of the first; a run that is over leaves it free."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import msgspec
import pytest

from runfold.controller.territory import local_path, storage_key
from runfold.events.job import Job, encode_job, resolve_job
from runfold.events.refusal import JobRefused
from runfold.events.requests import AbortRun
from support.hosting import hosting, job, status, taken
from support.memory_ports import MemoryWorld
from support.virtual import run_virtual
from support.waiting import until


def run(story: Coroutine[None, None, None]) -> None:
    run_virtual(story)


def named(run_id: str, name: str = "digits", **more: object) -> Job:
    return msgspec.structs.replace(job(run_id), name=name, storage_path="s3://bucket/runs", **more)


def key(**fields: object) -> str | None:
    return storage_key(resolve_job(Job(id="run-1", entrypoint="a:b", **fields), 1))  # type: ignore[arg-type]  # each is a field


def test_a_second_live_run_is_refused_and_told_of_the_first() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            await taken(world, named("digits-1"))
            second = world.jobs.publish(encode_job(named("digits-2")))
            await until(lambda: world.jobs.termed == [second])
            record = msgspec.json.decode(world.jobs.refusals[second], type=JobRefused)
            assert record.path == "$.storage_path"
            assert "run 'digits-1' writes to s3://bucket/runs, directory digits, and is not over" in record.reason
            assert "digits-2" not in world.owners.values
            await taken(world, named("digits-3", name="other"))

    run(story())


def test_the_same_job_again_is_the_same_run() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            sequence = world.jobs.publish(encode_job(named("digits-1")), ack_lost=True)
            await until(lambda: world.of("digits-1").status.data is not None)
            world.jobs.publish(encode_job(named("digits-1")), again=sequence)
            await until(lambda: world.jobs.acked == [sequence])

    run(story())


def test_a_path_is_free_when_its_run_is_over() -> None:
    async def story() -> None:
        world = MemoryWorld()
        where = str(storage_key(resolve_job(named("digits-1"), 1)))
        async with hosting(world):
            one = await taken(world, named("digits-1"))
            assert world.owners.values[where] == "digits-1"
            one.inbox.publish("request.abort", msgspec.json.encode(AbortRun(id="a1", reason="enough")))
            await until(lambda: not world.owners.values)
            await taken(world, named("digits-2"))
            assert world.owners.values[where] == "digits-2"

    run(story())


@pytest.mark.parametrize("shown", [True, False])
def test_a_job_that_comes_while_the_run_before_lets_go_is_not_refused(shown: bool) -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, named("digits-1"))
            before = one.status.data
            one.inbox.publish("request.abort", msgspec.json.encode(AbortRun(id="a1", reason="enough")))
            await until(lambda: status(one).terminal and not world.owners.values)
            if not shown:
                # The log is first, and whoever follows it may ask for the next run before the status says so.
                one.status.data = before
                assert not status(one).terminal
            held = {"digits-1": "ctl-0", str(storage_key(resolve_job(named("digits-1"), 1))): "digits-1"}
            world.owners.values.update(held)

            def let_go() -> None:
                for held_key in held:
                    del world.owners.values[held_key]

            asyncio.get_running_loop().call_later(0.25, let_go)
            await taken(world, named("digits-2"))

    run(story())


def test_a_path_that_an_ended_run_did_not_come_to_free_is_taken_over() -> None:
    async def story() -> None:
        world = MemoryWorld()
        where = str(storage_key(resolve_job(named("digits-1"), 1)))
        world.owners.values[where] = "digits-0"
        async with hosting(world):
            await taken(world, named("digits-1"))
            assert world.owners.values[where] == "digits-1"

    run(story())


def test_a_run_that_nobody_named_is_not_resumed_while_it_is_live() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job("digits-1"))
            again = msgspec.structs.replace(job("digits-2"), storage_name="digits-1")
            refused = world.jobs.publish(encode_job(again))
            await until(lambda: world.jobs.termed == [refused])
            assert "run 'digits-1' writes to" in msgspec.json.decode(world.jobs.refusals[refused])["reason"]
            one.inbox.publish("request.abort", msgspec.json.encode(AbortRun(id="a1", reason="enough")))
            await until(lambda: not world.owners.values)
            await taken(world, msgspec.structs.replace(again, id="digits-3"))

    run(story())


def test_only_what_others_could_reach_has_a_key() -> None:
    assert key() is None
    assert key(name="digits") is not None
    assert key(storage_path="s3://b") is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"storage_path": "s3://b/runs/"}, {"storage_path": "s3://b/runs"}),
        ({"storage_path": "file:///data/runs"}, {"storage_path": "/data/./runs"}),
        ({"storage_path": "runs", "working_dir": "/data"}, {"storage_path": "/data/runs"}),
    ],
)
def test_one_place_has_one_key(one: dict[str, str], other: dict[str, str]) -> None:
    assert key(name="n", **one) == key(name="n", **other)


def test_other_places_have_other_keys() -> None:
    given = "blob:sha256:" + "0" * 64
    places = [
        key(name="n"),
        key(name="m"),
        key(name="n", pool="other"),
        key(name="n", storage_path="s3://b"),
        key(name="n", storage_path="s3://c"),
        key(name="n", storage_path="s3://b", storage_filesystem=given),
    ]
    assert len(set(places)) == len(places)


def test_reserving_beside_a_rival_ends() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            jobs = [world.jobs.publish(encode_job(named(f"digits-{number}"))) for number in range(4)]
            await until(lambda: len(world.jobs.termed) + len(world.jobs.acked) == len(jobs))
            assert len(world.jobs.acked) == 1
            await asyncio.sleep(0)

    run(story())


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"storage_path": "/data/runs", "storage_name": "digits"}, "/data/runs/digits"),
        ({"storage_path": "file:///data/runs", "storage_name": "digits"}, "/data/runs/digits"),
        ({"storage_path": "runs", "working_dir": "/srv/me", "storage_name": "digits"}, "/srv/me/runs/digits"),
        ({"storage_path": "runs", "storage_name": "digits"}, None),
        ({"storage_path": "s3://bucket/runs", "storage_name": "digits"}, None),
        ({"storage_name": "digits"}, None),
    ],
)
def test_links_are_followed_in_what_is_a_directory_of_this_machine(fields: dict[str, object], path: str | None) -> None:
    assert local_path(resolve_job(Job(id="run-1", entrypoint="a:b", **fields), 1)) == path  # type: ignore[arg-type]  # each is a field


def test_one_directory_is_one_by_whatever_name() -> None:
    linked = Job(id="run-1", entrypoint="a:b", storage_path="/linked", storage_name="other")
    named = key(storage_path="/data/runs", storage_name="digits")
    assert storage_key(resolve_job(linked, 1), "/data/runs/digits") == named
    assert storage_key(resolve_job(linked, 1), "/linked/other") != named
