"""What a cluster of one's own leaves behind is removed, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from runfold.workers.pools.ray.leftovers import remove_session, session_of

if TYPE_CHECKING:
    from pathlib import Path


def test_the_session_is_where_ray_says() -> None:
    context = SimpleNamespace(address_info={"session_dir": "/somewhere/session_1"})
    assert str(session_of(context)) == "/somewhere/session_1"


@pytest.mark.parametrize("info", [None, {}, {"session_dir": None}, {"session_dir": ""}, "session_1"])
def test_a_session_that_is_not_told_is_none(info: object) -> None:
    assert session_of(SimpleNamespace(address_info=info)) is None
    assert session_of(None) is None


def test_a_session_is_removed_with_the_link_to_it_and_another_is_left(tmp_path: Path) -> None:
    mine, other = tmp_path / "session_1", tmp_path / "session_2"
    for folder in (mine, other):
        (folder / "logs").mkdir(parents=True)
        (folder / "logs" / "out").write_text("x", encoding="utf-8")
    latest = tmp_path / "session_latest"
    latest.symlink_to(mine)
    remove_session(mine)
    assert [path.name for path in tmp_path.iterdir()] == ["session_2"]
    latest.symlink_to(other)
    remove_session(mine)
    assert latest.is_symlink()
    assert (other / "logs" / "out").exists()


def test_what_is_no_session_stays(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "session_link").symlink_to(tmp_path / "precious")
    (tmp_path / "session_file").write_text("x", encoding="utf-8")
    for name in ("precious", "session_link", "session_file", "session_gone"):
        remove_session(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious", "session_file", "session_link"]
