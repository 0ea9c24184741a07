"""Only what is newer counts: assignments come late, again, and from controllers that are no more."""

import msgspec
import pytest

from runfold.events.assignment import Assignment
from runfold.workers.follow import Newest


def document(epoch: int, n: int, *, forced: int = 0, run: str = "digits-1") -> bytes:
    made = Assignment(run=run, epoch=epoch, n=n, hash="", attempt=1, want="place", forced=forced)
    return msgspec.json.encode(made)


def test_the_first_one_is_news_and_the_same_again_is_not() -> None:
    newest = Newest()
    assert newest.take("digits-1", document(1, 0)) is not None
    assert newest.take("digits-1", document(1, 0)) is None


@pytest.mark.parametrize(
    ("held", "come", "news"),
    [
        ((1, 5), (1, 6), True),
        ((1, 6), (1, 5), False),
        ((2, 1), (1, 9), False),
        ((1, 9), (2, 9), True),
    ],
)
def test_epoch_comes_before_number(held: tuple[int, int], come: tuple[int, int], news: bool) -> None:
    newest = Newest()
    newest.take("digits-1", document(*held))
    assert (newest.take("digits-1", document(*come)) is not None) == news


def test_a_forced_one_counts_against_its_own_entry() -> None:
    newest = Newest()
    newest.take("digits-1", document(1, 5))
    assert newest.take("digits-1", document(1, 5, forced=1)) is not None
    assert newest.take("digits-1", document(1, 5)) is None
    assert newest.take("digits-1", document(1, 5, forced=2)) is not None


def test_runs_do_not_touch_each_other() -> None:
    newest = Newest()
    newest.take("digits-1", document(1, 5))
    assert newest.take("digits-2", document(1, 1, run="digits-2")) is not None


@pytest.mark.parametrize("data", [b"", b"{}", b"not json", document(1, 5, run="another")])
def test_what_cannot_be_read_or_is_anothers_is_left_out(data: bytes) -> None:
    assert Newest().take("digits-1", data) is None
