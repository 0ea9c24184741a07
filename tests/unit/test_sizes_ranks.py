"""What a rank and its runner keep, read and try again has its limit; what is beyond is cut, or waits, or is said."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from runfold.events.limits import ERROR_INLINE_MAX_BYTES, VALUE_INLINE_MAX_BYTES
from runfold.events.nats.errors import BlobMissing, Unanswered
from runfold.events.nats.names import Names
from runfold.events.pools import CapacitySet, SetCapacity
from runfold.workers import capacity, failure, foresee, life, nccl, prepare, rank, stacks
from runfold.workers.failure import describe
from runfold.workers.foresee import foreseen
from runfold.workers.layout import INNER, StorageSpec
from runfold.workers.life import RankLife
from runfold.workers.link import Start, Uploading
from runfold.workers.nccl import ask_ras
from runfold.workers.output import OutputCut
from runfold.workers.prepare import FETCH_TRIES_MAX, Order, prepared
from runfold.workers.rank import pack_value
from runfold.workers.sealing import DEPTH_MAX, directories
from runfold.workers.stacks import StacksFile
from runfold.workers.storage import open_storage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from runfold.events.nats.blobs import Blobs
    from runfold.events.nats.client import RawMessage
    from runfold.events.nats.connection import Connection
    from runfold.events.output import OutputSource
    from runfold.workers.collective import Collectives
    from runfold.workers.handle import RankSource
    from runfold.workers.outlet import Outlet
    from runfold.workers.pools.pool import Book


def start(folder: Path | None = None, entrypoint: str = "a:b", blob: bytes | None = None) -> Start:
    """What a rank is started with."""
    return Start(
        run="r",
        name="",
        attempt=1,
        rank=0,
        life=1,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        entrypoint=entrypoint,
        working_dir=None if folder is None else str(folder),
        blob=blob,
    )


# --- what a rank tells


def test_the_whole_text_of_an_error_is_kept_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ValueError("a" * ERROR_INLINE_MAX_BYTES + "the middle" + "z" * ERROR_INLINE_MAX_BYTES)
    _, whole = describe(error)
    assert whole is not None
    monkeypatch.setattr(failure, "ERROR_FULL_MAX_BYTES", len(whole))
    assert describe(error)[1] == whole
    monkeypatch.setattr(failure, "ERROR_FULL_MAX_BYTES", len(whole) - 1)
    _, cut = describe(error)
    assert cut is not None
    assert len(cut) <= len(whole) - 1
    assert b"1 bytes and more left out" in cut
    assert b"the middle" not in cut
    assert cut.startswith(b"ValueError: aaa")
    assert cut.endswith(whole[-100:])


def test_a_return_value_is_no_larger_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    value = "x" * (VALUE_INLINE_MAX_BYTES + 1)
    packed, blob = pack_value(value)
    assert packed is None
    assert blob is not None
    monkeypatch.setattr(rank, "RETURN_BLOB_MAX_BYTES", len(blob))
    assert pack_value(value) == (None, blob)
    monkeypatch.setattr(rank, "RETURN_BLOB_MAX_BYTES", len(blob) - 1)
    words = (
        rf"the return value is {len(blob)} bytes, over return_blob_max_bytes \({len(blob) - 1}\): write it to a file"
    )
    with pytest.raises(ValueError, match=words):
        pack_value(value)


def test_stacks_are_read_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    file = StacksFile()
    with contextlib.closing(file):
        os.write(file.fd, b"0123456789")
        monkeypatch.setattr(stacks, "STACKS_MAX_BYTES", 10)
        assert file.read() == b"0123456789"
        monkeypatch.setattr(stacks, "STACKS_MAX_BYTES", 9)
        assert file.read() == b"012345678"


async def test_what_nccl_says_is_read_in_pieces_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "READ_MAX_BYTES", 3)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"0123456789")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        report = await ask_ras(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert report is not None
    assert report.text == "0123456789"


# --- what a runner looks through


@pytest.fixture
def everything_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """But Python's own."""

    def is_package(name: str) -> bool:
        return name.partition(".")[0] not in sys.stdlib_module_names

    monkeypatch.setattr(foresee, "_is_package", is_package)


@pytest.mark.usefixtures("everything_is_installed")
def test_so_many_files_are_looked_through_for_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foresee, "FORESEEN_FILES_MAX_COUNT", 3)
    for k in range(5):
        (tmp_path / f"own{k}.py").write_text(f"import lib{k}\nimport own{k + 1}\n")
    assert foreseen(start(tmp_path, "own0:train")) == ["lib0", "lib1", "lib2"]
    assert foreseen(start(tmp_path, "own2:train"))[:3] == ["lib2", "lib3", "lib4"]


@pytest.mark.usefixtures("everything_is_installed")
@pytest.mark.parametrize("beyond", [0, 1])
def test_a_source_is_looked_through_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beyond: int) -> None:
    source = "import libone\nimport libtwo"
    (tmp_path / "job.py").write_text(source)
    pickled = b"clibthree\nthing\n."
    monkeypatch.setattr(foresee, "FORESEEN_SOURCE_MAX_BYTES", len(source) - 4 * beyond)
    # What is cut off is missed, and imported by the ranks.
    assert foreseen(start(tmp_path, "job.py:train")) == ["libone", "libtwo"[: 6 - 4 * beyond]]
    monkeypatch.setattr(foresee, "FORESEEN_SOURCE_MAX_BYTES", len(pickled) - beyond)
    assert foreseen(start(tmp_path, "blob:sha256:00", pickled)) == ["libthree"] * (1 - beyond)


