"""What the drivers of all peers share: a folder a run, medians of a few, one JSON object as the answer."""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import peer_jobs

RUNS_COUNT = 3
PATIENCE_S = 60.0
REPORT_LIMITS = (3.0, 2000)
SETTLE_S = 3.0
"""How long a run trains before something is killed, and how long it is watched after."""
HERE = Path(__file__).resolve().parent

Start = Callable[[str, Path, int, bool], None]
"""Runs a job to its end: its name, its folder, how many ranks, whether it imports torch."""


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for the notes of one run."""
    with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as name:
        Path(name, "limits").write_text(json.dumps(REPORT_LIMITS))
        yield Path(name)


def answer(values: list[float], said: str = "") -> None:
    """Print what was measured, in seconds, and what there is to say."""
    print(json.dumps({"values": values, "said": said}), flush=True)


def measured(start: Start, measure: str, ranks: int) -> None:
    """Measure what needs nothing but a job run to its end."""
    values: list[float] = []
    for _ in range(RUNS_COUNT):
        with folder() as where:
            values.append(_once(start, measure, ranks, where))
    answer(values)


def _once(start: Start, measure: str, ranks: int, where: Path) -> float:
    began = time.monotonic()
    match measure:
        case "start":
            start("enter", where, ranks, False)
            return max(peer_jobs.noted(where, "entered", 1)) - began
        case "empty":
            start("empty", where, ranks, False)
            return time.monotonic() - began
        case "raise" | "raise-torch":
            start("raise", where, ranks, measure == "raise-torch")
            (raised,) = peer_jobs.noted(where, "raised", 1)
            return max(peer_jobs.noted(where, "entered", 2)) - raised
        case "report":
            start("report", where, ranks, False)
            took = sorted(float(one) for path in where.glob("report.*") for one in json.loads(path.read_text()))
            return took[len(took) // 2]
        case _:
            raise ValueError(measure)


def pid_of(where: Path, rank: int) -> int:
    """The process of a rank that trains, once all have begun."""
    peer_jobs.all_have(where, "entered", 1, 2, PATIENCE_S)
    time.sleep(SETTLE_S)
    return int((where / f"pid.{rank}").read_text())


def again(where: Path, killed: float) -> float:
    """How long it took until all ranks were in user code again."""
    found = peer_jobs.all_have(where, "entered", 2, 2, PATIENCE_S)
    if len(found) < 2:
        raise TimeoutError(f"not all ranks were in user code again within {PATIENCE_S:g} s")
    return max(found) - killed


def kill(pid: int) -> float:
    """Kill a process and return when."""
    moment = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return moment


def arguments() -> tuple[str, int]:
    """The measure, and how many ranks."""
    return sys.argv[1], int(sys.argv[2])
