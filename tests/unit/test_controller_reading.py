"""The inbox read: facts and requests with their origin; whatever cannot be read is an input that says why."""

import msgspec
import pytest

from runfold.controller.ports import Delivered
from runfold.controller.reading import REASON_MAX_COUNT, read_delivered
from runfold.events.base import Json, Origin
from runfold.events.conclusions import MessageMalformed
from runfold.events.facts import FactMessage, RankStarted, Reported
from runfold.events.limits import FACT_MESSAGE_MAX_BYTES
from runfold.events.requests import AbortRun, Join
from runfold.events.subjects import Subjects

RUN = "digits-7k2"
FACTS = f"runfold.run.{RUN}.fact.1.local"


def delivered(subject: str, data: bytes, sequence: int = 7) -> Delivered:
    return Delivered("inbox-1", sequence, subject, data)


def read(subject: str, data: bytes) -> tuple[object, ...]:
    return read_delivered(delivered(subject, data), RUN, Subjects()).inputs


def report(number: int, metrics: dict[str, Json] | None = None, source: str = "local") -> Reported:
    return Reported(
        source=source, incarnation=1, number=number, attempt=1, rank=0, life=1, index=number, metrics=metrics
    )


def message(*facts: Reported | RankStarted, run: str = RUN) -> bytes:
    return msgspec.json.encode(FactMessage(run=run, facts=facts))


def reason(subject: str, data: bytes) -> str:
    (found,) = read(subject, data)
    assert isinstance(found, MessageMalformed)
    return found.reason


def test_facts_carry_where_they_came_from() -> None:
    reading = read_delivered(delivered(FACTS, message(report(1), report(2))), RUN, Subjects())
    assert [item.origin for item in reading.inputs if isinstance(item, Reported)] == [
        Origin(inbox=7, k=0),
        Origin(inbox=7, k=1),
    ]
    assert (reading.identity, reading.sequence) == ("inbox-1", 7)


def test_what_a_source_says_of_its_origin_is_not_believed() -> None:
    forged = msgspec.structs.replace(report(1), origin=Origin(inbox=1))
    (found,) = read(FACTS, message(forged))
    assert isinstance(found, Reported)
    assert found.origin == Origin(inbox=7, k=0)


def test_only_reports_linger() -> None:
    started = RankStarted(source="local", incarnation=1, number=2, attempt=1, rank=0, life=1, pid=1)
    subjects = Subjects()
    assert not read_delivered(delivered(FACTS, message(report(1))), RUN, subjects).decisive
    assert read_delivered(delivered(FACTS, message(report(1), started)), RUN, subjects).decisive
    assert not read_delivered(delivered(FACTS, b"?"), RUN, subjects).decisive
    abort = delivered(f"runfold.run.{RUN}.request.abort", b'{"id": "a1"}')
    assert read_delivered(abort, RUN, subjects).decisive


def test_requests_are_read_by_their_verb() -> None:
    assert read(f"runfold.run.{RUN}.request.abort", b'{"id": "a1", "reason": "enough"}') == (
        AbortRun(id="a1", reason="enough", origin=Origin(inbox=7)),
    )
    (join,) = read(f"runfold.run.{RUN}.request.join", b'{"id": "b", "source": "local", "boot": "b"}')
    assert isinstance(join, Join)


@pytest.mark.parametrize(
    ("verb", "data", "why"),
    [
        ("fly", b"{}", "no request is called 'fly'"),
        ("abort", b"", "not JSON"),
        ("abort", b"[]", "must be a table"),
        ("abort", b"{}", "the field id is missing"),
        ("abort", b'{"id": "a", "colour": "red"}', "$.colour: unknown field"),
        ("abort", b'{"id": ""}', "$.id: must have 1 to 128"),
        ("abort", b'{"id": "' + b"x" * 129 + b'"}', "$.id: must have 1 to 128"),
        ("abort", b'{"id": "a", "reason": "' + b"x" * 20_000 + b'"}', "request_max_bytes"),
        ("join", b'{"id": "a", "kind": "abort_run", "source": "s", "boot": "b"}', "Invalid value"),
    ],
)
def test_bad_requests_say_what_is_wrong(verb: str, data: bytes, why: str) -> None:
    assert why in reason(f"runfold.run.{RUN}.request.{verb}", data)


@pytest.mark.parametrize(
    ("subject", "data", "why"),
    [
        (FACTS, b"\xff\xfe", "JSON"),
        (FACTS, b"{", "truncated"),
        (FACTS, b'{"run": 1, "facts": []}', "Expected `str`"),
        (FACTS, b'{"run": "digits-7k2", "facts": [{"kind": "rank_flew"}]}', "rank_flew"),
        (FACTS, message(report(1), run="other"), "speaks of run 'other'"),
        (FACTS, message(report(1, source="elsewhere")), "source 'elsewhere' on the subject of 'local'"),
        (FACTS, b" " * (FACT_MESSAGE_MAX_BYTES + 1), "fact_message_max_bytes"),
        ("runfold.run.another.fact.1.local", message(report(1)), "none of this run's"),
        (f"runfold.run.{RUN}.fact.one.local", message(report(1)), "none of this run's"),
    ],
)
def test_bad_facts_say_what_is_wrong(subject: str, data: bytes, why: str) -> None:
    assert why in reason(subject, data)


@pytest.mark.parametrize("levels", [200, 900, 100_000])
def test_values_nested_too_deep_are_not_taken(levels: int) -> None:
    whole = message(report(1, {"x": 1}))
    deep = whole.replace(b'{"x":1}', b'{"x":' + b"[" * levels + b"]" * levels + b"}")
    assert "nested" in reason(FACTS, deep)


def test_a_reason_is_kept_short_whatever_was_sent() -> None:
    kind = "k" * 5000
    assert len(reason(FACTS, b'{"run": "r", "facts": [{"kind": "' + kind.encode() + b'"}]}')) <= REASON_MAX_COUNT
