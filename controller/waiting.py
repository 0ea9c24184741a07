"""What was read and is not decided on yet, and how much of it makes the next entry."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Final

from runfold.controller.reading import Reading
from runfold.events.entry import AnyInput
from runfold.events.facts import Fact
from runfold.events.judge import numbering
from runfold.events.limits import ENTRY_MAX_BYTES, INPUTS_PER_TURN_MAX, METRICS_LINGER_S
from runfold.events.state import RunState

INPUTS_MAX_BYTES: Final = ENTRY_MAX_BYTES // 2
"""Bytes of inputs that one entry takes; the rest is for what is decided on them."""

WAITING_MAX_BYTES: Final = 2 * INPUTS_MAX_BYTES
"""Bytes taken from the inbox ahead of the entry being written."""

WAITING_MAX_COUNT: Final = 4 * INPUTS_PER_TURN_MAX
"""Inputs taken from the inbox ahead of the entry being written."""

ORIGIN_BYTES: Final = 48
"""What `from` adds to an input, about."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The inputs of one entry.

    `whole` messages are used up by it, and `part` inputs of the one after; `cursor` is where the inbox is folded up
    to once the entry stands. `gap`: a source ran ahead of its numbers and must repeat what is missing.
    """

    inputs: tuple[AnyInput, ...]
    whole: int
    part: int
    cursor: tuple[str, int] | None
    gap: bool


class Waiting:
    """Messages in order. Those that may change a decision make it due at once; reports linger to be batched."""

    def __init__(self, cursor: tuple[str, int] | None) -> None:
        self.cursor = cursor
        self._readings: deque[Reading] = deque()
        self._part = 0
        self._size_bytes = 0
        self._inputs_count = 0
        self._due_t: float | None = None

    @property
    def full(self) -> bool:
        """Whether nothing more should be taken from the inbox for now."""
        return self._size_bytes >= WAITING_MAX_BYTES or self._inputs_count >= WAITING_MAX_COUNT

    @property
    def due_t(self) -> float | None:
        """When, on the run's clock, an entry should be made of it; None while there is nothing."""
        return self._due_t

    def add(self, reading: Reading, t: float) -> None:
        """Append a message read at `t`."""
        self._readings.append(reading)
        self._size_bytes += reading.size_bytes
        self._inputs_count += len(reading.inputs)
        enough = self._inputs_count >= INPUTS_PER_TURN_MAX or self._size_bytes >= INPUTS_MAX_BYTES
        due_t = t if reading.decisive or enough else t + METRICS_LINGER_S
        self._due_t = due_t if self._due_t is None else min(self._due_t, due_t)

    def select(self, state: RunState, inputs_max_count: int = INPUTS_PER_TURN_MAX) -> Batch:
        """Choose what the next entry holds; repeats, and what runs ahead of a gap, are not. Nothing is removed."""
        chosen: list[AnyInput] = []
        numbers = {name: source.folded for name, source in state.sources.items()}
        size_bytes, gap, cursor = 0, False, self.cursor
        for whole, reading in enumerate(self._readings):
            each_bytes = reading.size_bytes // max(len(reading.inputs), 1) + ORIGIN_BYTES
            skip = self._part if whole == 0 else 0
            for k, item in enumerate(islice(reading.inputs, skip, None), skip):
                if chosen and (len(chosen) >= inputs_max_count or size_bytes + each_bytes > INPUTS_MAX_BYTES):
                    return Batch(tuple(chosen), whole, k, cursor, gap)
                if isinstance(item, Fact):
                    found = numbering(state.sources.get(item.source), numbers.get(item.source, 0), item)
                    gap = gap or found == "gap"
                    if found in ("repeat", "gap"):
                        continue
                    if found == "folded":
                        numbers[item.source] = item.number
                chosen.append(item)
                size_bytes += each_bytes
            cursor = (reading.identity, reading.sequence)
        return Batch(tuple(chosen), len(self._readings), 0, cursor, gap)

    def remove(self, batch: Batch, t: float) -> None:
        """Forget what a batch held: its entry stands at `t`, or there was nothing to write."""
        self.cursor, self._part = batch.cursor, batch.part
        for _ in range(batch.whole):
            reading = self._readings.popleft()
            self._size_bytes -= reading.size_bytes
            self._inputs_count -= len(reading.inputs)
        # What is left did not fit, so it has waited for its turn already.
        self._due_t = t if self._readings else None
