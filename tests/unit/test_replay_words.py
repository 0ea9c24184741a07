"""Every kind of input and transition has words; none is left out."""

from __future__ import annotations

import typing

import pytest

from runfold.events.entry import AnyInput
from runfold.events.facts import RankExited
from runfold.events.transitions import AnyTransition
from runfold.replay.words import ended, input_words, kind_of, metric_words, rank_words, transition_words
from support.samples import INPUTS, TRANSITIONS


@pytest.mark.parametrize(("item", "words"), INPUTS, ids=lambda value: value if isinstance(value, str) else "")
def test_inputs_in_words(item: AnyInput, words: str) -> None:
    assert input_words(item)[0] == words


@pytest.mark.parametrize(("item", "words"), TRANSITIONS, ids=lambda value: value if isinstance(value, str) else "")
def test_transitions_in_words(item: AnyTransition, words: str) -> None:
    assert transition_words(item) == words


def test_no_kind_is_left_out() -> None:
    def names(union: object) -> set[str]:
        return {kind.__name__ for kind in typing.get_args(union)}

    assert {type(item).__name__ for item, _ in INPUTS} == names(AnyInput)
    assert {type(item).__name__ for item, _ in TRANSITIONS} == names(AnyTransition)
    assert kind_of(TRANSITIONS[0][0]) == "run_accepted"


def test_what_is_said_beside_an_exit() -> None:
    left = RankExited(
        source="s", incarnation=1, number=1, attempt=1, rank=1, life=1, exit_code=0, asked=True, peak_memory_bytes=2**21
    )
    assert input_words(left) == ("rank 1 exited with code 0", "asked to, peak memory 2 MiB")
    assert ended(None, 9) == "was ended by SIGKILL"
    assert ended(None, 250) == "was ended by signal 250"


@pytest.mark.parametrize(
    ("ranks", "words"),
    [((3,), "rank 3"), ((0, 1, 2), "ranks 0-2"), ((5, 0, 1), "ranks 0-1, 5"), ((2, 4), "ranks 2, 4")],
)
def test_ranks_in_words(ranks: tuple[int, ...], words: str) -> None:
    assert rank_words(ranks) == words


def test_metrics_in_words() -> None:
    assert metric_words({"loss": 0.123456, "nan": {"float": "nan"}, "n": 3}) == "loss=0.1235, nan=nan, n=3"
    assert metric_words({str(k): k for k in range(6)}) == "0=0, 1=1, 2=2, 3=3 and 2 more"
    assert metric_words({"text": "x" * 99}) == f"text={'x' * 23}…"
