"""What a rank waited for is told with its next report, and with no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from runfold.workers import processes, waits
from runfold.workers.data import DataConfig, DatasetShard

PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    waits.taken()
    yield
    waits.taken()


def test_nothing_waited_is_nothing_told() -> None:
    assert waits.taken() == {}


def test_what_was_waited_is_summed_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.5, 20.0, 20.5])
    monkeypatch.setattr("runfold.workers.waits.time.monotonic", lambda: next(clock))
    with waits.waiting("checkpoint_save"):
        pass
    with pytest.raises(OSError, match="full"), waits.waiting("checkpoint_save"):
        raise OSError("full")
    waits.waited("data", 0.25)
    assert waits.taken() == {"checkpoint_save": 3.0, "data": 0.25}
    assert waits.taken() == {}


def test_each_item_of_an_iteration_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("runfold.workers.waits.time.monotonic", lambda: float(next(clock)))
    assert list(waits.timed("data", [1, 2])) == [1, 2]
    assert waits.taken() == {"data": 3.0}, "two items, and that there is no third"


def test_rows_of_a_data_set_are_waited_for() -> None:
    shard = DatasetShard("train", list(range(3)), rank=0, world=1, config=DataConfig())
    assert list(shard) == [0, 1, 2]
    assert list(shard.iter_batches(batch_size=2)) == [[0, 1], [2]]
    assert waits.taken()["data"] > 0


def test_what_takes_long_is_told_again_and_again_until_it_is_over(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told, twice = processes.tell, threading.Event()
    times = list[str]()

    def tell(text: str) -> None:
        told(text)
        times.append(text)
        if len(times) == 2:
            twice.set()

    monkeypatch.setattr(waits, "tell", tell)
    with waits.told_on("the upload of report 7", every_s=0.01):
        assert twice.wait(PATIENCE_S)
    # Nobody writes any more: what is read of a file while it is written to may be lost.
    assert capfd.readouterr().err.startswith(
        "runfold: the upload of report 7 has taken 0.01 s; it goes on\n"
        "runfold: the upload of report 7 has taken 0.02 s; it goes on\n"
    )
    with waits.told_on("what is over at once", every_s=60.0):
        pass
    assert "over at once" not in capfd.readouterr().err
