"""What becomes of a rank's output: batches in bounds, nothing silently lost, the end always kept."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from runfold.events.limits import LAST_LINES_MAX_BYTES, OUTPUT_BATCH_MAX_BYTES
from runfold.events.output import OutputBatch, records
from runfold.workers.output import (
    BATCH_EVERY_S,
    FILLED_BYTES,
    LINE_MAX_BYTES,
    LINGER_S,
    SOON_MAX_COUNT,
    UNFINISHED_AFTER_S,
    WAITING_MAX_BYTES,
    OutputCut,
)


def cut() -> OutputCut:
    return OutputCut("digits-1", 2, 1, "local")


def texts(batch: OutputBatch | None) -> list[str]:
    return [] if batch is None else [line.text for line in batch.lines]


def drain(output: OutputCut, now: float) -> list[OutputBatch]:
    output.end()
    batches: list[OutputBatch] = []
    while not output.done:
        now += BATCH_EVERY_S
        if (batch := output.batch(now)) is not None:
            batches.append(batch)
    return batches


def test_a_line_is_shown_at_once_with_where_it_is_from() -> None:
    output = cut()
    output.feed("stderr", b"hello\n", 5.0, 1000.0)
    batch = output.batch(5.0)
    assert batch is not None
    assert (batch.run, batch.attempt, batch.rank, batch.node, batch.number) == ("digits-1", 2, 1, "local", 1)
    (record,) = records(batch)
    assert (record.source, record.text, record.time_s, record.cut_bytes) == ("stderr", "hello", 1000.0, 0)


def test_batches_are_numbered_and_at_most_four_a_second() -> None:
    output = cut()
    output.feed("stdout", b"a\n", 0.0, 0.0)
    assert texts(output.batch(0.0)) == ["a"]
    output.feed("stdout", b"b\n", 0.1, 0.0)
    assert output.batch(0.1) is None
    assert output.wake_at(0.1) == BATCH_EVERY_S
    second = output.batch(BATCH_EVERY_S)
    assert second is not None
    assert (second.number, texts(second)) == (2, ["b"])


def test_a_line_read_in_parts_is_one_line_and_streams_do_not_mix() -> None:
    output = cut()
    output.feed("stdout", b"hel", 0.0, 0.0)
    output.feed("stderr", b"err\n", 0.0, 0.0)
    output.feed("stdout", b"lo\nnext", 0.0, 0.0)
    assert texts(output.batch(0.1)) == ["hello", "err"]
    output.end()
    assert texts(output.batch(1.0)) == ["next"]


def test_an_unfinished_line_is_shown_after_a_moment_and_says_so() -> None:
    output = cut()
    output.feed("stdout", b"50%", 0.0, 0.0)
    assert output.batch(0.5) is None
    batch = output.batch(UNFINISHED_AFTER_S)
    assert batch is not None
    assert [(line.text, line.partial) for line in batch.lines] == [("50%", True)]


def test_what_is_printed_too_fast_is_cut_and_said_and_the_end_is_kept() -> None:
    output = cut()
    line = b"x" * 99 + b"\n"
    total = 0
    for _ in range(2000):
        output.feed("stdout", line * 100, 0.0, 0.0)
        total += 100 * len(line)
    output.feed("stdout", b"the end\n", 0.0, 0.0)
    batches = drain(output, 0.0)
    kept = sum(len(line.text) + 1 for batch in batches for line in batch.lines)
    assert kept + sum(batch.cut_bytes for batch in batches) == total + len(b"the end\n")
    assert kept <= WAITING_MAX_BYTES
    assert batches[-1].lines[-1].text == "the end"
    assert output.last_lines().endswith("the end\n")
    assert len(output.last_lines().encode()) <= LAST_LINES_MAX_BYTES


def test_the_last_lines_are_whole_lines() -> None:
    output = cut()
    for number in range(5000):
        output.feed("stdout", b"line %d\n" % number, 0.0, 0.0)
    lines = output.last_lines().splitlines()
    assert lines[-1] == "line 4999"
    assert all(line.startswith("line ") for line in lines)


def test_the_end_is_told_even_when_nothing_was_printed() -> None:
    output = cut()
    output.end()
    batch = output.batch(0.0)
    assert batch is not None
    assert (batch.last, batch.lines, output.done) == (True, (), True)


def test_what_grows_when_it_is_written_still_fits() -> None:
    output = cut()
    output.feed("stdout", b"\x1b" * 200_000, 0.0, 0.0)
    batches = drain(output, 0.0)
    assert all(len(msgspec.json.encode(batch)) <= OUTPUT_BATCH_MAX_BYTES for batch in batches)
    assert sum(len(line.text) for batch in batches for line in batch.lines) == 200_000


@given(
    st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=40_000)), max_size=8),
    st.booleans(),
)
def test_no_batch_is_too_large_and_every_byte_is_kept_or_counted(
    pieces: list[tuple[str, bytes]], controls: bool
) -> None:
    output = cut()
    fed = 0
    for source, piece in pieces:
        data = b"\x1b" * len(piece) if controls else piece
        fed += len(data)
        output.feed("stdout" if source == "stdout" else "stderr", data, 0.0, 0.0)
    batches = drain(output, 0.0)
    assert [batch.number for batch in batches] == list(range(1, len(batches) + 1))
    assert all(len(msgspec.json.encode(batch)) <= OUTPUT_BATCH_MAX_BYTES for batch in batches)
    assert [batch.last for batch in batches] == [False] * (len(batches) - 1) + [True]
    if not controls and not any(b"\r" in piece for _, piece in pieces):
        cut_bytes = sum(batch.cut_bytes for batch in batches)
        newlines = sum(1 for batch in batches for line in batch.lines if not line.partial)
        assert cut_bytes + newlines <= fed + 2


def test_bytes_that_are_no_text_keep_within_the_limit_of_the_last_lines() -> None:
    output = cut()
    output.feed("stdout", b"\xff" * 3 * LAST_LINES_MAX_BYTES, 0.0, 0.0)
    assert 0 < len(output.last_lines().encode()) <= LAST_LINES_MAX_BYTES


def test_a_long_line_is_cut_between_characters() -> None:
    output = cut()
    text = "x" + "ü" * LINE_MAX_BYTES
    output.feed("stdout", text.encode() + b"\n", 0.0, 0.0)
    (batch, *_) = drain(output, 0.0)
    assert [line.partial for line in batch.lines] == [True, True, False]
    assert "".join(line.text for line in batch.lines) == text


def test_it_says_when_to_ask_again() -> None:
    output = cut()
    assert output.wake_at(0.0) is None
    assert output.batch(0.0) is None
    output.feed("stdout", b"no end", 2.0, 0.0)
    assert output.wake_at(2.0) == 2.0 + UNFINISHED_AFTER_S
    output.end()
    assert output.wake_at(2.0) == 2.0
    assert texts(output.batch(2.0)) == ["no end"]
    assert output.wake_at(3.0) is None
    assert output.batch(3.0) is None


def test_a_stream_without_a_line_end_does_not_hold_up_the_other() -> None:
    output = cut()
    output.feed("stdout", b"no end", 0.0, 0.0)
    output.feed("stderr", b"a line\n", 0.0, 0.0)
    assert texts(output.batch(0.0)) == ["a line"]
    assert output.batch(BATCH_EVERY_S) is None
    assert texts(output.batch(UNFINISHED_AFTER_S + BATCH_EVERY_S)) == ["no end"]


def test_two_unfinished_lines_are_left_to_grow() -> None:
    output = cut()
    for source in ("stdout", "stderr"):
        output.feed("stdout" if source == "stdout" else "stderr", b"x" * (LINE_MAX_BYTES - 1), 0.0, 0.0)
    assert output.batch(0.0) is None
    assert output.wake_at(0.0) == BATCH_EVERY_S
    assert len(texts(output.batch(UNFINISHED_AFTER_S))) == 2


def test_slow_output_is_told_at_once_at_first_and_later_waits_for_more() -> None:
    output, now = cut(), 0.0
    for _ in range(SOON_MAX_COUNT):
        output.feed("stdout", b"a line\n", now, now)
        wake_at = output.wake_at(now)
        assert wake_at is not None
        assert wake_at <= now + BATCH_EVERY_S
        now += BATCH_EVERY_S
        assert texts(output.batch(now)) == ["a line"]
    output.feed("stdout", b"later\n", now, now)
    now -= BATCH_EVERY_S
    assert output.wake_at(now) == now + BATCH_EVERY_S + LINGER_S
    now += BATCH_EVERY_S
    output.feed("stdout", b"x" * 99 + b"\n", now, now)
    assert output.batch(now + BATCH_EVERY_S) is None
    batch = output.batch(now + LINGER_S)
    assert batch is not None
    assert (len(batch.lines), batch.lines_before) == (2, SOON_MAX_COUNT)
    now += LINGER_S
    output.feed("stdout", (b"x" * 99 + b"\n") * (FILLED_BYTES // 100 + 1), now, now)
    assert output.wake_at(now) == now + BATCH_EVERY_S
    output.end()
    assert output.wake_at(now) == now
