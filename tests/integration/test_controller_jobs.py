"""Published jobs over a real broker: each becomes one run or one clear refusal, and harms no other."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from runfold.events.conclusions import ControllerStarted, JobTaken
from runfold.events.config import ScalingConfig
from runfold.events.job import Job, encode_job, job_digest
from runfold.events.limits import JOB_MAX_BYTES, REFUSAL_EXCERPT_MAX_BYTES
from runfold.events.nats.api import Api
from runfold.events.nats.cells import owner_cells
from runfold.events.nats.layout import HEADERS_MAX_BYTES
from runfold.events.nats.names import Role
from runfold.events.nats.publish import Rejected, publish_acked
from runfold.events.transitions import ControllerChanged, RunAccepted
from support.broker import BrokerForTest
from support.controller import Observer, controller
from support.waiting import until


@pytest_asyncio.fixture
async def observer(broker: BrokerForTest) -> AsyncIterator[Observer]:
    """A client beside a running controller."""
    async with controller(broker, peer_variables=("RAY_TRAIN_V2_ENABLED",)):
        yield Observer(await broker.connect(Role.CLIENT))


def job(run: str | None = "digits-1", **fields: object) -> Job:
    return Job(id=run, entrypoint="examples.digits:train", **fields)  # type: ignore[arg-type]  # fields of a job


async def lives(observer: Observer, run: str) -> None:
    """A good job becomes a run: nobody was harmed."""
    await observer.submit(job(run))
    assert (await observer.status(run)).state == "scheduling"


async def test_a_job_becomes_entry_0_and_leaves_the_queue(observer: Observer, broker: BrokerForTest) -> None:
    asked = job(scaling=ScalingConfig(num_workers=2))
    sequence = await observer.submit(asked)
    await observer.queue_is_empty()
    (entry,) = await observer.entries("digits-1")
    taken, started = entry.inputs
    assert isinstance(taken, JobTaken)
    assert isinstance(started, ControllerStarted)
    accepted, changed = entry.transitions[:2]
    assert isinstance(accepted, RunAccepted)
    assert isinstance(changed, ControllerChanged)
    assert (entry.n, entry.t, entry.epoch, entry.by) == (0, 0.0, 1, "ctl-0")
    assert (accepted.digest, accepted.jobs_sequence) == (job_digest(asked), sequence)
    assert accepted.job.name == "train"
    shown = await observer.assignment("digits-1")
    assert (shown.want, shown.n, shown.num_workers) == ("place", 0, 2)
    owner = await owner_cells(await broker.connect(Role.CONTROLLER)).get("digits-1")
    assert owner is not None
    assert owner.data == b"ctl-0"


async def test_a_job_without_an_id_is_named_by_its_sequence(observer: Observer) -> None:
    sequence = await observer.submit(b'{"entrypoint": "examples.digits:train"}')
    status = await observer.status(f"job-{sequence}")
    assert (status.state, status.name) == ("scheduling", "train")


async def test_variables_of_the_peer_are_warned_of(observer: Observer) -> None:
    await observer.submit(job(env={"RAY_TRAIN_ENABLE_STATE_TRACKING": "1", "OTHER": "1"}))
    warnings = (await observer.status("digits-1")).warnings
    assert len(warnings) == 2
    assert warnings[0].startswith("RAY_TRAIN_ENABLE_STATE_TRACKING is set in the job's env")
    assert warnings[1].startswith("RAY_TRAIN_V2_ENABLED is set in the service's environment")


@pytest.mark.parametrize(
    ("data", "path", "reason"),
    [
        (b"", "$", "not JSON"),
        (b"not json", "$", "not JSON"),
        (b"\xff\xfe\x00", "$", "not JSON"),
        (b"[1, 2]", "$", "must be a table"),
        (b"{}", "$", "entrypoint"),
        (b'{"entrypoint": 7}', "$.entrypoint", "must be text"),
        (b'{"entrypoint": "train"}', "$.entrypoint", "none of module:function"),
        (b'{"entrypoint": "a:b", "colour": "red"}', "$.colour", "unknown field"),
        (b'{"entrypoint": "a:b", "scaling": {"numworkers": 2}}', "$.scaling.numworkers", "unknown field"),
        (b'{"entrypoint": "a:b", "scaling": {"num_workers": 0}}', "$.scaling.num_workers", "at least 1"),
        (b'{"entrypoint": "a:b", "scaling": {"num_workers": -1}}', "$.scaling.num_workers", "at least 0"),
        (b'{"entrypoint": "a:b", "scaling": {"num_workers": 1000000000}}', "$.scaling.num_workers", "world_size_max"),
        (b'{"entrypoint": "a:b", "id": "job-7"}', "$.id", "given by runfold"),
        (b'{"entrypoint": "a:b", "id": "UPPER/..>"}', "$.id", "no run id"),
        (b'{"entrypoint": "a:b", "v": 2}', "$.v", "2"),
        (b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b"}", "$", ""),
    ],
)
async def test_a_bad_job_is_refused_by_path_and_reason(observer: Observer, data: bytes, path: str, reason: str) -> None:
    sequence = await observer.submit(data)
    record = await observer.refusal(sequence)
    assert (record.sequence, record.path) == (sequence, path)
    assert reason in record.reason
    assert record.sha256 == hashlib.sha256(data).hexdigest()
    assert (record.size_bytes, record.by) == (len(data), "ctl-0")
    assert len(record.excerpt) <= REFUSAL_EXCERPT_MAX_BYTES * 4
    await observer.queue_is_empty()
    await lives(observer, "after-it")


async def test_a_job_that_is_far_too_large_is_refused_by_the_server(observer: Observer) -> None:
    data = b'{"entrypoint": "a:b", "name": "' + b"x" * (JOB_MAX_BYTES + HEADERS_MAX_BYTES) + b'"}'
    answer = await publish_acked(observer.connection, observer.names.subjects.jobs, data, timeout_s=30)
    assert isinstance(answer, Rejected)
    await lives(observer, "after-it")


async def test_a_job_just_too_large_is_refused_by_the_controller(observer: Observer) -> None:
    sequence = await observer.submit(b'{"entrypoint": "a:b", "name": "' + b"x" * JOB_MAX_BYTES + b'"}')
    assert "job_max_bytes" in (await observer.refusal(sequence)).reason
    await lives(observer, "after-it")


async def test_the_same_id_with_the_same_content_is_the_same_run(observer: Observer) -> None:
    await observer.submit(job())
    await observer.submit(job())
    await observer.queue_is_empty()
    assert len(await observer.entries("digits-1")) == 1


async def test_the_same_id_with_other_content_is_refused_and_the_run_unharmed(observer: Observer) -> None:
    await observer.submit(job())
    before = await observer.status("digits-1")
    sequence = await observer.submit(job(config={"lr": 0.2}))
    record = await observer.refusal(sequence)
    assert (record.run, record.path) == ("digits-1", "$.id")
    assert "exists already" in record.reason
    await observer.queue_is_empty()
    assert await observer.status("digits-1") == before


async def test_a_thousand_bad_messages_in_a_row(observer: Observer) -> None:
    first = await observer.submit(b"{")
    for k in range(1, 1000):
        await observer.submit(b'{"bad": ' + str(k).encode() + b"}" if k % 2 else b"\x00\xff")
    await lives(observer, "after-them")
    assert (await observer.refusal(first + 999)).path == "$.bad"
    await observer.queue_is_empty()
    api = Api(observer.connection)

    async def all_kept() -> bool:
        info = await api.stream_info(observer.names.refusals)
        return info is not None and info.state.messages == 1000

    await until(all_kept)


async def test_jobs_published_while_no_controller_runs_wait_for_one(broker: BrokerForTest) -> None:
    observer = Observer(await broker.connect(Role.CLIENT))
    for k in range(3):
        await observer.submit(job(f"run-{k}"))
    async with controller(broker):
        for k in range(3):
            assert (await observer.status(f"run-{k}")).state == "scheduling"
        await observer.queue_is_empty()


async def test_a_claimed_run_without_an_entry_is_begun_by_its_job(broker: BrokerForTest) -> None:
    """The controller died between the OWNERS key and entry 0: the job, never acknowledged, comes again."""
    owners = owner_cells(await broker.connect(Role.CONTROLLER))
    await owners.put("digits-1", b"ctl-0", expected=0)
    observer = Observer(await broker.connect(Role.CLIENT))
    async with controller(broker):
        await observer.submit(job())
        assert (await observer.status("digits-1")).state == "scheduling"
        assert len(await observer.entries("digits-1")) == 1


async def test_a_job_whose_acknowledgement_was_lost_is_the_same_run(broker: BrokerForTest) -> None:
    """The controller died between entry 0 and the acknowledgement: the job comes again, to a run that exists."""
    observer = Observer(await broker.connect(Role.CLIENT))
    async with controller(broker):
        sequence = await observer.submit(job(None))
        await observer.status(f"job-{sequence}")
        await observer.queue_is_empty()
    # The same message again, as the queue would give it out: the digest says that it is the same.
    again = encode_job(job(None))
    async with controller(broker):
        other = await observer.submit(again)
        await observer.status(f"job-{other}")
        await observer.status(f"job-{sequence}", lambda status: status.epoch == 2)
        assert [entry.epoch for entry in await observer.entries(f"job-{sequence}")] == [1, 2]
