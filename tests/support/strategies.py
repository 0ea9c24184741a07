"""Values of any message type, made from the type itself, and packed user values."""

from __future__ import annotations

import math
from functools import cache

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from runfold.events.base import Json
from runfold.events.conclusions import AnyConclusion
from runfold.events.entry import GENESIS, AnyInput, Entry
from runfold.events.facts import AnyFact
from runfold.events.job import Job
from runfold.events.requests import AnyRequest
from runfold.events.transitions import AnyTransition
from support.asked import job

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
INT64 = st.integers(-(2**63), 2**63 - 1)

# What a user may report, before it is packed.
USER_VALUES: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(TEXT | st.sampled_from(["float", "int", "dict"]), inner, max_size=3)
    ),
    max_leaves=8,
)

# What stands on the wire where any JSON value may stand.
JSON_VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=3,
)


def same(one: object, other: object) -> bool:
    """Whether two user values are the same: NaN is itself, 1 is not True, 0.0 is not -0.0."""
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@cache
def messages(kind: object) -> st.SearchStrategy[object]:
    """Values of a message type or a union of them."""
    return _of(inspect.type_info(kind))


def _of(info: inspect.Type) -> st.SearchStrategy[object]:
    match info:
        case inspect.StructType(cls=cls) if cls is Job:
            return st.builds(job, st.integers(1, 8))
        case inspect.StructType(cls=cls, fields=fields):
            parts = {
                field.name: st.deferred(lambda field=field: _of(field.type))  # type: ignore[misc]  # bound per field
                for field in fields
            }
            return st.builds(cls, **parts)
        case inspect.UnionType(types=types):
            return st.one_of(*(_of(one) for one in types))
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.VarTupleType(item_type=item):
            return st.lists(_of(item), max_size=3).map(tuple)
        case inspect.TupleType(item_types=items):
            return st.tuples(*(_of(item) for item in items))
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_of(key), _of(value), max_size=2)
        case _:
            return _scalar(info)


def _scalar(info: inspect.Type) -> st.SearchStrategy[object]:
    match info:
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            return INT64
        case inspect.FloatType():
            return FINITE
        case inspect.StrType():
            return TEXT
        case inspect.AnyType():
            return JSON_VALUES
        case _:
            raise NotImplementedError(f"no strategy for {info}")


FACTS: st.SearchStrategy[AnyFact] = messages(AnyFact)  # type: ignore[assignment]  # made from the type
INPUTS: st.SearchStrategy[AnyInput] = messages(AnyFact | AnyRequest | AnyConclusion)  # type: ignore[assignment]  # made from the type
TRANSITIONS: st.SearchStrategy[AnyTransition] = messages(AnyTransition)  # type: ignore[assignment]  # made from the type

ENTRIES: st.SearchStrategy[Entry] = st.builds(
    Entry,
    v=st.just(1),
    run=TEXT,
    n=st.integers(0, 2**40),
    t=FINITE,
    at=TEXT,
    by=TEXT,
    epoch=st.integers(0, 2**40),
    cursor=st.none() | st.tuples(TEXT, st.integers(0, 2**40)),
    inputs=st.lists(INPUTS, max_size=3).map(tuple),
    transitions=st.lists(TRANSITIONS, max_size=3).map(tuple),
    prev=st.just(GENESIS),
)


def raw(value: object) -> dict[str, msgspec.Raw]:
    """The fields of a message as they stand on the wire."""
    return msgspec.json.decode(msgspec.json.encode(value), type=dict[str, msgspec.Raw])
