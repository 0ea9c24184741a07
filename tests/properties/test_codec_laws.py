"""Bytes: what goes out comes back; what is newer is kept or refused, never half understood."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runfold.events.entry import Entry, NotAnEntry, decode_entry, encode_entry, hash_entry, unknown_kinds
from runfold.events.facts import FactMessage
from runfold.events.values import Unencodable, pack, unpack
from support.strategies import ENTRIES, FACTS, USER_VALUES, raw, same


@given(USER_VALUES)
@example([math.nan, math.inf, -math.inf, -0.0, 2**53 + 1, -(2**70), {"float": "nan"}, {"int": "1"}, {"dict": {}}])
def test_user_values_survive_the_wire(value: object) -> None:
    sent = msgspec.json.encode(pack(value))
    assert same(unpack(msgspec.json.decode(sent)), value)


@given(st.floats(), st.integers(-(2**63), 2**63 - 1))
def test_numpy_scalars_are_numbers(number: float, count: int) -> None:
    packed = pack({"a": np.float64(number), "b": np.int64(count), "c": np.array(number), "d": np.bool_(True)})
    assert same(unpack(packed), {"a": number, "b": count, "c": number, "d": True})


@given(st.recursive(st.sampled_from([b"x", 1j, object()]), lambda inner: st.lists(inner, min_size=1, max_size=2)))
def test_what_cannot_be_recorded_is_named(value: object) -> None:
    with pytest.raises(Unencodable) as found:
        pack({"metrics": value})
    assert found.value.path.startswith("$.metrics")


def test_what_json_cannot_say_is_named() -> None:
    for value in ("half a \ud800", {"half a \ud800": 1}, 10**5000, {1: 2}):
        with pytest.raises(Unencodable, match=r"\$\.x"):
            pack({"x": value})


@given(st.dictionaries(st.sampled_from(["float", "int", "dict"]), st.text(max_size=4) | st.integers(), max_size=1))
def test_what_only_looks_packed_is_taken_as_it_is(value: dict[str, str | int]) -> None:
    read = unpack(msgspec.json.decode(msgspec.json.encode(value)))
    assert read == value or isinstance(read, int | float)


@given(ENTRIES)
def test_entries_come_back_as_they_were(entry: Entry) -> None:
    data = encode_entry(entry)
    assert decode_entry(data) == entry
    assert encode_entry(decode_entry(data)) == data
    assert len(hash_entry(data)) == 64
    assert unknown_kinds(data) == ()


@given(st.lists(FACTS, max_size=4))
def test_fact_messages_come_back_as_they_were(facts: list[object]) -> None:
    message = FactMessage(run="r", facts=tuple(facts))  # type: ignore[arg-type]  # drawn from the same type
    assert msgspec.json.decode(msgspec.json.encode(message), type=FactMessage) == message


@given(ENTRIES, st.integers(0, 3), st.integers(0, 3))
def test_kinds_and_fields_of_newer_versions_are_kept_and_passed_over(entry: Entry, i: int, k: int) -> None:
    fields = raw(entry)
    inputs = msgspec.json.decode(fields["inputs"], type=list[msgspec.Raw])
    transitions = msgspec.json.decode(fields["transitions"], type=list[msgspec.Raw])
    stranger = msgspec.Raw(b'{"kind": "rank_levitated", "height": 3}')
    inputs.insert(min(i, len(inputs)), stranger)
    transitions.insert(min(k, len(transitions)), stranger)
    newer = {**fields, "inputs": inputs, "transitions": transitions, "mood": msgspec.Raw(b'"sunny"')}
    data = msgspec.json.encode(newer)
    assert decode_entry(data) == entry
    assert [(found.known_as, found.raw) for found in unknown_kinds(data)] == [("rank_levitated", bytes(stranger))] * 2


@given(ENTRIES)
def test_an_older_envelope_is_raised_to_the_present_one(entry: Entry) -> None:
    fields = raw(entry)
    older = {name: value for name, value in fields.items() if name not in ("by", "epoch")}
    data = msgspec.json.encode({**older, "v": 0, "controller": entry.by})
    assert decode_entry(data) == msgspec.structs.replace(entry, epoch=1)


@given(ENTRIES, st.integers(2, 99))
def test_an_envelope_of_a_version_to_come_is_refused(entry: Entry, version: int) -> None:
    with pytest.raises(NotAnEntry, match=f"version {version} cannot be read"):
        decode_entry(encode_entry(msgspec.structs.replace(entry, v=version)))


@given(st.binary(max_size=40) | ENTRIES.map(lambda entry: encode_entry(entry)[:-3]))
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b'{"v": 1, "inputs": [{"no": "kind"}], "transitions": []}')
def test_anything_else_is_no_entry_and_nothing_worse(data: bytes) -> None:
    with pytest.raises(NotAnEntry):
        decode_entry(data)
