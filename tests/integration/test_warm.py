"""Ranks from a warm process: their libraries are imported already, and everything else is as if they were not."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, cast

import psutil
import pytest

import runfold
from runfold.workers.brooder import Brooder
from runfold.workers.link import Loaded, Returned, Start
from runfold.workers.spawner import Spawner
from runfold.workers.zygote import Role
from support.ranks import Group, failed, run_one, start_of, write_job
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PARTS = 20
USES_LIBRARY = """
    import sys
    WARM = "biglib.part3" in sys.modules
    import biglib
    """


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place where packages are installed, for the fork servers of this test; `biglib` is one of several modules."""
    base = tmp_path / "base"
    place = base / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    library(place, "")
    monkeypatch.setenv("PYTHONUSERBASE", str(base))
    return place


def library(place: Path, body: str, name: str = "biglib") -> None:
    """Install a package that does this when it is imported."""
    folder = place / name
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(PARTS):
        (folder / f"part{number}.py").write_text("")
    parts = "\n".join(f"import {name}.part{number}" for number in range(PARTS))
    (folder / "__init__.py").write_text(f"{parts}\n{textwrap.dedent(body)}\n")


@pytest.fixture
async def brooder(installed: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Brooder]:
    monkeypatch.setenv("PYTHONPATH", str(installed), prepend=os.pathsep)
    spawner = Spawner.launch("runfold.workers.child:main", Role.RANKS)
    await spawner.start()
    mine = psutil.Process(spawner.pid)
    made = Brooder(spawner, "digits-7k2", "local")
    yield made
    left = mine.children(recursive=True)
    await made.close()
    await spawner.close()
    assert not [process for process in left if process.is_running()]


def value(end: object) -> object:
    result = getattr(end, "result", None)
    assert isinstance(result, Returned), end
    return result.value


async def lives(brooder: Brooder, start: Start, count: int) -> list[tuple[object, str]]:
    """Run a rank so often, each after the end of the one before and once what it taught has been done."""
    found: list[tuple[object, str]] = []
    for _ in range(count):
        end, group = await run_one(brooder, start)
        found.append((value(end), group.output[0]))
        await until(lambda: brooder.settled)
    return found


async def test_the_first_rank_imports_and_the_next_ones_have_it_done(brooder: Brooder, tmp_path: Path) -> None:
    write_job(tmp_path, USES_LIBRARY + "\n    def train(): return WARM")
    assert [warm for warm, _ in await lives(brooder, start_of(tmp_path), 3)] == [False, True, True]


async def test_the_users_own_module_is_executed_in_each_rank(brooder: Brooder, tmp_path: Path) -> None:
    body = """
        import os, random
        STATE = []
        STATE.append(os.environ["RUNFOLD_RANK"] if "RUNFOLD_RANK" in os.environ else "?")
        print("imported by", STATE)
        def train():
            STATE.append(1)
            return [WARM, *STATE]
        """
    write_job(tmp_path, USES_LIBRARY + textwrap.indent(textwrap.dedent(body), "    "))
    start = start_of(tmp_path, env={"RUNFOLD_RANK": "7", "RUNFOLD_ATTEMPT": "1"})
    found = await lives(brooder, start, 3)
    assert found == [
        ([False, "7", 1], "imported by ['7']\n"),
        ([True, "7", 1], "imported by ['7']\n"),
        ([True, "7", 1], "imported by ['7']\n"),
    ]


