"""Which collectives come about, and what is said when one cannot."""

from __future__ import annotations

import pytest

from runfold.workers import matching
from runfold.workers.link import Collect, Collected, CollectiveKind, Refused
from runfold.workers.matching import Matcher, Outcome


def barrier(number: int = 1, timeout_s: float | None = None) -> Collect:
    return Collect(number, "barrier", None, timeout_s)


def gather(number: int, value: bytes) -> Collect:
    return Collect(number, "all_gather", value, None)


def only(outcomes: list[Outcome]) -> Outcome:
    (outcome,) = outcomes
    return outcome


def refusal(outcomes: list[Outcome]) -> Refused:
    answer = only(outcomes).answer
    assert isinstance(answer, Refused)
    return answer


def test_nobody_is_let_go_before_the_last_one_is_there() -> None:
    matcher = Matcher(3)
    assert matcher.arrive(0, barrier(), 0.0) == []
    assert matcher.arrive(2, barrier(), 1.0) == []
    assert matcher.waiting() == {0: ("barrier", 1, (1,)), 2: ("barrier", 1, (1,))}
    assert only(matcher.arrive(1, barrier(), 2.0)) == Outcome((0, 1, 2), Collected(1, []))
    assert matcher.waiting() == {}


def test_values_are_gathered_in_the_order_of_ranks_not_of_arrival() -> None:
    matcher = Matcher(3)
    for rank in (2, 0):
        matcher.arrive(rank, gather(1, bytes([rank])), 0.0)
    assert only(matcher.arrive(1, gather(1, b"\x01"), 0.0)).answer == Collected(1, [b"\x00", b"\x01", b"\x02"])


def test_a_broadcast_holds_the_one_value_that_was_given() -> None:
    matcher = Matcher(2)
    matcher.arrive(1, Collect(1, "broadcast_from_rank_zero", None, None), 0.0)
    last = matcher.arrive(0, Collect(1, "broadcast_from_rank_zero", b"x", None), 0.0)
    assert only(last).answer == Collected(1, [b"x"])


def test_a_fast_rank_may_be_collectives_ahead_of_nobody() -> None:
    matcher = Matcher(1)
    assert [only(matcher.arrive(0, barrier(n), 0.0)).answer for n in (1, 2)] == [Collected(1, []), Collected(2, [])]


@pytest.mark.parametrize("late", ["barrier", "all_gather"])
def test_two_kinds_under_one_number_are_refused_to_all_naming_both(late: CollectiveKind) -> None:
    matcher = Matcher(3)
    matcher.arrive(1, barrier(4), 0.0)
    outcomes = matcher.arrive(0, gather(4, b""), 0.0)
    assert only(outcomes).ranks == (0, 1)
    answer = refusal(outcomes)
    assert answer.error == "mismatch"
    assert "rank 1 is in barrier #4, rank 0 in all_gather #4" in answer.message
    # One that comes later is told the same, whatever it calls.
    assert only(matcher.arrive(2, Collect(4, late, None, None), 9.0)) == Outcome((2,), answer)


def test_a_timeout_counts_from_the_ranks_own_call_and_names_the_missing() -> None:
    matcher = Matcher(4)
    matcher.arrive(0, barrier(timeout_s=10), 100.0)
    matcher.arrive(3, barrier(timeout_s=5), 103.0)
    assert matcher.next_deadline_s() == 108.0
    assert matcher.expire(107.9) == []
    outcomes = matcher.expire(108.0)
    assert only(outcomes).ranks == (0, 3)
    answer = refusal(outcomes)
    assert (answer.error, answer.missing_ranks) == ("timeout", (1, 2))
    assert answer.message == "barrier #1 timed out after 8.0 s: ranks 1, 2 did not arrive"
    assert matcher.next_deadline_s() is None
    assert matcher.expire(200.0) == []


def test_after_a_refusal_the_next_number_starts_afresh() -> None:
    matcher = Matcher(2)
    matcher.arrive(0, barrier(1, timeout_s=1), 0.0)
    matcher.expire(1.0)
    assert matcher.arrive(0, barrier(2), 1.0) == []
    assert only(matcher.arrive(1, barrier(1), 2.0)).ranks == (1,)
    assert only(matcher.arrive(1, barrier(2), 2.0)).answer == Collected(2, [])


def test_a_rank_that_leaves_is_named_to_those_that_wait_for_it() -> None:
    matcher = Matcher(3)
    matcher.arrive(0, barrier(7), 0.0)
    answer = refusal(matcher.leave(1, "has returned"))
    assert (answer.error, answer.missing_ranks) == ("peer", (1,))
    assert answer.message == "barrier #7 cannot come about: rank 1 has returned and will not take part in it"
    assert refusal(matcher.arrive(2, barrier(7), 0.0)) == answer


@pytest.mark.parametrize("beyond", [0, 3])
def test_so_many_ranks_are_named_and_the_others_counted(beyond: int) -> None:
    others = matching.RANKS_NAMED_MAX + beyond
    late = Matcher(others + 1)
    late.arrive(0, barrier(timeout_s=1.0), 0.0)
    missing = refusal(late.expire(1.0)).message
    assert (f", {matching.RANKS_NAMED_MAX}" in missing, "and 3 more" in missing) == (True, bool(beyond))
    gone = Matcher(others + 1)
    for rank in range(1, others + 1):
        gone.leave(rank, "has failed")
    text = refusal(gone.arrive(0, barrier(), 0.0)).message
    assert text.count("has failed") == matching.RANKS_NAMED_MAX
    assert ("and 3 more are gone and will not" in text) == bool(beyond)


def test_a_collective_entered_after_a_rank_has_left_is_refused_at_once() -> None:
    matcher = Matcher(3)
    assert matcher.leave(2, "has failed") == []
    assert matcher.leave(2, "was killed") == []
    assert "rank 2 has failed" in refusal(matcher.arrive(0, barrier(), 0.0)).message


def test_what_a_rank_gave_before_it_left_still_counts() -> None:
    matcher = Matcher(2)
    matcher.arrive(1, gather(1, b"b"), 0.0)
    assert matcher.leave(1, "has returned") == []
    assert only(matcher.arrive(0, gather(1, b"a"), 0.0)).answer == Collected(1, [b"a", b"b"])


def test_values_too_large_together_are_refused_naming_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "GATHER_MAX_BYTES", 10)
    matcher = Matcher(2)
    matcher.arrive(0, gather(1, bytes(6)), 0.0)
    answer = refusal(matcher.arrive(1, gather(1, bytes(6)), 0.0))
    assert answer.error == "too_large"
    assert "12 bytes together, over gather_max_bytes (10)" in answer.message


def test_many_missing_ranks_are_counted_after_the_first_few() -> None:
    matcher = Matcher(100)
    matcher.arrive(0, barrier(timeout_s=1), 0.0)
    assert "ranks 1, 2, 3" in (text := refusal(matcher.expire(1.0)).message)
    assert "and 83 more did not arrive" in text
