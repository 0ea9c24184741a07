"""A controller's id is its seat: held while it lives, found again after it."""

from pathlib import Path

import pytest

from runfold.controller import seat as seats
from runfold.controller.seat import NoSeat, seat


def test_a_seat_is_found_again(tmp_path: Path) -> None:
    with seat(tmp_path, "node-a") as first:
        assert first == "node-a-0"
    with seat(tmp_path, "node-a") as again:
        assert again == first


def test_two_controllers_have_two_seats(tmp_path: Path) -> None:
    with seat(tmp_path, "node-a") as first, seat(tmp_path, "node-a") as second:
        assert (first, second) == ("node-a-0", "node-a-1")


def test_the_id_stays_when_the_machine_is_renamed(tmp_path: Path) -> None:
    with seat(tmp_path, "old") as first:
        pass
    with seat(tmp_path, "new") as second:
        assert second == first == "old-0"


@pytest.mark.parametrize(
    ("host", "expected"),
    [("a.b.example", "a-0"), ("  x_y\n*>  ", "x-y-0"), ("", "controller-0"), ("é", "controller-0")],
)
def test_any_host_name_makes_a_plain_id(tmp_path: Path, host: str, expected: str) -> None:
    with seat(tmp_path, host) as name:
        assert name == expected


def test_a_seat_file_that_holds_nonsense_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "seats").mkdir()
    (tmp_path / "seats" / "0").write_bytes(b"\xff\x00 > *")
    with seat(tmp_path, "node") as name:
        assert name == "node-0"


def test_no_seat_left_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "SEATS_MAX", 1)
    with seat(tmp_path, "n"), pytest.raises(NoSeat, match="all 1 seats"), seat(tmp_path, "n"):
        pass
