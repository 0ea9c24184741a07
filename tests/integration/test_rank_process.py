"""Real rank processes: what a training function can do that returns, and what the session tells."""

from __future__ import annotations

import asyncio
import hashlib
import os
from typing import TYPE_CHECKING

import cloudpickle

from runfold.workers.link import Entered, Hello, Loaded, Report, Returned
from runfold.workers.spawner import Spawner
from support.ranks import Group, failed, run_one, start_of, write_job

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_rank_tells_its_whole_life(spawner: Spawner, tmp_path: Path) -> None:
    write_job(
        tmp_path,
        """
        def train(config):
            print("lr", config["lr"])
            for step in range(3):
                runfold.report({"loss": 1.0 / (step + 1), "step": step * 10})
            return {"best": (1, 2)}
        """,
    )
    end, group = await run_one(spawner, start_of(tmp_path, config={"lr": 0.5}))
    assert end.exit.code == 0
    assert end.link_error is None
    kinds = [type(message) for message in group.messages[0]]
    assert kinds == [Hello, Loaded, Entered, Report, Report, Report, Returned]
    assert [(r.index, r.step, r.metrics["loss"]) for r in group.reports()][:2] == [(0, 0, 1.0), (1, 10, 0.5)]
    assert isinstance(end.result, Returned)
    assert (end.result.value, end.result.blob, end.result.reports) == ({"best": [1, 2]}, None, 3)
    assert group.output[0] == "lr 0.5\n"
    assert end.exit.peak_memory_bytes is not None
    assert end.exit.peak_memory_bytes > 1_000_000


async def test_loading_tells_the_digest_of_the_file_and_versions(spawner: Spawner, tmp_path: Path) -> None:
    write_job(tmp_path, "def train(): pass")
    _, group = await run_one(spawner, start_of(tmp_path))
    loaded = next(message for message in group.messages[0] if isinstance(message, Loaded))
    digest = hashlib.sha256((tmp_path / "job.py").read_bytes()).hexdigest()
    assert loaded.digest == f"sha256:{digest}"
    assert loaded.versions["python"].startswith("3.")
    assert "numpy" not in loaded.versions


async def test_a_module_is_looked_up_in_the_working_directory(spawner: Spawner, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "__init__.py").touch()
    (tmp_path / "inner" / "deep.py").write_text(
        "import os, sys\nclass T:\n  @staticmethod\n  def train(): return [os.getcwd(), sys.argv, __name__]\n"
    )
    end, _ = await run_one(spawner, start_of(tmp_path, "inner.deep:T.train"))
    assert isinstance(end.result, Returned)
    assert end.result.value == [str(tmp_path), ["inner.deep:T.train"], "inner.deep"]


async def test_a_pickled_function_is_unpickled_in_the_rank(spawner: Spawner, tmp_path: Path) -> None:
    factor = 3
    blob = cloudpickle.dumps(lambda config: config["x"] * factor)
    entry = f"blob:sha256:{hashlib.sha256(blob).hexdigest()}"
    end, _ = await run_one(spawner, start_of(tmp_path, entry, config={"x": 4}, blob=blob))
    assert isinstance(end.result, Returned)
    assert end.result.value == 12
    (tmp_path / "function").write_bytes(blob)
    from_file = start_of(tmp_path, entry, config={"x": 5}, blob_path=str(tmp_path / "function"))
    end, _ = await run_one(spawner, from_file)
    assert isinstance(end.result, Returned)
    assert end.result.value == 15


async def test_a_value_that_is_no_json_is_handed_over_pickled(spawner: Spawner, tmp_path: Path) -> None:
    write_job(tmp_path, "def train(): return {1, 2, 3}")
    end, _ = await run_one(spawner, start_of(tmp_path))
    assert isinstance(end.result, Returned)
    assert end.result.value is None
    assert end.result.blob is not None
    assert cloudpickle.loads(end.result.blob) == {1, 2, 3}