async def test_a_file_that_has_changed_is_loaded_as_it_is_now(brooder: Brooder, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("ANSWER = 1")
    write_job(tmp_path, USES_LIBRARY + "\n    import helper\n    def train(): return [WARM, helper.ANSWER, 'old']")
    assert (await lives(brooder, start_of(tmp_path), 1))[0][0] == [False, 1, "old"]
    (tmp_path / "helper.py").write_text("ANSWER = 22")
    write_job(tmp_path, USES_LIBRARY + "\n    import helper\n    def train(): return [WARM, helper.ANSWER, 'new!']")
    end, group = await run_one(brooder, start_of(tmp_path))
    assert value(end) == [True, 22, "new!"]
    loaded = next(message for message in group.messages[0] if isinstance(message, Loaded))
    assert loaded.digest == f"sha256:{hashlib.sha256((tmp_path / 'job.py').read_bytes()).hexdigest()}"


async def test_errors_while_loading_are_told_with_the_users_frames(brooder: Brooder, tmp_path: Path) -> None:
    write_job(tmp_path, USES_LIBRARY + "\n    def train(): pass")
    await lives(brooder, start_of(tmp_path), 1)
    write_job(tmp_path, USES_LIBRARY + "\n    assert WARM\n    import no_such_module\n    def train(): pass")
    end, _ = await run_one(brooder, start_of(tmp_path))
    error = failed(end.result).error
    assert (error.kind, error.type) == ("load", "ModuleNotFoundError")
    assert error.where is not None
    assert "job.py" in error.where


async def test_what_importing_prints_is_in_each_ranks_output(brooder: Brooder, installed: Path, tmp_path: Path) -> None:
    library(installed, "import sys\nprint('heard', flush=True)\nprint('seen', file=sys.stderr)")
    write_job(tmp_path, USES_LIBRARY + "\n    print('own')\n    def train(): return WARM")
    for warm, output in await lives(brooder, start_of(tmp_path), 3):
        assert sorted(output.split()) == ["heard", "own", "seen"], warm


async def test_what_libraries_register_for_the_end_is_done_by_each_rank(
    brooder: Brooder, installed: Path, tmp_path: Path
) -> None:
    library(installed, "import atexit\natexit.register(lambda: print('bye', flush=True))")
    write_job(tmp_path, USES_LIBRARY + "\n    def train(): return WARM")
    assert await lives(brooder, start_of(tmp_path), 2) == [(False, "bye\n"), (True, "bye\n")]


async def test_no_two_ranks_draw_the_same_and_a_seed_of_the_users_holds(brooder: Brooder, tmp_path: Path) -> None:
    body = """
        import random
        import numpy
        def train(): return [WARM, random.random(), float(numpy.random.rand())]
        """
    write_job(tmp_path, USES_LIBRARY + textwrap.indent(textwrap.dedent(body), "    "))
    await lives(brooder, start_of(tmp_path), 1)
    group = await Group(brooder, start_of(tmp_path), 2).start()
    ends = await group.wait()
    third, _ = await run_one(brooder, start_of(tmp_path))
    drawn = [cast("list[float]", value(end)) for end in (*ends, third)]
    assert [one[0] for one in drawn] == [True, True, True]
    assert len({one[1] for one in drawn}) == 3
    assert len({one[2] for one in drawn}) == 3
    seeded = body.replace("def train", "random.seed(3); numpy.random.seed(3)\n        def train")
    write_job(tmp_path, USES_LIBRARY + textwrap.indent(textwrap.dedent(seeded), "    "))
    warm = (await lives(brooder, start_of(tmp_path), 1))[0][0]
    cold = (await lives(brooder, start_of(tmp_path, warm=False), 1))[0][0]
    assert cast("list[object]", warm)[0] is True
    assert cast("list[object]", cold) == [False, *cast("list[object]", warm)[1:]]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()", "1 thread started"),
        ("import signal\nsignal.signal(signal.SIGUSR2, lambda *_: None)", "signal handler"),
        ("import tempfile\nFOLDER = tempfile.mkdtemp()", "temporary files"),
        ("import socket\nHELD = socket.socket()", "socket:"),
        ("import job_plugin", "job_plugin, which is no installed package"),
    ],
)
async def test_what_no_fork_survives_is_found_and_said_once(
    brooder: Brooder, installed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, body: str, words: str
) -> None:
    library(installed, body)
    (tmp_path / "job_plugin.py").write_text("")
    write_job(tmp_path, USES_LIBRARY + "\n    def train(): return WARM")
    with caplog.at_level(logging.WARNING, "runfold.workers"):
        found = await lives(brooder, start_of(tmp_path, env={"TMPDIR": str(tmp_path)}), 3)
    assert [warm for warm, _ in found] == [False, False, False]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert words in said[0]
    assert said[0].startswith("digits-7k2: on local ranks are started cold, importing by themselves: ")