def test_checkpoints_are_looked_for_so_many_directories_deep(tmp_path: Path) -> None:
    storage = open_storage(StorageSpec(url=str(tmp_path), name="digits"))
    names = ["/".join(["deep"] * k + ["checkpoint"]) for k in range(DEPTH_MAX + 1)]
    for name in names:
        (tmp_path / "digits" / name / INNER).mkdir(parents=True)
    assert sorted(directories(storage)) == sorted(names[:DEPTH_MAX])


# --- what is tried again


class _Unsteady:
    """Blobs that come at the last of so many tries."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.failures: int = failures
        self.error = error
        self.tries = 0

    async def get(self, digest: str) -> bytes:
        self.tries += 1
        if self.tries <= self.failures:
            raise self.error
        return digest.encode()


@pytest.mark.parametrize(
    ("failures", "error", "tries"),
    [
        (FETCH_TRIES_MAX - 1, Unanswered("blobs", "no answer"), FETCH_TRIES_MAX),
        (FETCH_TRIES_MAX, Unanswered("blobs", "no answer"), FETCH_TRIES_MAX),
        (1, BlobMissing("d"), 1),
    ],
    ids=["the last try", "too often", "for good"],
)
async def test_what_a_rank_needs_is_fetched_so_often(
    monkeypatch: pytest.MonkeyPatch, failures: int, error: Exception, tries: int
) -> None:
    monkeypatch.setattr(prepare, "FETCH_RETRY_S", 0.0)
    blobs = _Unsteady(failures, error)
    asking = prepared(Order(start=start(), blob="digest"), cast("Blobs", blobs))
    if failures == FETCH_TRIES_MAX or tries == 1:
        with pytest.raises(type(error)):
            await asking
    else:
        assert (await asking).blob == b"digest"
    assert blobs.tries == tries


# --- what is remembered


def test_so_many_saves_are_remembered_and_the_oldest_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "SAVES_REMEMBERED_MAX_COUNT", 3)
    saves: set[int] = set()
    one = RankLife(
        Order(start=start()),
        spawner=cast("RankSource", None),
        blobs=cast("Blobs", None),
        outlet=cast("Outlet", None),
        group=cast("Collectives", None),
        say=lambda _: None,
        on_change=lambda: None,
        saves=saves,
    )
    for index in range(5):
        one._heard(Uploading(f"checkpoint_{index}", index))
    assert saves == {2, 3, 4}
    assert len(one.uploading) == 5, "what is under way is not forgotten"


def test_what_is_noted_of_a_rank_stands_once_among_its_last_lines() -> None:
    cut = OutputCut("digits", 1, 0, "local")

    class Fed:
        def feed(self, source: OutputSource, data: bytes) -> None:
            cut.feed(source, data, 0.0, 0.0)

    one = RankLife(
        Order(start=start()),
        spawner=cast("RankSource", None),
        blobs=cast("Blobs", None),
        outlet=cast("Outlet", Fed()),
        group=cast("Collectives", None),
        say=lambda _: None,
        on_change=lambda: None,
    )
    one.note("the lighthouse is out")
    one.note("the lighthouse is out")
    assert cut.last_lines() == "runfold: the lighthouse is out\n"


class _Wire:
    """A connection on which wishes are heard and answers are said."""

    names = Names()

    def __init__(self) -> None:
        self.heard: Callable[[RawMessage], Awaitable[None]] | None = None
        self.said: list[CapacitySet] = []

    async def subscribe(self, subject: str, callback: Callable[[RawMessage], Awaitable[None]]) -> str:
        self.heard = callback
        return subject

    async def unsubscribe(self, subscription: object) -> None:
        self.heard = None

    async def publish(self, subject: str, data: bytes) -> None:
        self.said.append(msgspec.json.decode(data, type=CapacitySet))


class _Wish:
    def __init__(self, wish: SetCapacity) -> None:
        self.data = msgspec.json.encode(wish)


class _Book:
    """A pool that counts how often it is resized."""

    def __init__(self) -> None:
        self.nodes = {"local": 2}
        self.resized = 0

    def resize(self, node: str | None, slots: int) -> str:
        self.resized += 1
        return f"asked {self.resized} times"


async def test_so_many_answers_are_remembered_and_the_oldest_wish_is_done_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capacity, "ANSWERS_MAX_COUNT", 2)
    wire, book = _Wire(), _Book()
    one = capacity.Capacity(cast("Book", book), cast("Connection", wire), "local", None, lambda: None)
    serving = asyncio.create_task(one.serve())
    await asyncio.sleep(0)
    heard = wire.heard
    assert heard is not None
    for name in ("a", "b", "a", "b", "c", "b", "a"):
        await heard(cast("RawMessage", _Wish(SetCapacity(id=name, slots=1))))
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    answered = [(answer.id, answer.reason.split()[1]) for answer in wire.said]
    assert answered == [("a", "1"), ("b", "2"), ("a", "1"), ("b", "2"), ("c", "3"), ("b", "2"), ("a", "4")]
