"""User values survive the wire, and what cannot be written is named."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runfold.events.base import Json
from runfold.events.values import Unencodable, pack, unpack

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
user_values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.sampled_from(["float", "int", "dict"]), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


@given(user_values)
def test_any_json_value_and_nan_and_inf_and_big_integers_come_back_the_same(value: Json) -> None:
    wire = msgspec.json.encode(pack(value))
    assert same(unpack(msgspec.json.decode(wire)), value)


@pytest.mark.parametrize(
    ("value", "number"), [(np.float32(0.5), 0.5), (np.int64(3), 3), (np.array(2.0), 2.0), (np.bool_(True), True)]
)
def test_numpy_scalars_and_0d_arrays_are_numbers(value: object, number: object) -> None:
    assert same(pack({"x": value}), {"x": number})


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {"b": object()}}, "$.a.b"),
        ({"a": [1, {2}]}, "$.a[1]"),
        ({"w": np.zeros(3)}, "$.w"),
        ({"w": np.zeros(1)}, "$.w"),
        ({1: 2}, "$"),
    ],
)
def test_what_cannot_be_written_is_named_by_its_key(value: object, path: str) -> None:
    with pytest.raises(Unencodable) as error:
        pack(value)
    assert error.value.path == path


def test_nesting_has_a_limit() -> None:
    value: object = 1
    for _ in range(40):
        value = [value]
    with pytest.raises(Unencodable, match="nested deeper than"):
        pack(value)
