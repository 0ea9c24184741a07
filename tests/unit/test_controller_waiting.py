"""What waits for the next entry: when it is due, what of it is chosen, where the cursor goes."""

from runfold.controller.reading import Reading
from runfold.controller.waiting import INPUTS_MAX_BYTES, WAITING_MAX_COUNT, Waiting
from runfold.events.base import Cause
from runfold.events.conclusions import Decider, MessageMalformed
from runfold.events.entry import AnyInput
from runfold.events.facts import RankStarted, Reported
from runfold.events.limits import INPUTS_PER_TURN_MAX, METRICS_LINGER_S
from runfold.events.state import Running, RunState, Source
from support.histories import JOB

ID = "inbox-1"


def state(folded: int = 0, cursor: tuple[str, int] | None = None) -> RunState:
    return RunState(
        run="digits-7k2",
        job=JOB,
        digest="d",
        jobs_sequence=1,
        n=5,
        t=10.0,
        phase=Running(since_t=1.0, reason="all ranks started", cause=Cause(input=0)),
        epoch=1,
        controller="ctl-0",
        decider=Decider(version="0"),
        attempt=1,
        sources={"local": Source(boot="b", incarnation=1, folded=folded)},
        cursor=cursor,
    )


def report(number: int, incarnation: int = 1, source: str = "local") -> Reported:
    return Reported(source=source, incarnation=incarnation, number=number, attempt=1, rank=0, life=1, index=number - 1)


def reading(sequence: int, *inputs: AnyInput, size: int = 100, decisive: bool = False) -> Reading:
    return Reading(ID, sequence, inputs, size, decisive)


def started(number: int) -> RankStarted:
    return RankStarted(source="local", incarnation=1, number=number, attempt=1, rank=0, life=1, pid=9)


def numbers(inputs: tuple[AnyInput, ...]) -> list[int]:
    return [item.number for item in inputs if isinstance(item, Reported | RankStarted)]


def test_nothing_waiting_is_never_due() -> None:
    assert Waiting(None).due_t is None


def test_reports_linger_and_anything_decisive_takes_them_along_at_once() -> None:
    waiting = Waiting(None)
    waiting.add(reading(1, report(1)), 10.0)
    waiting.add(reading(2, report(2)), 10.3)
    assert waiting.due_t == 10.0 + METRICS_LINGER_S
    waiting.add(reading(3, started(3), decisive=True), 10.4)
    assert waiting.due_t == 10.4
    assert numbers(waiting.select(state()).inputs) == [1, 2, 3]


def test_enough_reports_do_not_linger() -> None:
    waiting = Waiting(None)
    waiting.add(reading(1, *(report(i) for i in range(1, INPUTS_PER_TURN_MAX + 1))), 10.0)
    assert waiting.due_t == 10.0


def test_repeats_are_left_out_and_their_messages_used_up() -> None:
    waiting = Waiting((ID, 3))
    waiting.add(reading(4, report(1), report(2)), 0.0)
    batch = waiting.select(state(folded=2))
    assert batch.inputs == ()
    assert (batch.whole, batch.cursor, batch.gap) == (1, (ID, 4), False)
    waiting.remove(batch, 0.0)
    assert waiting.due_t is None
    assert waiting.cursor == (ID, 4)


def test_the_same_fact_twice_in_one_entry_is_a_repeat() -> None:
    waiting = Waiting(None)
    waiting.add(reading(1, report(1), report(2)), 0.0)
    waiting.add(reading(2, report(1), report(2), report(3)), 0.0)
    assert numbers(waiting.select(state()).inputs) == [1, 2, 3]


def test_a_gap_holds_the_source_back_and_is_said() -> None:
    waiting = Waiting(None)
    waiting.add(reading(1, report(1), report(3), report(4)), 0.0)
    batch = waiting.select(state())
    assert numbers(batch.inputs) == [1]
    assert batch.gap
    waiting.remove(batch, 0.0)
    waiting.add(reading(2, report(2), report(3), report(4)), 0.0)
    assert numbers(waiting.select(state(folded=1)).inputs) == [2, 3, 4]


def test_strangers_and_older_incarnations_are_kept_to_be_counted() -> None:
    waiting = Waiting(None)
    stranger, older = report(7, source="stranger"), report(9, incarnation=0)
    malformed = MessageMalformed(subject="s", reason="r", digest="d")
    waiting.add(reading(1, stranger, older), 0.0)
    waiting.add(reading(2, malformed), 0.0)
    assert waiting.select(state()).inputs == (stranger, older, malformed)


def test_a_message_too_long_for_one_entry_is_cut_and_its_cursor_waits() -> None:
    waiting = Waiting((ID, 6))
    count = INPUTS_PER_TURN_MAX + 10
    waiting.add(reading(7, *(report(i) for i in range(1, count + 1))), 0.0)
    waiting.add(reading(8, report(count + 1)), 0.0)
    first = waiting.select(state())
    assert numbers(first.inputs) == list(range(1, INPUTS_PER_TURN_MAX + 1))
    assert first.cursor == (ID, 6)
    waiting.remove(first, 1.0)
    assert waiting.due_t == 1.0
    second = waiting.select(state(folded=INPUTS_PER_TURN_MAX))
    assert numbers(second.inputs) == list(range(INPUTS_PER_TURN_MAX + 1, count + 2))
    assert second.cursor == (ID, 8)
    waiting.remove(second, 2.0)
    assert waiting.due_t is None


def test_bytes_are_bounded_but_one_input_always_fits() -> None:
    waiting = Waiting(None)
    waiting.add(reading(1, report(1), size=INPUTS_MAX_BYTES * 2), 0.0)
    waiting.add(reading(2, report(2), size=10), 0.0)
    batch = waiting.select(state())
    assert numbers(batch.inputs) == [1]
    assert (batch.whole, batch.part, batch.cursor) == (1, 0, (ID, 1))


def test_half_as_much_can_be_asked_for() -> None:
    waiting = Waiting(None)
    for i in range(1, 9):
        waiting.add(reading(i, report(i)), 0.0)
    assert len(waiting.select(state()).inputs) == 8
    batch = waiting.select(state(), 4)
    assert numbers(batch.inputs) == [1, 2, 3, 4]
    assert batch.cursor == (ID, 4)


def test_a_flood_is_left_in_the_inbox() -> None:
    waiting = Waiting(None)
    sequence = 0
    while not waiting.full:
        sequence += 1
        waiting.add(reading(sequence, report(sequence), size=1), 0.0)
    assert sequence == WAITING_MAX_COUNT
    waiting.remove(waiting.select(state()), 0.0)
    assert not waiting.full
