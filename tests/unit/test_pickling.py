"""What cannot be sent to the ranks is told by the name of what is to blame."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable

import pytest

from runfold.errors import UsageError
from runfold.pickling import pickle_function, pickle_object

LOCK = threading.Lock()


def uses_the_lock() -> None:
    LOCK.acquire()


def calls_it() -> None:
    uses_the_lock()


def closes_over() -> Callable[[], object]:
    held = {"model": 1, "stream": threading.Lock()}
    return lambda: held


class Model:
    """Something of a user's that holds what cannot travel."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def train(self) -> None:
        """Train."""


@pytest.mark.parametrize(
    ("function", "blamed"),
    [
        (uses_the_lock, "the global 'LOCK' (lock)"),
        (calls_it, "the global 'uses_the_lock' → the global 'LOCK' (lock)"),
        (closes_over(), "its variable 'held' → the value of 'stream' (lock)"),
        (Model().train, "the object of Model.train → the attribute 'lock' (lock)"),
    ],
)
def test_the_variable_that_is_to_blame_is_named(function: Callable[..., object], blamed: str) -> None:
    with pytest.raises(UsageError) as refused:
        pickle_function(function)
    told = str(refused.value)
    assert blamed in told
    assert function.__qualname__ in told
    assert "Nothing was published" in told


def test_parts_of_what_is_no_function_are_named_too() -> None:
    with pytest.raises(UsageError, match=r"item 1 → the value of 'train' \(lock\)"):
        pickle_object([1, {"train": threading.Lock()}])


def test_what_can_be_pickled_is() -> None:
    assert pickle.loads(pickle_object({"a": 1})) == {"a": 1}
