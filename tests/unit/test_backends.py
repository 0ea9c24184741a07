"""Backends by what they set and say: torch by table, GPUs by table, and the shapes of the others on one Protocol."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

import pytest

from runfold.events.config import BackendConfig
from runfold.workers import session
from runfold.workers.backends import NONE, NoBackend, Place, backend_of, torchlib
from runfold.workers.backends.torch import TorchBackend, backend_name, group_environment, rank_environment
from runfold.workers.backends.torchft import replica_environment
from runfold.workers.devices import device_index, gpus_by_slot, visible_gpus
from runfold.workers.errors import LoadError
from runfold.workers.rank import MeetByLink

if TYPE_CHECKING:
    from pathlib import Path

    from runfold.events.base import Json


def place(**changes: object) -> Place:
    given: dict[str, object] = {
        "rank": 3,
        "world_size": 4,
        "local_rank": 1,
        "local_world_size": 2,
        "node_rank": 1,
        "addr": "10.0.0.1",
        "own_addr": "10.0.0.2",
    }
    return Place(**{**given, **changes})  # type: ignore[arg-type]  # a table's rows


@pytest.mark.parametrize(
    ("resources", "told", "name"),
    [
        ({"CPU": 1.0}, None, "gloo"),
        ({"GPU": 1.0}, None, "nccl"),
        ({"GPU": 0.5}, None, "nccl"),
        ({"GPU": 1.0}, "gloo", "gloo"),
        ({"CPU": 1.0, "TPU": 1.0}, None, "tpu_dist"),
        ({"TPU": 4.0}, "gloo", "gloo"),
        ({"CPU": 1.0}, "cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl"),
    ],
)
def test_torch_talks_by_what_the_ranks_have_unless_told(
    resources: dict[str, float], told: str | None, name: str
) -> None:
    options: dict[str, Json] = {} if told is None else {"backend": told}
    assert backend_name(place(resources=resources, options=options)) == name


@pytest.mark.parametrize(
    ("options", "resources", "given", "expected"),
    [
        ({}, {}, (), {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}),
        ({"init_method": "tcp"}, {}, (), {}),
        (
            {},
            {"GPU": 1.0},
            (),
            {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
        ),
        ({"init_method": "tcp"}, {"GPU": 1.0}, ("TORCH_NCCL_ASYNC_ERROR_HANDLING",), {}),
        ({"init_method": "tcp"}, {"GPU": 1.0}, ("TORCH_NCCL_BLOCKING_WAIT",), {}),
        ({"init_method": "tcp"}, {"GPU": 1.0}, ("NCCL_BLOCKING_WAIT",), {}),
        (
            {"init_method": "tcp", "backend": "cpu:gloo,cuda:nccl"},
            {},
            (),
            {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
        ),
        ({"init_method": "tcp", "backend": "gloo"}, {"GPU": 1.0}, (), {}),
    ],
)
def test_torch_sets_what_a_group_needs_and_keeps_what_the_user_has_set(
    options: dict[str, Json], resources: dict[str, float], given: tuple[str, ...], expected: dict[str, str]
) -> None:
    found = group_environment(place(options=options, resources=resources), "10.0.0.1", 29500, given.__contains__)
    assert found == expected


def test_on_one_machine_gloo_is_told_to_stay_on_it() -> None:
    here = group_environment(place(), "127.0.0.1", 1, lambda _name: False)
    assert here["GLOO_SOCKET_IFNAME"] == "lo"
    assert "GLOO_SOCKET_IFNAME" not in group_environment(place(), "127.0.0.1", 1, {"GLOO_SOCKET_IFNAME"}.__contains__)


@pytest.mark.parametrize(
    ("resources", "gpus", "visible", "device"),
    [
        ({"CPU": 1.0}, (), None, "cpu"),
        ({"GPU": 1.0}, (), None, "cuda:1"),
        ({"GPU": 1.0}, ("5",), "4,5", "cuda:1"),
        ({"GPU": 1.0}, ("5",), "5", "cuda:0"),
        ({"GPU": 2.0}, ("2", "3"), "0,1,2,3", "cuda:2"),
        ({"GPU": 0.5}, ("0",), "0", "cuda:0"),
        ({"TPU": 1.0}, (), None, "tpu"),
    ],
)
def test_a_rank_is_told_who_and_where_it_is(
    resources: dict[str, float], gpus: tuple[str, ...], visible: str | None, device: str
) -> None:
    assert rank_environment(place(resources=resources, gpus=gpus), visible) == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "ACCELERATE_TORCH_DEVICE": device,
    }


TWO_NODES = {0: "a", 1: "a", 2: "b", 3: "b"}


@pytest.mark.parametrize(
    ("own", "share", "expected"),
    [
        (
            {0: ["0"], 1: ["1"], 2: ["0"], 3: ["1"]},
            True,
            {0: "0,1", 1: "0,1", 2: "0,1", 3: "0,1"},
        ),
        ({0: ["1"], 1: ["0"], 2: ["3"], 3: ["2"]}, True, {0: "0,1", 1: "0,1", 2: "2,3", 3: "2,3"}),
        ({0: ["1"], 1: ["0"], 2: ["3"], 3: ["2"]}, False, {0: "1", 1: "0", 2: "3", 3: "2"}),
        # Fractions: two ranks on one GPU.
        ({0: ["0"], 1: ["0"], 2: ["0"], 3: ["1"]}, True, {0: "0", 1: "0", 2: "0,1", 3: "0,1"}),
        ({0: ["0", "1"], 1: ["2", "3"]}, True, {0: "0,1,2,3", 1: "0,1,2,3"}),
        # As the peer: ids that are words are sorted as words.
        ({0: ["10"], 1: ["9"]}, True, {0: "10,9", 1: "10,9"}),
        ({0: ["GPU-b"], 1: ["GPU-a"]}, True, {0: "GPU-a,GPU-b", 1: "GPU-a,GPU-b"}),
    ],
)
def test_gpus_are_seen_by_all_ranks_of_a_node(own: dict[int, list[str]], share: bool, expected: dict[int, str]) -> None:
    assert visible_gpus(own, TWO_NODES, share=share) == expected


def test_a_rank_without_the_gpu_it_asked_for_is_named() -> None:
    with pytest.raises(ValueError, match="rank 2 on node b was given no GPU"):
        visible_gpus({0: ["0"], 2: None}, TWO_NODES, share=True)


def test_a_gpu_that_is_not_visible_leaves_the_local_rank() -> None:
    assert device_index(["7"], 1, "0,1") == 1
    assert device_index(["7"], 1, None) == 1


def test_backends_are_chosen_by_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend_of(BackendConfig(), place()) is NONE
    assert isinstance(backend_of(BackendConfig(kind="torch"), place()), TorchBackend)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def made(place):\n    return place\nNOT = 1\n")
    found: object = backend_of(BackendConfig(kind="mine.py:made", options={"a": 1}), place())
    assert found == place(options={"a": 1})
    with pytest.raises(LoadError, match="has no 'other'"):
        backend_of(BackendConfig(kind="mine.py:other"), place())
    with pytest.raises(LoadError, match="cannot be called"):
        backend_of(BackendConfig(kind="mine.py:NOT"), place())


@pytest.mark.parametrize("kind", ["mpi", "", "a b:", ":x", "m:1x"])
def test_what_is_no_backend_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="kind: must be one of none, torch"):
        BackendConfig(kind=kind)


def test_a_backend_that_does_nothing_does_nothing() -> None:
    class Meet:
        def __call__(self, data: bytes | None) -> bytes:
            raise AssertionError(data)

        def gather(self, data: bytes) -> list[bytes]:
            raise AssertionError(data)

    backend = NoBackend()
    backend.on_start(Meet())
    backend.on_training_start(Meet())
    with backend.context():
        pass
    backend.on_shutdown()
    assert backend.environment() == {}


@pytest.mark.parametrize(
    ("visible", "slots", "expected"),
    [
        ("0,1", 2, (("0",), ("1",))),
        ("0, 1,4,5", 2, (("0", "1"), ("4", "5"))),
        ("0", 2, ()),
        ("0,1,2", 2, ()),
        ("", 2, ()),
        (None, 2, ()),
        ("0", 0, ()),
    ],
)
def test_the_gpus_of_a_place_are_shared_out_among_its_slots(
    visible: str | None, slots: int, expected: tuple[tuple[str, ...], ...]
) -> None:
    assert gpus_by_slot(visible, slots) == expected


# --- TPUs


class Loader:
    """Stands for torch_tpu, which has to be loaded before torch knows of TPUs."""

    def __init__(self) -> None:
        self.loads_count = 0

    def load(self) -> None:
        self.loads_count += 1


def test_torch_is_told_of_tpus_before_the_ranks_meet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Distributed:
        @staticmethod
        def is_available() -> bool:
            return True

    loader = Loader()
    monkeypatch.setattr(torchlib, "distributed", Distributed)
    monkeypatch.setitem(sys.modules, "torch_tpu", loader)
    monkeypatch.setitem(sys.modules, "torch_tpu._loader", loader)
    for tpus, said in ((1.0, ""), (4.0, "each rank has 4 TPU chips, and PyTorch uses one in each process")):
        with pytest.raises(AssertionError):
            TorchBackend(place(rank=0, addr="127.0.0.1", resources={"TPU": tpus})).on_start(NoMeet())
        err = capsys.readouterr().err
        assert (said in err, bool(err)) == (True, bool(said))
    assert loader.loads_count == 2


def test_torch_without_tpus_says_what_is_missing() -> None:
    with pytest.raises(ImportError, match="ranks that have TPUs need torch_tpu, or another backend's name"):
        torchlib.load_tpus()


# --- torchft


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"REPLICA_GROUP_ID": "0", "NUM_REPLICA_GROUPS": "1"}),
        (
            {"replica_group": 2, "replica_groups": 3, "lighthouse": "http://10.0.0.1:29510"},
            {"REPLICA_GROUP_ID": "2", "NUM_REPLICA_GROUPS": "3", "TORCHFT_LIGHTHOUSE": "http://10.0.0.1:29510"},
        ),
    ],
)
def test_torchft_is_told_the_group_and_the_lighthouse(changes: dict[str, object], expected: dict[str, str]) -> None:
    mine = place(rank=0, world_size=1, **changes)
    assert replica_environment(mine) == expected
    within = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1"}
    told = backend_of(BackendConfig(kind="torchft"), mine).environment()
    assert told == {**within, "ACCELERATE_TORCH_DEVICE": "cpu", **expected}


def test_torchft_that_is_not_there_says_how_to_have_it() -> None:
    if find_spec("torchft") is not None:
        pytest.skip("it is there")
    backend = backend_of(BackendConfig(kind="torchft"), place())
    with pytest.raises(ImportError, match="torchft is not installed where the ranks run: pip install"):
        backend.on_start(NoMeet())


class Collected:
    """A session's collectives, of one rank alone."""

    def collect(self, kind: str, value: bytes | None, timeout_s: float | None) -> list[bytes]:
        assert timeout_s == session.UNSET_TIMEOUT
        return [b"rank 0's" if value is None else value, kind.encode()]


def met(*, first: bool) -> MeetByLink:
    return MeetByLink(cast("session.Session", Collected()), first=first)


def test_ranks_meet_with_bytes() -> None:
    assert met(first=True)(b"here") == b"here"
    assert met(first=False)(None) == b"rank 0's"
    assert met(first=True).gather(cast("bytes", bytearray(b"me")))[0] == b"me"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("here", r"meet\(data\): give bytes, not str: text.encode\(\)"),
        ({"port": 1}, r"meet\(data\): give bytes, not dict: json.dumps"),
        (None, "rank 0 gives what all are told"),
    ],
)
def test_what_is_no_bytes_is_refused_where_it_is_given(given: object, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        met(first=True)(cast("bytes", given))


@pytest.mark.parametrize(
    ("given", "words"), [("me", "not str: text.encode"), (1, "not int"), (None, 'b"" for nothing')]
)
def test_what_is_no_bytes_is_not_gathered(given: object, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        met(first=False).gather(cast("bytes", given))


class NoMeet:
    """Nobody is met."""

    def __call__(self, data: bytes | None) -> bytes:
        raise AssertionError(data)

    def gather(self, data: bytes) -> list[bytes]:
        raise AssertionError(data)