async def test_nothing_is_forked_from_a_process_that_has_initialised_cuda(
    brooder: Brooder, installed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library(installed, "class cuda:\n    @staticmethod\n    def is_initialized(): return True", name="torch")
    write_job(
        tmp_path, "\n    import sys\n    WARM = 'torch' in sys.modules\n    import torch\n    def train(): return WARM"
    )
    assert [warm for warm, _ in await lives(brooder, start_of(tmp_path), 2)] == [False, False]
    assert "CUDA is initialised by importing" in caplog.text


async def test_a_library_that_is_installed_anew_is_imported_anew(
    brooder: Brooder, installed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library(installed, "VERSION = 1")
    write_job(tmp_path, USES_LIBRARY + "\n    def train(): return [WARM, biglib.VERSION]")
    assert [found for found, _ in await lives(brooder, start_of(tmp_path), 2)] == [[False, 1], [True, 1]]
    library(installed, "VERSION = 2  # another size")

    async def changed() -> bool:
        end, _ = await run_one(brooder, start_of(tmp_path))
        await until(lambda: brooder.settled)
        return value(end) != [True, 1]

    await until(changed)
    assert "has changed since it was imported" in caplog.text
    assert (await lives(brooder, start_of(tmp_path), 1))[0][0] == [True, 2]


async def test_another_environment_is_another_process(brooder: Brooder, tmp_path: Path) -> None:
    write_job(tmp_path, USES_LIBRARY + "\n    import os\n    def train(): return [WARM, os.environ.get('MODE')]")
    await lives(brooder, start_of(tmp_path, env={"MODE": "a"}), 2)
    other = start_of(tmp_path, env={"MODE": "b"})
    assert [found for found, _ in await lives(brooder, other, 2)] == [[False, "b"], [True, "b"]]


async def test_who_does_not_want_it_has_none_of_it(brooder: Brooder, tmp_path: Path) -> None:
    write_job(tmp_path, USES_LIBRARY + "\n    def train(): return WARM")
    assert [warm for warm, _ in await lives(brooder, start_of(tmp_path, warm=False), 2)] == [False, False]
    # A variable that an interpreter reads when it starts makes each rank a new program.
    env = {"PYTHONHASHSEED": "5"}
    assert [warm for warm, _ in await lives(brooder, start_of(tmp_path, env=env), 2)] == [False, False]


async def test_memory_of_libraries_is_shared(brooder: Brooder, installed: Path, tmp_path: Path) -> None:
    size = 64 * 1024 * 1024
    library(installed, f"DATA = bytearray(b'x') * {size}")
    write_job(
        tmp_path,
        USES_LIBRARY
        + """
    def train():
        import psutil
        return [WARM, psutil.Process().memory_full_info().uss]
    """,
    )
    (cold, _), (warm, _) = await lives(brooder, start_of(tmp_path), 2)
    assert cast("list[int]", cold)[1] > size
    assert cast("list[int]", warm)[0] is True
    assert cast("list[int]", warm)[1] < size / 2


async def test_a_warm_process_that_dies_takes_its_ranks_along_and_the_next_are_cold(
    brooder: Brooder, tmp_path: Path
) -> None:
    write_job(
        tmp_path,
        USES_LIBRARY
        + """
    import os, signal, time
    def train():
        if WARM:
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        return os.getpid()
    """,
    )
    await lives(brooder, start_of(tmp_path), 1)
    end, _ = await run_one(brooder, start_of(tmp_path))
    assert end.result is None
    assert isinstance(value((await run_one(brooder, start_of(tmp_path)))[0]), int)


async def test_processes_for_the_next_attempt_wait_already(brooder: Brooder, tmp_path: Path) -> None:
    write_job(
        tmp_path,
        USES_LIBRARY
        + """
    import os, pathlib, time
    def train():
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
        return [WARM, os.getpid()]
    """,
    )
    (tmp_path / "go").touch()
    await lives(brooder, start_of(tmp_path), 1)
    (tmp_path / "go").unlink()
    group = await Group(brooder, start_of(tmp_path), 2).start()
    await until(lambda: len(brooder.spares) == 2)
    waiting = set(brooder.spares)
    (tmp_path / "go").touch()
    await group.wait()
    ends = await (await Group(brooder, start_of(tmp_path), 2).start()).wait()
    assert {cast("list[int]", value(end))[1] for end in ends} == waiting


SCRIPT = """
import sys
WARM = "numpy" in sys.modules
import numpy
import runfold

def train():
    found = runfold.all_gather(WARM)
    if runfold.get_context().get_attempt() == 1:
        raise RuntimeError("once")
    return found
"""


@pytest.mark.parametrize("wanted", [True, False])
def test_a_run_is_restarted_warm_unless_told_otherwise(tmp_path: Path, wanted: bool) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    config = runfold.RunConfig(
        name="warm",
        data_dir=tmp_path / "data",
        failure_config=runfold.FailureConfig(max_failures=1),
        warm_restarts=wanted,
    )
    scaling = runfold.ScalingConfig(num_workers=2)
    result = runfold.Trainer(f"{tmp_path}/script.py:train", scaling_config=scaling, run_config=config).fit()
    assert result.attempts == 2
    assert result.return_value == [wanted, wanted]
