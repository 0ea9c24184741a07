"""Strict reading: what does not belong is refused, with the path of the offender."""

from __future__ import annotations

import msgspec
import pytest

from runfold.events.base import Json
from runfold.events.job import Job
from runfold.events.limits import REFUSAL_PATH_MAX_CHARS, REFUSAL_REASON_MAX_CHARS, REQUEST_DEPTH_MAX_COUNT
from runfold.events.requests import AbortRun, AnyRequest, ResizeRun
from runfold.events.strict import INTEGER_GREATEST, INTEGER_LEAST, Refused, decode_strict, refuse_unknown


class Inner(msgspec.Struct, frozen=True):
    """One field."""

    size: int = 0


class Outer(msgspec.Struct, frozen=True):
    """Everything that a field can be."""

    one: Inner = Inner()
    many: list[Inner] = []
    some: tuple[Inner, ...] = ()
    maybe: Inner | None = None
    free: dict[str, int] = {}


@pytest.mark.parametrize(
    ("data", "path", "reason"),
    [
        (b"nonsense", "$", "not JSON"),
        (b"\xff\xfe", "$", "not JSON"),
        (b"[1]", "$", "must be a table of names and values, not a list"),
        (b'{"one": 3}', "$.one", "must be a table of names and values, not a whole number"),
        (b'{"two": 3}', "$.two", "unknown field; known are free, many, maybe, one, some"),
        (b'{"one": {"sise": 3}}', "$.one.sise", "unknown field; known are size"),
        (b'{"many": [{}, {"sise": 3}]}', "$.many[1].sise", "unknown field"),
        (b'{"some": [{"sise": 3}]}', "$.some[0].sise", "unknown field"),
        (b'{"maybe": {"sise": 3}}', "$.maybe.sise", "unknown field"),
        (b'{"maybe": {"size": "3"}}', "$.maybe.size", "must be a whole number, not text"),
    ],
)
def test_what_does_not_belong_is_named(data: bytes, path: str, reason: str) -> None:
    with pytest.raises(Refused) as found:
        decode_strict(data, Outer)
    assert found.value.path == path
    assert found.value.reason.startswith(reason)
    assert str(found.value).startswith(f"{path}: ")


class Needing(msgspec.Struct, frozen=True):
    """A field that must be there."""

    entrypoint: str
    inner: Inner = Inner()


@pytest.mark.parametrize(
    ("data", "path", "reason"),
    [
        (b'{"fn": "a:b"}', "$.fn", "unknown field; known are entrypoint, inner"),
        (b'{"inner": {"sise": 3}}', "$.inner.sise", "unknown field"),
        (b'{"inner": {}}', "$", "the field entrypoint is missing"),
    ],
)
def test_a_field_of_another_name_is_named_rather_than_the_one_that_is_missing(
    data: bytes, path: str, reason: str
) -> None:
    with pytest.raises(Refused) as found:
        decode_strict(data, Needing)
    assert found.value.path == path
    assert found.value.reason.startswith(reason)


def test_what_is_free_stays_free_and_none_is_none() -> None:
    read = decode_strict(b'{"free": {"anything": 1}, "maybe": null, "one": {"size": 2}}', Outer)
    assert (read.free, read.maybe, read.one.size) == ({"anything": 1}, None, 2)


def test_what_is_nested_without_end_is_refused() -> None:
    with pytest.raises(Refused, match="nested too deeply"):
        decode_strict(b'{"free": ' + b"[" * 100_000, object)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a": ', b"}")])
def test_what_a_reader_with_less_stack_could_not_follow_is_refused(opening: bytes, closing: bytes) -> None:
    def nested(levels: int) -> bytes:
        return opening * levels + b"1" + closing * levels

    assert decode_strict(nested(REQUEST_DEPTH_MAX_COUNT), object)
    for levels in (REQUEST_DEPTH_MAX_COUNT + 1, 500, 900):
        with pytest.raises(Refused, match="request_depth_max_count"):
            decode_strict(nested(levels), object)


@pytest.mark.parametrize(
    ("written", "path"),
    [(b'{"a": [1, {"b": %d}]}', "$.a[1].b"), (b"[%d]", "$[0]"), (b"%d", "$"), (b'{"free": {"x": %d}}', "$.free.x")],
)
def test_an_integer_that_a_rank_cannot_be_sent_is_refused_where_it_stands(written: bytes, path: str) -> None:
    for number in (INTEGER_LEAST, INTEGER_GREATEST):
        assert msgspec.msgpack.encode(decode_strict(written % number, object))
    for number in (INTEGER_LEAST - 1, INTEGER_GREATEST + 1, 10**300):
        with pytest.raises(Refused, match="an integer beyond 64 bits") as refused:
            decode_strict(written % number, object)
        assert refused.value.path == path


def test_a_refusal_quotes_no_more_than_it_may() -> None:
    with pytest.raises(Refused) as found:
        decode_strict(msgspec.json.encode({"two" * 100_000: 1}), Outer)
    assert len(found.value.path) <= REFUSAL_PATH_MAX_CHARS + 3
    long = Refused("$.name", "'" + "n" * 100_000 + "' is no name")
    assert len(long.reason) <= REFUSAL_REASON_MAX_CHARS + 3
    assert long.reason.endswith("is no name")


def test_of_a_union_the_tagged_one_counts() -> None:
    aborting = msgspec.json.encode(AbortRun(id="r1", reason="x"))
    assert decode_strict(aborting, AbortRun) == AbortRun(id="r1", reason="x")
    refuse_unknown({"kind": "abort_run", "id": "r1", "reason": "x"}, AnyRequest, "$")
    with pytest.raises(Refused, match=r"\$\.num_workers: unknown field"):
        refuse_unknown({"kind": "abort_run", "id": "r1", "num_workers": 3}, AnyRequest, "$")
    with pytest.raises(Refused, match=r"\$\.reason: unknown field"):
        refuse_unknown({"kind": "resize_run", "id": "r1", "reason": "x"}, ResizeRun | None, "$")
    refuse_unknown("text", AnyRequest, "$")
    refuse_unknown("text", AbortRun, "$")


@pytest.mark.parametrize(
    ("document", "path", "reason"),
    [
        ({}, "$", "the field entrypoint is missing"),
        ({"scaling": {"placement_strategy": "FOO"}}, "$.scaling.placement_strategy", "must be one of PACK, SPREAD"),
        (
            {"checkpoint": {"checkpoint_score_order": "top"}},
            "$.checkpoint.checkpoint_score_order",
            "not 'top'",
        ),
        ({"failure": {"max_failures": "x"}}, "$.failure.max_failures", "must be a whole number, not text"),
        ({"name": 3}, "$.name", "must be text or null, not a whole number"),
    ],
)
def test_reasons_are_in_the_words_of_people(document: dict[str, Json], path: str, reason: str) -> None:
    whole = {"entrypoint": "module:train", **document} if document else {}
    with pytest.raises(Refused) as refused:
        decode_strict(msgspec.json.encode(whole), Job)
    assert refused.value.path == path
    assert reason in refused.value.reason
    assert "`" not in refused.value.reason


def test_an_unknown_field_of_a_validation_is_named_where_it_stands() -> None:
    with pytest.raises(Refused, match=r"\$\.validation\.fn: unknown field; known are arguments, entrypoint"):
        decode_strict(b'{"entrypoint": "a:b", "validation": {"fn": "a:c"}}', Job)
