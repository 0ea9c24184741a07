"""Real rank processes: every way to fail, to end without a word, or not to load."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from runfold.events.limits import ERROR_INLINE_MAX_BYTES
from runfold.workers.limits import ERROR_FULL_MAX_BYTES
from runfold.workers.link import Loaded, Returned, Stop
from runfold.workers.spawner import Spawner
from support.ranks import Group, failed, run_one, start_of, write_job

if TYPE_CHECKING:
    from pathlib import Path


async def test_an_exception_is_told_in_the_users_frames(spawner: Spawner, tmp_path: Path) -> None:
    write_job(
        tmp_path,
        """
        def inner():
            raise RuntimeError("boom")
        def train():
            runfold.report({"a": 1})
            try:
                inner()
            except RuntimeError as error:
                raise ValueError("wrapped") from error
        """,
    )
    end, group = await run_one(spawner, start_of(tmp_path))
    told = failed(end.result)
    assert (told.error.type, told.error.message, told.error.kind) == ("ValueError", "wrapped", "user")
    assert told.reports == 1
    assert told.full is None
    assert told.error.where == "job.py:10 in train"
    text = told.error.traceback or ""
    assert "RuntimeError: boom" in text
    assert "in inner" in text
    assert "workers" not in text
    assert end.exit.code == 1
    assert text in group.output[0]


async def test_an_error_raised_by_a_call_of_ours_ends_in_the_users_frame(spawner: Spawner, tmp_path: Path) -> None:
    write_job(tmp_path, "def train():\n    runfold.report({'loss': object()})\n")
    end, _ = await run_one(spawner, start_of(tmp_path))
    error = failed(end.result).error
    assert error.type == "MetricsError"
    assert "metrics.loss" in error.message
    assert error.where == "job.py:3 in train"


async def test_an_exception_that_cannot_be_pickled_or_printed_is_told(spawner: Spawner, tmp_path: Path) -> None:
    write_job(
        tmp_path,
        """
        def train():
            class Odd(Exception):
                def __reduce__(self): raise TypeError("no")
                def __str__(self): raise OSError("no")
            raise Odd(lambda: 1)
        """,
    )
    end, _ = await run_one(spawner, start_of(tmp_path))
    error = failed(end.result).error
    assert error.type == "job.Odd"
    assert "__str__ raised OSError" in error.message


async def test_a_message_of_five_megabytes_is_cut_and_handed_over_whole(spawner: Spawner, tmp_path: Path) -> None:
    write_job(tmp_path, "def train(): raise ValueError('é' * 2_500_000 + 'END')")
    end, _ = await run_one(spawner, start_of(tmp_path))
    told = failed(end.result)
    inline = len(told.error.message.encode()) + len((told.error.traceback or "").encode())
    assert inline <= ERROR_INLINE_MAX_BYTES
    assert told.error.message.endswith("END")
    assert "left out" in told.error.message
    assert "job.py" in (told.error.traceback or "")
    assert told.full is not None
    assert 5_000_000 < len(told.full) <= ERROR_FULL_MAX_BYTES
    assert told.full.decode().rstrip().endswith("END")


@pytest.mark.parametrize(
    ("raised", "kind", "code"),
    [
        ("SystemExit(3)", "exit", 3),
        ("SystemExit()", "exit", 0),
        ("SystemExit('words')", "exit", 1),
        ("KeyboardInterrupt()", "user", 1),
        ("GeneratorExit()", "user", 1),
        ("ExceptionGroup('many', [ValueError('a')])", "user", 1),
        ("ValueError(chr(0xd800))", "user", 1),
        ("SyntaxError('bad', ('f', 'x', None, 5))", "user", 1),
    ],
)
async def test_exceptions_of_every_kind_are_told(
    spawner: Spawner, tmp_path: Path, raised: str, kind: str, code: int
) -> None:
    write_job(tmp_path, f"def train(): raise {raised}")
    end, _ = await run_one(spawner, start_of(tmp_path))
    error = failed(end.result).error
    assert (error.type, error.kind) == (raised.partition("(")[0], kind)
    assert end.exit.code == code


STREAMS = [
    "sys.stdout = sys.stderr = None",
    "sys.stdout = sys.stderr = object()",
    "sys.stdout.close(); sys.stderr.close()",
    "os.close(1); os.close(2)",
    "sys.stdout = sys.stderr = Broken()",
]
BROKEN = "import os, sys\nclass Broken:\n  def write(self, text): raise RuntimeError('no')\n  flush = write\n"


@pytest.mark.parametrize("action", STREAMS)
async def test_an_error_is_told_whatever_became_of_the_streams(spawner: Spawner, tmp_path: Path, action: str) -> None:
    write_job(tmp_path, f"{BROKEN}def train():\n  {action}\n  raise ValueError('the cause')\n")
    end, _ = await run_one(spawner, start_of(tmp_path))
    error = failed(end.result).error
    assert (error.type, error.message) == ("ValueError", "the cause")


@pytest.mark.parametrize("action", STREAMS)
async def test_a_value_is_returned_whatever_became_of_the_streams(
    spawner: Spawner, tmp_path: Path, action: str
) -> None:
    write_job(tmp_path, f"{BROKEN}def train():\n  {action}\n  return 3\n")
    end, _ = await run_one(spawner, start_of(tmp_path))
    assert isinstance(end.result, Returned)
    assert (end.result.value, end.exit.code) == (3, 0)


async def test_an_error_of_which_no_traceback_can_be_made_is_told_with_its_frames(
    spawner: Spawner, tmp_path: Path
) -> None:
    write_job(tmp_path, "def train():\n  raise SyntaxError('bad', ('f', 'x', None, 5))\n")
    end, _ = await run_one(spawner, start_of(tmp_path))
    error = failed(end.result).error
    assert error.message.startswith("bad")
    assert error.where is not None
    assert error.where.endswith("in train")
    assert "raise SyntaxError" in (error.traceback or "")


@pytest.mark.parametrize(
    ("action", "code", "number"),
    [
        ("os._exit(0)", 0, None),
        ("os._exit(7)", 7, None),
        ("os.kill(os.getpid(), 9)", None, signal.SIGKILL),
        ("os.kill(os.getpid(), 15); time.sleep(60)", None, signal.SIGTERM),
        ("ctypes.string_at(0)", None, signal.SIGSEGV),
        ("os.abort()", None, signal.SIGABRT),
    ],
)
async def test_an_end_without_a_word_is_seen(
    spawner: Spawner, tmp_path: Path, action: str, code: int | None, number: int | None
) -> None:
    write_job(tmp_path, f"import ctypes, os, time\ndef train():\n  print('last line')\n  {action}\n")
    end, group = await run_one(spawner, start_of(tmp_path))
    assert end.result is None
    assert (end.exit.code, end.exit.signal) == (code, number)
    assert group.output[0].startswith("last line\n")
    if number == signal.SIGSEGV:
        assert "in train" in group.output[0]


async def test_writing_to_the_link_ends_the_rank(spawner: Spawner, tmp_path: Path) -> None:
    write_job(
        tmp_path,
        """
        import os, socket, time
        def train():
            for fd in range(3, 64):
                try: os.write(fd, b"\\xff" * 64)
                except OSError: pass
            time.sleep(60)
        """,
    )
    end, _ = await run_one(spawner, start_of(tmp_path))
    assert end.result is None
    assert end.link_error is not None
    assert "over the limit" in str(end.link_error)
    assert end.exit.signal == signal.SIGKILL


async def test_closing_the_link_ends_the_rank(spawner: Spawner, tmp_path: Path) -> None:
    write_job(tmp_path, "import os, time\ndef train():\n  os.closerange(3, 64)\n  time.sleep(60)\n")
    end, _ = await run_one(spawner, start_of(tmp_path))
    assert "closed its link" in str(end.link_error)
    assert end.exit.signal == signal.SIGKILL


@pytest.mark.parametrize(
    ("entry", "body", "says"),
    [
        ("nothere:train", "", "there is no module 'nothere'"),
        ("nothere.py:train", "", "there is no file"),
        ("job.py:other", "def train(): pass", "its functions: train"),
        ("job.py:train", "train = 5", "cannot be called"),
        ("job.py:train", "def train(a, b): pass", "needs 2 arguments (a, b)"),
        ("job.py:train", "def train(*, a): pass", "needs the keyword a"),
        ("job.py:train", "async def train(): pass", "is async"),
        ("job.py:train", "def train(): yield 1", "is a generator"),
        ("job.py:train", "import nothing_of_that_name\n", "nothing_of_that_name"),
        ("job:train", "import nothing_of_that_name\n", "nothing_of_that_name"),
        ("job.py:train", "def train(:\n", "invalid syntax"),
        ("job.py:train", "raise SystemExit(0)", "sys.exit(0)"),
        ("job.py:train", "1 / 0", "division by zero"),
        ("blob:sha256:" + "0" * 64, "", "was not handed"),
    ],
)
async def test_what_cannot_be_loaded_is_told_as_such(
    spawner: Spawner, tmp_path: Path, entry: str, body: str, says: str
) -> None:
    (tmp_path / "job.py").write_text(body)
    end, group = await run_one(spawner, start_of(tmp_path, entry))
    error = failed(end.result).error
    assert error.kind == "load"
    assert says in error.message
    assert not any(isinstance(message, Loaded) for message in group.messages[0])


async def test_a_working_directory_that_is_missing_is_told(spawner: Spawner, tmp_path: Path) -> None:
    end, _ = await run_one(spawner, start_of(tmp_path / "gone"))
    error = failed(end.result).error
    assert (error.kind, error.type) == ("load", "LoadError")
    assert "gone cannot be entered" in error.message


async def test_a_rank_that_waits_for_the_others_can_be_stopped(spawner: Spawner, tmp_path: Path) -> None:
    write_job(tmp_path, "def train(): print('entered')")
    group = Group(spawner, start_of(tmp_path))
    group.hold = True
    await group.start()
    await group.until(Loaded)
    group.handles[0].send(Stop("the attempt has ended"))
    (end,) = await group.wait()
    assert (end.result, end.exit.code, group.output[0]) == (None, 0, "")
