"""What a source keeps, when it speaks, and what it repeats."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runfold.events.base import Json
from runfold.events.facts import FactMessage, RankReturned, Reported
from runfold.events.limits import FACT_MESSAGE_MAX_BYTES, RESEND_AFTER_S, SPOOL_MAX_BYTES
from runfold.workers.spool import FLUSH_AT_BYTES, FactBytes, FactTooLargeError, Spool

FLUSH_S = 0.5


def report(index: int = 0, attempt: int = 1, text: str = "") -> Reported:
    metrics: dict[str, Json] = {"text": text} if text else {"loss": 0.5}
    return Reported(source="", incarnation=0, number=0, attempt=attempt, rank=0, life=1, index=index, metrics=metrics)


def returned(attempt: int = 1) -> RankReturned:
    return RankReturned(source="", incarnation=0, number=0, attempt=attempt, rank=0, life=1, reports=1)


def spool(*, joined: bool = True) -> Spool:
    made = Spool("digits-1", "local", flush_s=FLUSH_S)
    if joined:
        made.join(3, 0.0)
    return made


def numbers(message: FactBytes | None) -> list[int]:
    if message is None:
        return []
    return [fact.number for fact in msgspec.json.decode(message.data, type=FactMessage).facts]


def taken(source: Spool, now: float) -> FactBytes:
    message = source.message(now)
    assert message is not None
    source.acked(message, now)
    return message


def test_a_message_reads_as_a_fact_message() -> None:
    source = spool()
    source.add(report(), 0.0)
    source.add(returned(), 0.0)
    message = source.message(0.0)
    assert message is not None
    read = msgspec.json.decode(message.data, type=FactMessage)
    assert (read.v, read.kind, read.run) == (1, "facts", "digits-1")
    assert [(f.source, f.incarnation, f.number) for f in read.facts] == [("local", 3, 1), ("local", 3, 2)]
    assert msgspec.json.encode(read) == message.data


def test_nothing_is_said_before_the_incarnation_is_known() -> None:
    source = spool(joined=False)
    source.add(returned(), 0.0)
    assert source.message(10.0) is None
    assert not source.settled
    source.join(2, 11.0)
    assert numbers(source.message(11.0)) == [1]


def test_reports_wait_a_moment_and_go_together() -> None:
    source = spool()
    source.add(report(0), 0.0)
    source.add(report(1), 0.3)
    assert source.message(0.4) is None
    assert source.wake_at(0.4) == FLUSH_S
    assert numbers(source.message(FLUSH_S)) == [1, 2]


def test_reports_go_at_once_when_they_are_many() -> None:
    source = spool()
    source.add(report(0, text="x" * FLUSH_AT_BYTES), 0.0)
    assert numbers(source.message(0.0)) == [1]


def test_what_changes_a_decision_goes_at_once_and_takes_the_rest_along_in_order() -> None:
    source = spool()
    source.add(report(0), 0.0)
    source.add(returned(), 0.0)
    assert numbers(source.message(0.0)) == [1, 2]


def test_one_message_is_outstanding_and_repeated_byte_for_byte() -> None:
    source = spool()
    source.add(returned(), 0.0)
    first = source.message(0.0)
    source.add(returned(), 1.0)
    assert source.message(1.0) is first
    assert first is not None
    source.acked(first, 2.0)
    assert numbers(source.message(2.0)) == [2]


def test_messages_hold_facts_of_one_attempt_only() -> None:
    source = spool()
    for attempt in (1, 1, 2):
        source.add(returned(attempt), 0.0)
    assert (taken(source, 0.0).attempt, taken(source, 0.0).attempt) == (1, 2)
    assert source.settled


def test_no_message_is_over_the_limit_and_none_is_left_out() -> None:
    source = spool()
    for index in range(20):
        source.add(report(index, text="x" * 50_000), 0.0)
    seen: list[int] = []
    while not source.settled:
        message = taken(source, 1.0)
        assert len(message.data) <= FACT_MESSAGE_MAX_BYTES
        seen += numbers(message)
    assert seen == list(range(1, 21))


def test_a_fact_that_fits_nowhere_is_refused_by_name_and_takes_no_number() -> None:
    source = spool()
    with pytest.raises(FactTooLargeError, match=r"Reported: \d+ bytes, more than fact_message_max_bytes"):
        source.add(report(text="x" * FACT_MESSAGE_MAX_BYTES), 0.0)
    source.add(returned(), 0.0)
    assert numbers(source.message(0.0)) == [1]


def test_what_is_folded_is_forgotten() -> None:
    source = spool()
    for _ in range(3):
        source.add(returned(), 0.0)
    taken(source, 0.0)
    source.folded(2, 0.1)
    assert source.number == 3
    assert source.size_bytes > 0
    source.folded(3, 0.2)
    assert source.size_bytes == 0
    assert source.wake_at(0.3) is None


def test_what_is_folded_needs_no_acknowledgement() -> None:
    source = spool()
    source.add(returned(), 0.0)
    assert source.message(0.0) is not None
    source.folded(1, 0.1)
    assert source.settled
    assert source.message(0.2) is None


def test_what_a_living_controller_lacks_is_said_again_from_the_first_missing_number() -> None:
    source = spool()
    for _ in range(3):
        source.add(returned(), 0.0)
        taken(source, 0.0)
    source.folded(1, 1.0)
    assert source.message(1.0 + RESEND_AFTER_S - 0.1) is None
    assert source.wake_at(2.0) == 1.0 + RESEND_AFTER_S
    again = source.message(1.0 + RESEND_AFTER_S)
    assert numbers(again) == [2, 3]


def test_to_a_silent_controller_one_message_is_said_again_and_ever_more_rarely() -> None:
    source = spool()
    for index in range(10):
        source.add(report(index, text="x" * 60_000), 0.0)
    while not source.settled:
        taken(source, 1.0)
    assert taken(source, 1.0 + RESEND_AFTER_S).first == 1
    assert source.settled
    assert source.message(1.0 + 2 * RESEND_AFTER_S) is None
    assert taken(source, 1.0 + 3 * RESEND_AFTER_S).first == 1


def test_new_facts_follow_a_repeat() -> None:
    source = spool()
    source.add(returned(), 0.0)
    taken(source, 0.0)
    again = source.message(RESEND_AFTER_S)
    source.add(returned(), RESEND_AFTER_S)
    assert numbers(again) == [1]
    assert again is not None
    source.acked(again, RESEND_AFTER_S)
    assert numbers(source.message(RESEND_AFTER_S)) == [2]


def test_it_is_full_at_its_limit_and_takes_more_once_something_is_folded() -> None:
    source = spool()
    while not source.full:
        source.add(report(text="x" * 200_000), 0.0)
    assert source.size_bytes >= SPOOL_MAX_BYTES
    source.folded(source.number, 1.0)
    assert not source.full


@given(st.data())
def test_every_number_arrives_whatever_is_lost(data: st.DataObject) -> None:
    """A broker that forgets and a controller that hears late: in the end all is folded, in order."""
    source = spool()
    now, folded, said = 0.0, 0, 0
    for _ in range(data.draw(st.integers(1, 40))):
        now += data.draw(st.sampled_from([0.0, 0.1, 1.0, RESEND_AFTER_S]))
        match data.draw(st.sampled_from(["report", "return", "publish", "lose", "tell"])):
            case "report":
                source.add(report(said), now)
                said += 1
            case "return":
                source.add(returned(), now)
                said += 1
            case "publish" | "lose" as what:
                if (message := source.message(now)) is not None:
                    if what == "publish" and message.first <= folded + 1:
                        folded = max(folded, message.last)
                    source.acked(message, now)
            case _:
                source.folded(folded, now)
    for _ in range(200):
        now += RESEND_AFTER_S * 13
        while (message := source.message(now)) is not None:
            assert [*range(message.first, message.last + 1)] == numbers(message)
            if message.first <= folded + 1:
                folded = max(folded, message.last)
            source.acked(message, now)
        source.folded(folded, now)
        if source.size_bytes == 0:
            break
    assert folded == said == source.number


def test_an_incarnation_is_taken_once() -> None:
    source = spool()
    source.join(9, 1.0)
    assert source.incarnation == 3


def test_an_acknowledgement_of_something_else_changes_nothing() -> None:
    source = spool()
    source.add(returned(), 0.0)
    message = source.message(0.0)
    assert message is not None
    source.acked(message._replace(last=7), 0.0)
    assert source.message(0.0) is message


def test_a_repeat_ends_where_the_controller_has_caught_up() -> None:
    source = spool()
    for index in range(8):
        source.add(report(index, text="x" * 60_000), 0.0)
    while not source.settled:
        taken(source, 0.0)
    source.folded(1, 1.0)
    first = source.message(1.0 + RESEND_AFTER_S)
    assert numbers(first) == [2, 3, 4, 5]
    assert source.wake_at(2.0 + RESEND_AFTER_S) == 2.0 + RESEND_AFTER_S
    source.folded(6, 2.0 + RESEND_AFTER_S)
    assert numbers(source.message(2.0 + RESEND_AFTER_S)) == [7, 8]
    source.folded(8, 3.0 + RESEND_AFTER_S)
    assert source.message(9.0 + RESEND_AFTER_S) is None
    assert source.settled
