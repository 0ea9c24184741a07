"""Finding the training function, and telling what went wrong, without a process."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import cloudpickle
import pytest

from runfold.events.limits import ERROR_INLINE_MAX_BYTES
from runfold.workers.errors import CheckpointDamagedError, CollectivePeerError, LoadError, StorageError, UploadError
from runfold.workers.failure import describe
from runfold.workers.frames import FrameSplitter, frame, read_frame
from runfold.workers.load import framework_versions, load_entrypoint
from runfold.workers.severed import SEVERED_READ_MAX_CHARS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)


def test_a_file_bears_its_own_name_and_finds_what_stands_beside_it(tmp_path: Path) -> None:
    write(tmp_path, "jobs/beside_it.py", "WORD = 'beside'")
    write(tmp_path, "jobs/my_job.py", "import beside_it\ndef train(): return beside_it.WORD, __name__")
    found = load_entrypoint("jobs/my_job.py:train", tmp_path)
    assert found.function() == ("beside", "my_job")
    assert not found.takes_config
    absolute = load_entrypoint(f"{tmp_path}/jobs/my_job.py:train", tmp_path / "elsewhere")
    assert absolute.digest == found.digest


@pytest.mark.parametrize("name", ["json.py", "msgspec.py", "with-dash.py"])
def test_a_file_named_like_another_module_does_not_replace_it(tmp_path: Path, name: str) -> None:
    before = dict(sys.modules)
    write(tmp_path, name, "def train(): return __name__")
    assert str(load_entrypoint(f"{name}:train", tmp_path).function()).startswith("runfold_entry_")
    assert sys.modules["json"] is before["json"]


@pytest.mark.parametrize(
    ("code", "takes_config"),
    [
        ("def train(): pass", False),
        ("def train(config): pass", True),
        ("def train(config=None): pass", False),
        ("def train(*args, **kwargs): pass", False),
        ("def train(config, *, extra=1): pass", True),
        ("class Train:\n  def __call__(self, config): pass\ntrain = Train()", True),
        ("train = print", False),
        ("import functools\ndef f(a, b): pass\ntrain = functools.partial(f, 1)", True),
    ],
)
def test_the_configuration_is_given_to_who_needs_it(tmp_path: Path, code: str, takes_config: bool) -> None:
    write(tmp_path, "job_here.py", code)
    assert load_entrypoint("job_here.py:train", tmp_path).takes_config is takes_config


@pytest.mark.parametrize("text", ["", "train", ":train", "job.py:", "no_such_thing:train", "os.nothing:train"])
def test_what_names_no_function_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(LoadError, match="entry point"):
        load_entrypoint(text, tmp_path)


def test_what_a_module_misses_is_its_own_error_not_ours(tmp_path: Path) -> None:
    write(tmp_path, "package_here/__init__.py", "import missing_elsewhere")
    sys.path.insert(0, str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="missing_elsewhere"):
        load_entrypoint("package_here.part:train", tmp_path)


def test_a_damaged_blob_is_not_unpickled(tmp_path: Path) -> None:
    blob = cloudpickle.dumps(functools.partial(print, "x"))
    entry = f"blob:sha256:{hashlib.sha256(blob).hexdigest()}"
    assert load_entrypoint(entry, tmp_path, blob).digest == entry.removeprefix("blob:")
    with pytest.raises(LoadError, match="damaged"):
        load_entrypoint(entry, tmp_path, blob + b" ")


def test_versions_are_read_of_what_is_imported_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", type(sys)("torch"))
    vars(sys.modules["torch"])["__version__"] = "2.13.0" + "x" * 100
    versions = framework_versions()
    assert versions["torch"].startswith("2.13.0")
    assert len(versions["torch"]) == 64
    assert "jax" not in versions


# --- errors as told


def raised_by(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_errors_of_collectives_are_those_of_peers() -> None:
    assert describe(CollectivePeerError("rank 1 has returned"))[0].kind == "peer"
    for error in (StorageError("not shared"), UploadError("the disk is full"), CheckpointDamagedError("a byte")):
        assert describe(error)[0].kind == "storage"
    assert describe(OSError("of the user's own"))[0].kind == "user"


@pytest.mark.parametrize(
    "message",
    [
        "[/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:4525: Connection reset by peer. This is",
        "[/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:26530. This is typically",
        "[/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 30000ms for recv operation to complete",
        "NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited or there was a network error, NCCL",
        "NCCL communicator was aborted on rank 1.",
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE)",
    ],
)
def test_what_torch_says_of_a_peer_that_is_gone_is_no_cause(message: str) -> None:
    assert describe(RuntimeError(message))[0].kind == "peer"
    assert describe(ValueError(message))[0].kind == "user"


@pytest.mark.parametrize(
    "message",
    ["Connection reset by peer", "gloo: unsupported data type", "NCCL error: invalid argument", "the NCCL test failed"],
)
def test_what_sounds_alike_is_the_users_own(message: str) -> None:
    assert describe(RuntimeError(message))[0].kind == "user"


def test_what_torch_says_is_read_up_to_a_length() -> None:
    said = "gloo: connection reset by peer"
    before = SEVERED_READ_MAX_CHARS - len(said)
    assert describe(RuntimeError(" " * before + said))[0].kind == "peer"
    assert describe(RuntimeError(" " * (before + 1) + said))[0].kind == "user"


def test_a_chain_is_told_whole_and_every_text_is_bounded() -> None:
    def inner() -> None:
        raise KeyError("first")

    def outer() -> None:
        try:
            inner()
        except KeyError as error:
            raise ExceptionGroup("several", [ValueError("x" * 100_000), OSError("y")]) from error

    info, full = describe(raised_by(outer))
    assert info.type == "ExceptionGroup"
    assert len(info.message.encode()) + len((info.traceback or "").encode()) <= ERROR_INLINE_MAX_BYTES
    assert "KeyError: 'first'" in (info.traceback or "")
    assert full is not None
    assert b"OSError: y" in full


def test_files_of_the_working_directory_are_named_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(__file__)
    monkeypatch.chdir(here.parents[1])
    nothing: dict[str, int] = {}
    info, _ = describe(raised_by(lambda: nothing["x"]))
    assert (info.where or "").startswith(f"unit/{here.name}:")
    assert f'File "unit/{here.name}"' in (info.traceback or "")
    assert 'nothing["x"]' in (info.traceback or "")


def test_endless_recursion_is_told() -> None:
    def again() -> None:
        again()

    info, _ = describe(raised_by(again))
    assert info.type == "RecursionError"
    assert "more times" in (info.traceback or "")


def test_an_error_that_was_never_raised_has_no_frame() -> None:
    info, full = describe(ValueError("x"))
    assert (info.where, full, info.headline) == (None, None, "ValueError: x")


# --- frames


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_frames_come_whole_whatever_the_pieces(size: int) -> None:
    payloads = [b"", b"a", bytes(200), b"end"]
    data = b"".join(frame(payload, 1000) for payload in payloads)
    splitter = FrameSplitter(1000)
    pieces = (data[i : i + size] for i in range(0, len(data), size))
    assert [payload for piece in pieces for payload in splitter.feed(piece)] == payloads
    assert list(splitter.feed(b"")) == []


def test_frames_over_the_limit_are_refused_on_both_sides() -> None:
    with pytest.raises(ConnectionError, match="over the limit of 10 bytes"):
        frame(bytes(11), 10)
    with pytest.raises(ConnectionError, match="over the limit of 10 bytes"):
        list(FrameSplitter(10).feed(frame(bytes(11), 11)))


async def test_a_frame_is_awaited_and_one_over_the_limit_is_not_read() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(frame(b"whole", 10) + frame(bytes(11), 11)[:6])
    assert await read_frame(reader, 10) == b"whole"
    with pytest.raises(ConnectionError, match="11 bytes is over the limit of 10 bytes"):
        await read_frame(reader, 10)
    reader.feed_eof()
    with pytest.raises(asyncio.IncompleteReadError):
        await read_frame(reader, 10)


@pytest.mark.parametrize(
    ("limit", "said"),
    [(resource.RLIM_INFINITY, ""), (512 * 1024**2, "its address space is limited to 512 MiB (RLIMIT_AS)")],
)
def test_an_error_for_want_of_memory_names_the_limit(monkeypatch: pytest.MonkeyPatch, limit: int, said: str) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (limit, limit))
    info, _ = describe(MemoryError())
    assert (info.kind, info.message) == ("oom", said)