async def test_a_value_that_cannot_be_pickled_is_the_users_error(spawner: Spawner, tmp_path: Path) -> None:
    write_job(tmp_path, "import threading\ndef train(): return threading.Lock()")
    end, _ = await run_one(spawner, start_of(tmp_path))
    error = failed(end.result).error
    assert (error.type, error.kind) == ("TypeError", "user")
    assert "returned" in (error.traceback or "")


async def test_the_environment_of_the_job_is_set(spawner: Spawner, tmp_path: Path) -> None:
    write_job(tmp_path, "import os\ndef train(): return [os.environ['COLOUR'], os.environ.get('PATH')]")
    end, _ = await run_one(spawner, start_of(tmp_path, env={"COLOUR": "blue"}))
    assert isinstance(end.result, Returned)
    assert end.result.value == ["blue", os.environ.get("PATH")]


async def test_variables_read_at_start_up_take_effect(spawner: Spawner, tmp_path: Path) -> None:
    extra = tmp_path / "extra"
    extra.mkdir()
    (extra / "helper_of_mine.py").write_text("WORD = 'found'\n")
    write_job(
        tmp_path,
        """
        import os, sys
        import helper_of_mine
        def train():
            runfold.report({"a": 1})
            print("printed")
            return [helper_of_mine.WORD, sys.flags.hash_randomization, os.getpid()]
        """,
    )
    env = {"PYTHONPATH": str(extra), "PYTHONHASHSEED": "0"}
    end, group = await run_one(spawner, start_of(tmp_path, env=env))
    assert isinstance(end.result, Returned), end
    assert end.result.value == ["found", 0, end.exit.pid]
    assert (end.exit.code, len(group.reports())) == (0, 1)
    assert group.output[0] == "printed\n"


async def test_the_end_of_an_ordinary_program_is_kept(spawner: Spawner, tmp_path: Path) -> None:
    write_job(
        tmp_path,
        """
        import atexit, sys, threading, time
        from concurrent.futures import ThreadPoolExecutor
        def train():
            pool = ThreadPoolExecutor(2)
            pool.submit(print, "pooled").result()
            atexit.register(print, "at exit")
            written = threading.Event()
            threading.Thread(target=lambda: (written.wait(), time.sleep(0.05), print("thread"))).start()
            sys.stdout.write("no line end")
            written.set()
        """,
    )
    end, group = await run_one(spawner, start_of(tmp_path))
    assert end.exit.code == 0
    assert group.output[0].startswith("pooled\nno line endthread")
    assert group.output[0].endswith("at exit\n")


async def test_standard_input_is_empty_and_a_closed_stdout_harms_nobody(spawner: Spawner, tmp_path: Path) -> None:
    write_job(tmp_path, "import sys\ndef train():\n  x = sys.stdin.read()\n  sys.stdout.close()\n  return x")
    end, _ = await run_one(spawner, start_of(tmp_path))
    assert isinstance(end.result, Returned)
    assert end.result.value == ""
    assert end.exit.code == 0


async def test_a_hundred_megabytes_of_output_arrive(spawner: Spawner, tmp_path: Path) -> None:
    write_job(
        tmp_path,
        "import sys\ndef train():\n  for _ in range(1600): sys.stdout.write('x' * 65535 + chr(10))\n",
    )
    sizes: list[int] = []
    group = Group(spawner, start_of(tmp_path))
    group._print = lambda rank, _stream, data: sizes.append(len(data))  # type: ignore[method-assign]  # counted, not kept
    await group.start()
    (end,) = await group.wait()
    assert isinstance(end.result, Returned)
    assert sum(sizes) == 1600 * 65536


