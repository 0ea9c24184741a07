"""What the session refuses, and how it says so. No process: a socket pair stands for the runner."""

from __future__ import annotations

import math
import pickle
import socket
from typing import TYPE_CHECKING

import numpy as np
import pytest

from runfold.events.limits import COLLECTIVE_MAX_BYTES, VALUE_INLINE_MAX_BYTES
from runfold.workers import errors, payload, session
from runfold.workers.checkpoint import Checkpoint
from runfold.workers.frames import HEADER
from runfold.workers.link import FROM_RANK, Report, Start
from runfold.workers.ranklink import RankLink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def start() -> Start:
    return Start(
        run="digits",
        name="digits",
        attempt=1,
        rank=0,
        life=1,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        entrypoint="a:b",
    )


@pytest.fixture
def runner() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    session.activate(session.Session(RankLink(theirs), start()))
    yield ours
    session.activate(None)
    ours.close()
    theirs.close()


def read(runner: socket.socket) -> Report:
    (length,) = HEADER.unpack(runner.recv(HEADER.size, socket.MSG_WAITALL))
    message = FROM_RANK.decode(runner.recv(length, socket.MSG_WAITALL))
    assert isinstance(message, Report)
    return message


@pytest.mark.parametrize(
    "call",
    [
        lambda: session.report({"a": 1}),
        session.get_context,
        session.get_checkpoint,
        session.should_checkpoint,
        session.barrier,
        lambda: session.broadcast_from_rank_zero(1),
        lambda: session.all_gather(1),
    ],
)
def test_outside_of_a_training_function_everything_raises(call: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match="in a training function"):
        call()


def test_metrics_of_all_allowed_kinds_arrive_packed(runner: socket.socket) -> None:
    session.report(
        {
            "float": 0.5,
            "np": np.float32(0.25),
            "np_int": np.int64(3),
            "np_bool": np.bool_(True),
            "zero_d": np.array(1.5),
            "nan": math.nan,
            "big": 2**70,
            "text": "é",
            "none": None,
            "nested": {"list": [1, (2, 3)], "inf": -math.inf},
        }
    )
    assert read(runner).metrics == {
        "float": 0.5,
        "np": 0.25,
        "np_int": 3,
        "np_bool": True,
        "zero_d": 1.5,
        "nan": {"float": "nan"},
        "big": {"int": str(2**70)},
        "text": "é",
        "none": None,
        "nested": {"list": [1, [2, 3]], "inf": {"float": "-inf"}},
    }


def test_steps_are_taken_from_the_metrics_if_they_are_whole_numbers(runner: socket.socket) -> None:
    given: list[object] = [7, np.int32(8), 1.5, "9", True, 2**60]
    for step in given:
        session.report({"step": step})
    assert [read(runner).step for _ in given] == [7, 8, None, None, None, None]


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ({"loss": np.zeros(3)}, "metrics.loss"),
        ({"a": {"b": [1, object()]}}, r"metrics.a.b\[1\]"),
        ({"a": {1: 2}}, "key 1 of type int"),
        ({"a": "\ud800"}, "metrics.a is a string with half a character"),
        ({"a": ["ok", "x\udfff"]}, r"metrics.a\[1\] is a string"),
        ({"\ud800": 1}, "lone surrogate"),
        ({"a": b"bytes"}, "metrics.a"),
        ([1, 2], "must be a dict, not 'list'"),
        ("loss", "must be a dict, not 'str'"),
        ({"small": 1, "large": "x" * VALUE_INLINE_MAX_BYTES}, "the largest is metrics.large"),
    ],
)
def test_what_cannot_be_recorded_raises_in_the_caller_naming_the_key(
    runner: socket.socket, metrics: dict[str, object], says: str
) -> None:
    with pytest.raises(errors.MetricsError, match=says):
        session.report(metrics)
    # Nothing was sent, and the number was not used up.
    session.report({"fine": 1})
    assert read(runner).index == 0


def test_a_large_report_below_the_limit_is_sent(runner: socket.socket) -> None:
    session.report({"text": "x" * (VALUE_INLINE_MAX_BYTES - 100)})
    assert len(str(read(runner).metrics["text"])) == VALUE_INLINE_MAX_BYTES - 100


def test_checkpoints_are_refused_naming_what_is_missing(runner: socket.socket, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a Checkpoint, not object"):
        session.report({"a": 1}, checkpoint=object())  # type: ignore[arg-type]  # what the test is about
    with pytest.raises(ValueError, match="needs a checkpoint"):
        session.report({"a": 1}, validation=True)
    with pytest.raises(RuntimeError, match="no storage"):
        session.report({"a": 1}, checkpoint=Checkpoint.from_directory(tmp_path))
    with pytest.raises(RuntimeError, match="get_storage"):
        session.get_context().get_storage()
    session.report({"a": 1})
    assert read(runner).index == 0


@pytest.mark.usefixtures("runner")
def test_timeouts_and_sizes_of_collectives_are_checked_before_anything_is_sent() -> None:
    for timeout_s in (0, -3, math.nan):
        with pytest.raises(ValueError, match="timeout_s: must be more than 0"):
            session.barrier(timeout_s=timeout_s)
    with pytest.raises(errors.CollectiveTooLargeError, match="collective_max_bytes"):
        session.all_gather(bytes(COLLECTIVE_MAX_BYTES))


def test_a_runner_that_is_gone_is_an_error_that_says_so(runner: socket.socket) -> None:
    runner.close()
    with pytest.raises(errors.LinkError, match="runner of this rank is gone"):
        session.report({"a": 1})


@pytest.mark.parametrize(
    "error",
    [
        errors.CollectiveTimeoutError("barrier timed out", (1, 2), 5.0),
        errors.BroadcastCollectiveTimeoutError("broadcast timed out", (3,), None),
        errors.CollectivePeerError("rank 1 has returned"),
        errors.CollectiveTooLargeError("too large"),
        errors.MetricsError("metrics.a"),
        errors.LinkError("gone"),
        errors.NotAvailableError("later"),
    ],
)
def test_errors_survive_pickling(error: errors.RunfoldError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_values_of_collectives_may_be_anything_that_pickles() -> None:
    function = payload.unpickled(payload.pickled("all_gather", lambda x: x + 1))
    assert callable(function)
    assert function(1) == 2
