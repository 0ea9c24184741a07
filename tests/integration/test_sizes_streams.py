"""Every stream of the broker has its room and its largest message: full, it refuses or forgets as it is meant to."""

from __future__ import annotations

import pytest

from runfold.events import limits
from runfold.events.nats.api import Api, StreamConfig
from runfold.events.nats.blobs import Blobs, blob_digest
from runfold.events.nats.cells import Written, assignment_cells, lease_cells, owner_cells
from runfold.events.nats.connection import Connection
from runfold.events.nats.errors import ApiRefused
from runfold.events.nats.layout import HEADERS_MAX_BYTES, leases_config, stream_configs
from runfold.events.nats.names import Names, Role
from runfold.events.nats.publish import Acked, Rejected, publish_acked
from support.broker import ANSWER_TIMEOUT_S, BrokerForTest

NAMES = Names()
STREAMS = (
    "log",
    "jobs",
    "inbox",
    "assignments",
    "owners",
    "blobs",
    "refusals",
    "output",
    "status",
    "snapshots",
    "leases",
)
REFUSING = ("log", "jobs", "inbox", "assignments", "owners", "blobs", "leases")
LARGEST = {
    "log": limits.ENTRY_MAX_BYTES,
    "jobs": limits.JOB_MAX_BYTES,
    "inbox": limits.FACT_MESSAGE_MAX_BYTES,
    "assignments": limits.ASSIGNMENT_MAX_BYTES,
    "output": limits.OUTPUT_BATCH_MAX_BYTES,
    "status": limits.STATUS_MAX_BYTES,
}
ROOM_BYTES = 64 * 1024
PIECE_BYTES = 4 * 1024


def subject_of(stream: str, k: int) -> str:
    """The subject of the k-th message of a stream, none of which replaces another."""
    subjects = NAMES.subjects
    buckets = {
        "owners": NAMES.owners_bucket,
        "status": NAMES.status_bucket,
        "snapshots": NAMES.snapshots_bucket,
        "leases": NAMES.leases_bucket,
    }
    if stream in buckets:
        return NAMES.key_subject(buckets[stream], f"key-{k}")
    return {
        "log": subjects.log("run"),
        "jobs": subjects.jobs,
        "inbox": f"{NAMES.namespace}.run.run.request.id-{k}",
        "assignments": subjects.assignment(f"run-{k}"),
        "blobs": f"$O.{NAMES.blobs_bucket}.C.one",
        "refusals": subjects.refused(f"job-{k}"),
        "output": f"{NAMES.namespace}.run.run.out.1.0",
    }[stream]


def config_of(stream: str) -> StreamConfig:
    """How runfold makes a stream."""
    every = [*stream_configs(NAMES), leases_config(NAMES)]
    return next(one for one in every if one.name.endswith(stream.upper()))


async def made(broker: BrokerForTest, monkeypatch: pytest.MonkeyPatch, stream: str) -> tuple[Connection, Api, str]:
    """A stream of the layout whose room is small."""
    monkeypatch.setattr(f"runfold.events.nats.layout.{stream.upper()}_MAX_BYTES", ROOM_BYTES)
    config = config_of(stream)
    assert config.max_bytes == ROOM_BYTES
    admin = await broker.connect(Role.ADMIN)
    api = Api(admin)
    await api.create_stream(config)
    return admin, api, config.name


async def put(admin: Connection, stream: str, k: int, size_bytes: int) -> Acked | Rejected:
    """What the broker said of a message."""
    data = b"%d " % k + b"x" * (size_bytes - len(b"%d " % k))
    return await publish_acked(admin, subject_of(stream, k), data, {}, timeout_s=ANSWER_TIMEOUT_S)


@pytest.mark.parametrize("stream", STREAMS)
async def test_a_stream_that_is_full_refuses_what_is_new_or_forgets_what_is_old(
    stream: str, bare_broker: BrokerForTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, api, name = await made(bare_broker, monkeypatch, stream)
    many = 2 * ROOM_BYTES // PIECE_BYTES
    answers = [await put(admin, stream, k, PIECE_BYTES) for k in range(many)]
    taken = [k for k, answer in enumerate(answers) if isinstance(answer, Acked)]
    info = await api.stream_info(name)
    assert info is not None
    assert ROOM_BYTES // 2 < info.state.bytes <= ROOM_BYTES
    first = await api.next_message(name, ">", 1)
    last = await api.next_message(name, ">", info.state.last_seq)
    assert first is not None
    assert last is not None
    if stream in REFUSING:
        assert taken == list(range(len(taken)))  # from the first one refused on all are
        refusals = [answer for answer in answers if isinstance(answer, Rejected)]
        assert all(one.full and "maximum bytes exceeded" in one.description for one in refusals)
        assert 0 < len(taken) == info.state.messages < many
        assert first.data.startswith(b"0 ")
    else:
        assert len(taken) == many
        assert 0 < info.state.messages < many
        assert int(first.data.split()[0]) == many - info.state.messages
    assert last.data.startswith(b"%d " % taken[-1])


@pytest.mark.parametrize("stream", LARGEST)
async def test_a_stream_takes_the_largest_of_its_messages_with_headers_and_nothing_larger(
    stream: str, bare_broker: BrokerForTest
) -> None:
    admin = await bare_broker.connect(Role.ADMIN)
    api = Api(admin)
    config = config_of(stream)
    await api.create_stream(config)
    assert isinstance(await put(admin, stream, 0, LARGEST[stream] + HEADERS_MAX_BYTES // 2), Acked)
    refusal = await put(admin, stream, 1, LARGEST[stream] + HEADERS_MAX_BYTES + 1)
    assert isinstance(refusal, Rejected)
    assert "message size exceeds maximum allowed" in refusal.description
    info = await api.stream_info(config.name)
    assert info is not None
    assert info.state.messages == 1


@pytest.mark.parametrize("stream", ["assignments", "owners", "leases"])
async def test_whoever_writes_a_value_where_there_is_no_room_is_told_and_the_one_before_stays(
    stream: str, bare_broker: BrokerForTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, _, _ = await made(bare_broker, monkeypatch, stream)
    cells = {"assignments": assignment_cells, "owners": owner_cells, "leases": lease_cells}[stream](admin)
    before = await cells.put("mine", b"x" * PIECE_BYTES, expected=0)
    assert isinstance(before, Written)
    k = 0
    while isinstance(await put(admin, stream, k, PIECE_BYTES), Acked):
        k += 1
    with pytest.raises(ApiRefused, match="maximum bytes exceeded"):
        await cells.put("mine", b"y" * 2 * PIECE_BYTES, expected=before.sequence)
    standing = await cells.get("mine")
    assert standing is not None
    assert (standing.data, standing.sequence) == (b"x" * PIECE_BYTES, before.sequence)


async def test_a_blob_for_which_there_is_no_room_is_not_there_and_its_owner_is_told(
    bare_broker: BrokerForTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, _, _ = await made(bare_broker, monkeypatch, "blobs")
    blobs = Blobs(admin)
    kept = await blobs.put(b"k" * PIECE_BYTES)
    large = b"l" * ROOM_BYTES
    with pytest.raises(ApiRefused, match="maximum bytes exceeded"):
        await blobs.put(large)
    assert not await blobs.has(blob_digest(large))
    assert await blobs.get(kept) == b"k" * PIECE_BYTES
