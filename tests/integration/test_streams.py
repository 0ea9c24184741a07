"""The streams on a real broker: created once, checked ever after, never made anew in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from runfold.events.nats.api import CONSUMER_NOT_MADE, Api
from runfold.events.nats.errors import ApiRefused, BrokerError, StreamMismatch, StreamsMissing
from runfold.events.nats.layout import leases_config, stream_configs
from runfold.events.nats.names import JOBS_CONSUMER, Names
from runfold.events.nats.publish import Acked, Rejected, publish_acked
from runfold.events.nats.streams import check, ensure_leases, provision
from support.broker import ANSWER_TIMEOUT_S
from support.waiting import until

if TYPE_CHECKING:
    from support.broker import BrokerForTest


async def test_created_twice_is_created_once(broker: BrokerForTest) -> None:
    api = await broker.api()
    before = await api.stream_info(broker.names.log)
    await broker.provision()
    after = await api.stream_info(broker.names.log)
    assert before is not None
    assert before == after
    await check(api, broker.names)


async def test_a_consumer_that_stands_need_not_be_written_again(
    broker: BrokerForTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, names = await broker.api(), broker.names

    async def fails(_: Api, stream: str, name: str, body: object) -> None:
        raise ApiRefused(f"CONSUMER.CREATE.{stream}.{name}", 500, CONSUMER_NOT_MADE, "no space left on device")

    monkeypatch.setattr(Api, "create_consumer", fails)
    assert await api.has_consumer(names.jobs, JOBS_CONSUMER)
    assert not await api.has_consumer(names.jobs, "nobody")
    assert not await api.has_consumer("NOTHING", JOBS_CONSUMER)
    await broker.provision()
    await api.connection.request(
        f"$JS.API.CONSUMER.DELETE.{names.jobs}.{JOBS_CONSUMER}", b"", timeout_s=ANSWER_TIMEOUT_S
    )
    with pytest.raises(ApiRefused, match="no space left"):
        await broker.provision()


async def test_every_stream_is_bounded_and_the_truth_refuses_when_full(broker: BrokerForTest) -> None:
    names = broker.names
    buckets = (names.status_bucket, names.snapshots_bucket, names.owners_bucket)
    status, snapshots, owners = (names.stream_of(bucket) for bucket in buckets)
    configs = {config.name: config for config in [*stream_configs(names), leases_config(names)]}
    assert len(configs) == 11
    assert all(config.max_bytes > 0 for config in configs.values())
    dropping = {name for name, config in configs.items() if config.discard == "old"}
    assert dropping == {names.output, names.refusals, status, snapshots}
    assert {name for name, config in configs.items() if config.persist_mode == "async"} == {
        names.output,
        status,
        snapshots,
    }
    assert owners in configs


async def test_wrong_configuration_is_reported_field_by_field_and_kept(bare_broker: BrokerForTest) -> None:
    api, names = await bare_broker.api(), bare_broker.names
    wanted = {config.name: config for config in stream_configs(names)}[names.log]
    wrong = msgspec.structs.replace(wanted, max_bytes=1 << 20, deny_delete=False, discard="old")
    await api.create_stream(wrong)
    with pytest.raises(StreamMismatch) as mismatch:
        await bare_broker.provision()
    assert mismatch.value.differences == (
        f"{names.log}: discard is 'old', needed 'new'",
        f"{names.log}: deny_delete is False, needed True",
    )
    info = await api.stream_info(names.log)
    assert info is not None
    assert not info.config.deny_delete
    assert await api.stream_info(names.inbox) is None


async def test_size_is_the_operators_choice(bare_broker: BrokerForTest) -> None:
    api, names = await bare_broker.api(), bare_broker.names
    await provision(api, names, storage_max_bytes=100 << 20)
    await check(api, names)


async def test_creation_cut_short_is_finished(bare_broker: BrokerForTest) -> None:
    api, names = await bare_broker.api(), bare_broker.names
    first, second, *_ = stream_configs(names, storage_max_bytes=bare_broker.running.storage_max_bytes)
    await api.create_stream(first)
    await api.create_stream(second)
    await bare_broker.provision()
    await check(api, names)


async def test_lost_log_is_never_made_anew(broker: BrokerForTest) -> None:
    api, names = await broker.api(), broker.names
    await api.connection.request(f"$JS.API.STREAM.DELETE.{names.log}", b"", timeout_s=ANSWER_TIMEOUT_S)
    with pytest.raises(StreamsMissing) as lost:
        await broker.provision()
    assert lost.value.names == (names.log,)
    assert await api.stream_info(names.log) is None


async def test_lost_store_is_never_made_anew(broker: BrokerForTest) -> None:
    api, names = await broker.api(), broker.names
    for config in stream_configs(names):
        await api.connection.request(f"$JS.API.STREAM.DELETE.{config.name}", b"", timeout_s=ANSWER_TIMEOUT_S)
    with pytest.raises(StreamsMissing, match="the store is empty now"):
        await broker.provision()
    broker.running.created_marker.unlink()
    await broker.provision()


@pytest.mark.parametrize("data", [b"", b"x", b"\xff", b"[]", b"{}"])
async def test_a_damaged_marker_is_said_and_creates_nothing(broker: BrokerForTest, data: bytes) -> None:
    broker.running.created_marker.write_bytes(data)
    with pytest.raises(BrokerError, match=r"created\.json is damaged"):
        await broker.provision()
    broker.running.created_marker.unlink()
    await broker.provision()


async def test_a_stream_lost_beside_a_log_with_entries_is_missed_without_a_marker(broker: BrokerForTest) -> None:
    api, names = await broker.api(), broker.names
    broker.running.created_marker.unlink()
    stored = await publish_acked(api.connection, names.subjects.log("r"), b"entry", timeout_s=ANSWER_TIMEOUT_S)
    assert isinstance(stored, Acked)
    await api.connection.request(f"$JS.API.STREAM.DELETE.{names.inbox}", b"", timeout_s=ANSWER_TIMEOUT_S)
    with pytest.raises(StreamsMissing) as lost:
        await broker.provision()
    assert lost.value.names == (names.inbox,)
    with pytest.raises(StreamsMissing):
        await check(api, names)


async def test_streams_survive_a_killed_server_and_leases_are_made_anew(broker: BrokerForTest) -> None:
    names = broker.names
    admin = await broker.api()
    stored = await publish_acked(admin.connection, names.subjects.log("r"), b"entry", timeout_s=ANSWER_TIMEOUT_S)
    assert isinstance(stored, Acked)
    broker.kill()
    broker.restart()
    await until(lambda: admin.connection.generation >= 1)
    await check(admin, names)
    found = await admin.last_message(names.log, names.subjects.log("r"))
    assert found is not None
    assert found.data == b"entry"
    assert await admin.stream_info(leases_config(names).name) is None
    await ensure_leases(admin, names)
    assert await admin.stream_info(leases_config(names).name) is not None


async def test_a_job_over_the_limit_is_refused_by_the_server(broker: BrokerForTest) -> None:
    admin = await broker.api()
    subject = broker.names.subjects.jobs
    refused = await publish_acked(admin.connection, subject, b"x" * 300_000, timeout_s=ANSWER_TIMEOUT_S)
    assert isinstance(refused, Rejected)
    assert refused.err_code == 10054
    stored = await publish_acked(admin.connection, subject, b"x" * 262_144, timeout_s=ANSWER_TIMEOUT_S)
    assert isinstance(stored, Acked)


async def test_two_namespaces_do_not_meet(bare_broker: BrokerForTest) -> None:
    api = await bare_broker.api()
    for namespace in ("runfold", "other-one"):
        await provision(api, Names(namespace), storage_max_bytes=200 << 20)
    for namespace in ("runfold", "other-one"):
        await check(api, Names(namespace))
