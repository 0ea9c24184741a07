"""Finding a run: in a log, an archive, a file or at a URL; nothing else is needed to read one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from runfold.events.memory import MemoryLog, MemoryStore
from runfold.replay.archive import write_archive
from runfold.replay.errors import CannotRead, NotFound
from runfold.replay.source import load, read_log
from runfold.replay.store import open_store
from support.histories import RUN, exported, failing_run, history

SUBPROCESS_TIMEOUT_S = 120


def live(*messages: bytes) -> MemoryLog:
    """A log on the service with these messages, other runs' between them."""
    store = MemoryStore()
    for message in messages:
        store.put("other", b"{}")
        store.put(RUN, message)
    return MemoryLog(RUN, store)


async def test_a_live_log_is_read_with_its_sequences() -> None:
    lines = failing_run()
    read = await read_log(live(*lines), RUN)
    assert [link.data for link in read.links] == lines
    assert (read.kind, read.damages, read.strays) == ("stream", (), ())
    assert [link.where.sequence for link in read.links][:3] == [2, 4, 6]


async def test_a_stray_on_the_subject_is_remembered() -> None:
    lines = failing_run()
    read = await read_log(live(*lines[:2], b"hello", *lines[2:]), RUN)
    assert (len(read.links), [stray.where.sequence for stray in read.strays]) == (len(lines), [6])


def test_an_export_is_read_from_a_file_and_from_a_url(tmp_path: Path) -> None:
    data = exported(failing_run())
    folder = f"memory://{uuid4().hex}"
    open_store(folder).write("run.jsonl", data)
    (tmp_path / "run.jsonl").write_bytes(data)
    assert load(f"{folder}/run.jsonl").links == load(tmp_path / "run.jsonl").links


def test_an_archive_is_read_from_a_directory_and_from_urls(tmp_path: Path) -> None:
    write_archive(history(failing_run()), tmp_path / "a")
    assert load(tmp_path / "a").links == load(f"file://{tmp_path}/a").links


@pytest.mark.parametrize(
    "target", ["no-such-run", "no/such/file.jsonl", "memory://nowhere/x", "memory://nowhere/x.jsonl"]
)
def test_nothing_of_that_name(target: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        load(target, data_dir=tmp_path)


def test_a_file_system_that_nobody_knows_is_named() -> None:
    with pytest.raises(CannotRead, match="nosuch"):
        load("nosuch://bucket/run")


def test_an_empty_directory_is_no_archive(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no archive"):
        load(tmp_path)


def test_reading_needs_no_broker_no_ray_and_no_user_code(tmp_path: Path) -> None:
    write_archive(history(failing_run()), tmp_path / "a")
    program = f"""
import sys
from runfold.replay.at import final_state
from runfold.replay.audit import audit
from runfold.replay.render import render_story, render_timeline
from runfold.replay.source import load
from runfold.replay.story import story
from runfold.replay.timeline import timeline
from runfold.replay.verify import verify
history = load({str(tmp_path / "a")!r}, deep=True)
[*render_story(story(history)), *render_timeline(timeline(history))]
assert audit(history).clean and verify(history).outcome == "agrees" and final_state(history).state.terminal
unwanted = {{"nats", "asyncio", "ray", "torch", "pandas", "numpy", "fsspec", "rich"}} & set(sys.modules)
assert not unwanted, unwanted
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=SUBPROCESS_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