async def test_the_context_says_who_the_rank_is(spawner: Spawner, tmp_path: Path) -> None:
    write_job(
        tmp_path,
        """
        def train():
            c = runfold.get_context()
            return [c.get_run_id(), c.get_attempt(), c.get_experiment_name(), c.get_world_size(), c.get_world_rank(),
                    c.get_local_rank(), c.get_local_world_size(), c.get_node_rank(), runfold.get_checkpoint()]
        """,
    )
    group = await Group(spawner, start_of(tmp_path, attempt=4, node_rank=0), world_size=2).start()
    ends = await group.wait()
    values = [end.result.value for end in ends if isinstance(end.result, Returned)]
    assert values == [["digits-7k2", 4, "digits", 2, rank, rank, 2, 0, None] for rank in range(2)]


async def test_reports_from_threads_are_numbered_without_a_hole(spawner: Spawner, tmp_path: Path) -> None:
    write_job(
        tmp_path,
        """
        import threading
        def work(k):
            for i in range(500):
                runfold.report({"thread": k, "i": i})
        def train():
            threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
            [t.start() for t in threads]
            [t.join() for t in threads]
        """,
    )
    end, group = await run_one(spawner, start_of(tmp_path))
    assert isinstance(end.result, Returned)
    assert [report.index for report in group.reports()] == list(range(2000))
    for k in range(4):
        assert [r.metrics["i"] for r in group.reports() if r.metrics["thread"] == k] == list(range(500))


async def test_a_process_forked_from_the_rank_has_no_session(spawner: Spawner, tmp_path: Path) -> None:
    write_job(
        tmp_path,
        """
        import os
        def train():
            runfold.report({"a": 1})
            pid = os.fork()
            if pid == 0:
                try:
                    runfold.report({"b": 1})
                except RuntimeError as error:
                    os._exit(42 if "no process started from it" in str(error) else 1)
                os._exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            runfold.report({"code": code})
            return code
        """,
    )
    end, group = await run_one(spawner, start_of(tmp_path))
    assert isinstance(end.result, Returned)
    assert end.result.value == 42
    assert [report.metrics for report in group.reports()] == [{"a": 1}, {"code": 42}]


async def test_a_runner_that_does_not_read_makes_report_wait_and_loses_nothing(
    spawner: Spawner, tmp_path: Path
) -> None:
    write_job(
        tmp_path,
        "def train():\n  for i in range(3000):\n    runfold.report({'i': i, 'text': 'x' * 1000})\n",
    )
    group = Group(spawner, start_of(tmp_path))
    await group.start()
    await group.until(Report)
    group.handles[0].pause()
    held = len(group.reports())
    await asyncio.sleep(0)
    group.handles[0].resume()
    (end,) = await group.wait()
    assert held < 3000
    assert isinstance(end.result, Returned)
    assert [report.metrics["i"] for report in group.reports()] == list(range(3000))


async def test_processes_that_multiprocessing_starts_find_the_users_module(spawner: Spawner, tmp_path: Path) -> None:
    write_job(
        tmp_path,
        """
        import multiprocessing
        def double(x): return 2 * x
        def train():
            results = []
            for method in ("fork", "spawn"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    results += pool.map(double, [1, 2])
            return results
        """,
    )
    end, _ = await run_one(spawner, start_of(tmp_path))
    assert isinstance(end.result, Returned), end
    assert end.result.value == [2, 4, 2, 4]


async def test_an_interrupted_report_leaves_the_link_whole(spawner: Spawner, tmp_path: Path) -> None:
    write_job(
        tmp_path,
        """
        import signal
        caught = []
        def interrupt(*_):
            raise KeyboardInterrupt
        def train():
            signal.signal(signal.SIGALRM, interrupt)
            sent = 0
            for i in range(400):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.001 + (i % 7) * 0.0005)
                    while True:
                        runfold.report({"text": "x" * 60_000})
                        sent += 1
                except KeyboardInterrupt:
                    pass
            signal.setitimer(signal.ITIMER_REAL, 0)
            runfold.report({"last": True})
            return sent
        """,
    )
    end, group = await run_one(spawner, start_of(tmp_path))
    assert isinstance(end.result, Returned), end
    assert group.reports()[-1].metrics == {"last": True}
    assert isinstance(end.result.value, int)
    assert len(group.reports()) > end.result.value
