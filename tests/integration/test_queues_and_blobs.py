"""Jobs, blobs and output on a real broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import nats
import pytest

from runfold.events import limits
from runfold.events.nats.blobs import CHUNK_MAX_BYTES, Blobs, blob_digest
from runfold.events.nats.errors import BlobDamaged, BlobMissing
from runfold.events.nats.jobs import JobMessage, Jobs
from runfold.events.nats.layout import OUTPUT_BATCHES_KEPT_MAX
from runfold.events.nats.names import Role
from runfold.events.nats.output import OutputBatch, follow_output, publish_output, read_output
from runfold.events.nats.publish import Acked, Rejected, publish_acked
from support.broker import ANSWER_TIMEOUT_S
from support.waiting import until

if TYPE_CHECKING:
    from support.broker import BrokerForTest


async def take(jobs: Jobs) -> JobMessage:
    """Wait for the next job."""
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        while True:
            job = await jobs.next()
            if job is not None:
                return job


async def test_each_job_is_taken_once_in_order(bare_broker: BrokerForTest, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = bare_broker
    # None is handed out again meanwhile, however long this takes.
    monkeypatch.setattr(limits, "JOBS_ACK_WAIT_S", 600.0)
    await broker.provision()
    client = await broker.connect(Role.CLIENT)
    subject = broker.names.subjects.jobs
    for text in (b"one", b"two", b"three"):
        assert isinstance(await publish_acked(client, subject, text, timeout_s=ANSWER_TIMEOUT_S), Acked)
    controllers = [Jobs(await broker.connect(Role.CONTROLLER)) for _ in range(2)]
    first, second = await take(controllers[0]), await take(controllers[1])
    assert [(job.data, job.sequence, job.deliveries) for job in (first, second)] == [(b"one", 1, 1), (b"two", 2, 1)]
    await controllers[0].ack(first)
    await controllers[1].term(second)
    third = await take(controllers[0])
    assert third.data == b"three"
    await controllers[0].ack(third)
    assert await controllers[0].next() is None
    info = await (await broker.api()).stream_info(broker.names.jobs)
    assert info is not None
    assert info.state.messages == 0


async def test_a_job_taken_by_a_controller_that_died_is_handed_out_again(broker: BrokerForTest) -> None:
    client = await broker.connect(Role.CLIENT)
    await publish_acked(client, broker.names.subjects.jobs, b"one", timeout_s=ANSWER_TIMEOUT_S)
    dead = await broker.connect(Role.CONTROLLER)
    await take(Jobs(dead))
    await dead.close()
    again = await take(Jobs(await broker.connect(Role.CONTROLLER)))
    assert (again.data, again.deliveries) == (b"one", 2)


@pytest.mark.parametrize("size", [0, 1, CHUNK_MAX_BYTES, 3 * CHUNK_MAX_BYTES + 17])
async def test_a_blob_comes_back_by_its_digest(broker: BrokerForTest, size: int) -> None:
    client = Blobs(await broker.connect(Role.CLIENT))
    data = bytes(index % 251 for index in range(size))
    digest = await client.put(data)
    assert digest == blob_digest(data)
    worker = Blobs(await broker.connect(Role.WORKER))
    assert await worker.get(digest) == data


async def test_a_blob_is_stored_once(broker: BrokerForTest) -> None:
    blobs = Blobs(await broker.connect(Role.CLIENT))
    api = await broker.api()
    await blobs.put(b"data")
    before = await api.stream_info(broker.names.blobs)
    await blobs.put(b"data")
    after = await api.stream_info(broker.names.blobs)
    assert before is not None
    assert after is not None
    assert before.state == after.state


async def test_missing_and_damaged_blobs_are_said(broker: BrokerForTest) -> None:
    admin = await broker.connect(Role.ADMIN)
    blobs = Blobs(admin)
    with pytest.raises(BlobMissing):
        await blobs.get(blob_digest(b"never"))
    digest = await blobs.put(b"data")
    await admin.request(
        f"$JS.API.STREAM.PURGE.{broker.names.blobs}",
        b'{"filter": "$O.%s.C.>"}' % broker.names.blobs_bucket.encode(),
        timeout_s=ANSWER_TIMEOUT_S,
    )
    with pytest.raises(BlobDamaged):
        await blobs.get(digest)


async def test_other_clients_of_the_object_store_read_blobs(broker: BrokerForTest) -> None:
    data = b"x" * (2 * CHUNK_MAX_BYTES + 5)
    digest = await Blobs(await broker.connect(Role.CLIENT)).put(data)
    plain = await nats.connect(broker.running.url(Role.ADMIN), connect_timeout=int(ANSWER_TIMEOUT_S))
    try:
        store = await plain.jetstream(timeout=ANSWER_TIMEOUT_S).object_store(broker.names.blobs_bucket)
        assert (await store.get(digest)).data == data
    finally:
        await plain.close()


async def test_output_is_kept_per_attempt_and_rank(broker: BrokerForTest) -> None:
    worker, client = await broker.connect(Role.WORKER), await broker.connect(Role.CLIENT)
    for attempt, rank, text in ((1, 0, b"a"), (1, 1, b"b"), (2, 0, b"c")):
        await publish_output(worker, "r", attempt, rank, text)
    await publish_output(worker, "other", 1, 0, b"foreign")
    batches = [batch async for batch in read_output(client, "r")]
    assert [(batch.attempt, batch.rank, batch.data) for batch in batches] == [(1, 0, b"a"), (1, 1, b"b"), (2, 0, b"c")]
    assert [batch.data async for batch in read_output(client, "r", rank=0)] == [b"a", b"c"]
    assert [batch.data async for batch in read_output(client, "r", attempt=1)] == [b"a", b"b"]
    assert [batch.data async for batch in read_output(client, "nobody")] == []
    heard: list[OutputBatch] = []
    follower = follow_output(client, "r", heard.append, after=batches[1].sequence)
    assert await follower.wait_caught_up(ANSWER_TIMEOUT_S)
    await publish_output(worker, "r", 2, 1, b"d")
    await until(lambda: len(heard) == 2)
    await follower.close()
    assert [batch.data for batch in heard] == [b"c", b"d"]


async def test_only_the_newest_output_of_a_rank_is_kept(broker: BrokerForTest) -> None:
    worker, client = await broker.connect(Role.WORKER), await broker.connect(Role.CLIENT)
    for number in range(OUTPUT_BATCHES_KEPT_MAX + 44):
        await publish_output(worker, "r", 1, 0, str(number).encode())
    await publish_output(worker, "r", 1, 1, b"other rank")
    kept = [batch.data async for batch in read_output(client, "r", rank=0)]
    assert [int(data) for data in kept] == list(range(44, OUTPUT_BATCHES_KEPT_MAX + 44))
    assert [batch.data async for batch in read_output(client, "r", rank=1)] == [b"other rank"]


async def test_output_over_the_limit_is_the_callers_error(broker: BrokerForTest) -> None:
    worker = await broker.connect(Role.WORKER)
    with pytest.raises(ValueError, match="cut it"):
        await publish_output(worker, "r", 1, 0, b"x" * 70_000)
    answer = await publish_acked(worker, "runfold.run.r.out.1.0", b"x" * 80_000, timeout_s=ANSWER_TIMEOUT_S)
    assert isinstance(answer, Rejected)
    assert "message size exceeds" in answer.description
