"""How many processes the kernel has ended for want of memory: read where each version of control groups says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runfold.workers.oom import oom_kills

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("own", "counter", "text"),
    [
        ("0::/user.slice/run.scope\n", "user.slice/run.scope/memory.events", "low 0\noom 3\noom_kill 2\n"),
        ("0::/\n", "memory.events", "oom 3\noom_kill 2\n"),
        ("0::/docker/abc\n", "memory.events", "oom_kill 2\n"),
        ("4:memory:/a/b\n0::/\n", "memory/a/b/memory.oom_control", "under_oom 0\noom_kill 2\n"),
        ("4:cpu,memory:/docker/abc\n", "memory/memory.oom_control", "under_oom 0\noom_kill 2\n"),
        ("4:memory:/\n0::/x\n", "unified/x/memory.events", "oom_kill 2\n"),
    ],
)
def test_the_group_is_asked_wherever_it_is_mounted(tmp_path: Path, own: str, counter: str, text: str) -> None:
    write(tmp_path / "cgroup", own)
    write(tmp_path / "mount" / counter, text)
    assert oom_kills(tmp_path / "cgroup", tmp_path / "mount") == 2


def test_where_nobody_counts_there_is_none(tmp_path: Path) -> None:
    assert oom_kills(tmp_path / "none", tmp_path / "mount") == 0
    write(tmp_path / "mount" / "memory.events", "oom_kill\nnonsense\noom_kill many\n")
    assert oom_kills(tmp_path / "none", tmp_path / "mount") == 0
