"""Following links: what leads elsewhere is told, and a file system that hangs holds up nobody for long."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from runfold.controller import links
from runfold.controller.links import Links, as_named
from support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_path_is_where_its_links_lead_whether_it_is_there_yet_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "FOLLOW_TIMEOUT_S", 60.0)
    (tmp_path / "data").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "data")
    following = Links()
    root = await following.real(str(tmp_path))
    assert await following.real(f"{tmp_path}/linked/runs/digits") == f"{root}/data/runs/digits"
    assert await following.real(f"{tmp_path}/data/runs/digits") == f"{root}/data/runs/digits"
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    assert await following.real(f"{tmp_path}/circle/x") == f"{root}/circle/x"
    assert await following.real("/no\0path") == "/no\0path"
    assert await as_named("/linked") == "/linked"


async def test_a_file_system_that_hangs_is_waited_for_once_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "FOLLOW_TIMEOUT_S", 0.05)
    answers, asked = threading.Event(), list[str]()

    def follow(path: str) -> str:
        asked.append(path)
        answers.wait()
        return f"/real{path}"

    following = Links(follow)
    try:
        assert [await following.real(path) for path in ("/a", "/b")] == ["/a", "/b"]
        await until(lambda: bool(asked))  # a thread that takes its time to begin has hung all the same
        assert asked == ["/a"], "one thread hangs, and no other beside it"
    finally:
        answers.set()

    async def is_back() -> bool:
        return await following.real("/c") == "/real/c"

    await until(is_back)
