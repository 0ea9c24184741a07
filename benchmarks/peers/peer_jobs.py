"""The job that every peer runs: what happens in it is noted in files, on the clock that all processes share."""

import json
import os
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

TRAINED_S = 1.0
TRAINS_MAX_S = 100.0
TICK_S = 0.02

Report = Callable[[Mapping[str, float]], None]


def note(folder: Path, what: str, rank: int) -> int:
    """Note that something happened, and return the how many-th time it was for this rank."""
    count = 1 + len(list(folder.glob(f"{what}.*.{rank}")))
    partial = folder / f".{what}.{rank}"
    partial.write_text(repr(time.monotonic()))
    partial.rename(folder / f"{what}.{count}.{rank}")
    return count


def noted(folder: Path, what: str, count: int) -> list[float]:
    """When something happened for the `count`-th time, by rank."""
    return [float(path.read_text()) for path in sorted(folder.glob(f"{what}.{count}.*"))]


def all_have(folder: Path, what: str, count: int, ranks: int, patience_s: float) -> list[float]:
    """Wait until something has happened so often for all ranks; fewer times when patience is over."""
    deadline = time.monotonic() + patience_s
    while len(found := noted(folder, what, count)) < ranks and time.monotonic() < deadline:
        time.sleep(TICK_S)
    return found


def run(job: str, folder: Path, rank: int, world: int, report: Report | None) -> None:
    """Do one of the jobs as a rank of a group."""
    if job == "empty":
        return
    count = note(folder, "entered", rank)
    match job:
        case "raise" if count == 1:
            all_have(folder, "entered", 1, world, 30.0)
            time.sleep(TRAINED_S)
            if rank == world - 1:
                note(folder, "raised", rank)
                raise RuntimeError("boom")
            time.sleep(60.0)
        case "report" if report is not None:
            (folder / f"report.{rank}").write_text(json.dumps(_reports(report, folder)))
        case "train":
            (folder / f"pid.{rank}").write_text(str(os.getpid()))
            _train(folder, rank)
        case _:
            pass


def _reports(report: Report, folder: Path) -> list[float]:
    """How long each of many reports took: as many as there is time for, each after a step of a millisecond."""
    limit_s, most = json.loads((folder / "limits").read_text())
    took: list[float] = []
    deadline = time.monotonic() + limit_s
    while len(took) < most and (time.monotonic() < deadline or len(took) < 3):
        time.sleep(0.001)
        began = time.perf_counter()
        report({"loss": 1.0 / (len(took) + 1)})
        took.append(time.perf_counter() - began)
    return took


def _train(folder: Path, rank: int) -> None:
    """Note each step, until the file `stop` is there."""
    began = time.monotonic()
    with (folder / f"ticks.{rank}").open("a", buffering=1) as ticks:
        while not (folder / "stop").exists() and time.monotonic() < began + TRAINS_MAX_S:
            ticks.write(f"{time.monotonic()!r}\n")
            time.sleep(TICK_S)


def ticks(folder: Path, rank: int) -> list[float]:
    """When a rank made its steps."""
    path = folder / f"ticks.{rank}"
    return [float(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def after(folder: Path, ranks: int, moment: float) -> str:
    """Say what the ranks have done since a moment."""
    steps = {rank: ticks(folder, rank) for rank in range(ranks)}
    later = {rank: [tick for tick in found if tick > moment + 1.0] for rank, found in steps.items()}
    if not all(later.values()):
        return "the ranks stop"
    gaps = [b - a for found in steps.values() for a, b in pairwise(found) if b > moment]
    again = bool(noted(folder, "entered", 2))
    return f"the ranks {'start again' if again else 'train on'}; longest pause between steps {max(gaps):.2f} s"
