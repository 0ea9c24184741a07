"""`make peers`: run the same job on runfold, Ray Train and torchrun in turn, and print what it takes, side by side.

Each peer has an environment and processes of its own; one measures at a time. What a peer does not do is said in the
table. Everything is bounded, and what was started is ended, by its id, when this ends.
"""

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import peer_envs
import psutil

from runfold.workers.processes import adopt_orphans

MEASURE_TIMEOUT_S: Final = 400.0
HERE: Final = Path(__file__).resolve().parent
PEERS: Final = ("runfold, local pool", "runfold, Ray pool", "Ray Train", "torchrun")
DRIVERS: Final[dict[str, tuple[str, str, tuple[str, ...]]]] = {
    "runfold, local pool": ("runfold", "peer_on_runfold.py", ("local",)),
    "runfold, Ray pool": ("runfold", "peer_on_runfold.py", ("ray",)),
    "Ray Train": ("ray", "peer_on_ray.py", ()),
    "torchrun": ("torchrun", "peer_on_torchrun.py", ()),
}
ROWS: Final = (
    ("submit → both ranks in user code", "start", 2),
    ("an empty run of 2 ranks, from submit to its result", "empty", 2),
    ("rank raises after 1 s → both ranks in user code again", "raise", 2),
    ("the same, in a script that imports torch", "raise-torch", 2),
    ("`report` of one metric, median, 1 rank", "report", 1),
    ("`report` of one metric, median, 2 ranks", "report", 2),
    ("`report` of one metric, median, 4 ranks", "report", 4),
    ("node killed → both ranks in user code again (3 nodes)", "node", 2),
    ("controller killed", "controller", 2),
)
VERSIONS: Final = {"runfold": ("runfold", "ray", "torch"), "ray": ("ray", "torch"), "torchrun": ("torch",)}
CANNOT: Final = {
    ("torchrun", "report"): "n/a: torchrun has no reports",
    ("runfold, Ray pool", "controller"): "as on the local pool: the controller knows no Ray",
}


@dataclass(frozen=True)
class Cell:
    """What a peer took for a row: its median in seconds where there is one, and what there is to say."""

    median: float | None = None
    spread: str = ""
    said: str = ""


def measure(peer: str, name: str, ranks: int, cache: Path) -> Cell:
    """Have a peer's driver measure; what goes wrong is said in its cell."""
    if (cannot := CANNOT.get((peer, name))) is not None:
        return Cell(said=cannot)
    environment, driver, more = DRIVERS[peer]
    try:
        python = peer_envs.environment(environment, cache)
    except (subprocess.SubprocessError, OSError) as error:
        return Cell(said=f"not available: its environment cannot be made ({type(error).__name__})")
    words = [str(python), str(HERE / driver), name, str(ranks), *more]
    env = {**os.environ, "PYTHONPATH": str(HERE), "RAY_TRAIN_V2_ENABLED": "1", "PYTHONWARNINGS": "ignore"}
    env.pop("PYTHONSAFEPATH", None)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        out, err = process.communicate(timeout=MEASURE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Cell(said=f"not within {MEASURE_TIMEOUT_S:g} s")
    finally:
        end_all()
    lines = [line for line in out.splitlines() if line.startswith('{"values"')]
    if process.returncode != 0 or not lines:
        why = (err.strip().splitlines() or ["it said nothing"])[-1]
        return Cell(said=f"not available: {why[:120]}")
    found = json.loads(lines[-1])
    values: list[float] = found["values"]
    if not values:
        return Cell(said=found["said"])
    return Cell(statistics.median(values), f"{seconds(min(values))} .. {seconds(max(values))}", found["said"])


def end_all() -> None:
    """End what is left of what was started here: processes whose parents are gone are ours by now."""
    left = psutil.Process().children(recursive=True)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=10.0)


def seconds(value: float) -> str:
    """A duration as people read it."""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.0f} ms" if value >= 0.01 else f"{value * 1e6:.0f} µs"


def how_many(ratio: float) -> str:
    """How many times something is, with no more digits than medians of a few runs bear."""
    if ratio < 1000:
        return f"{ratio:.{0 if ratio >= 100 else 1}f}×"
    return f"over {10 ** (len(str(int(ratio))) - 1):,}×"


def cell_text(cell: Cell, first: Cell) -> str:
    """A cell of the table: median, how many times that of the first column, and what there is to say."""
    if cell.median is None:
        return cell.said
    times = f", {how_many(cell.median / first.median)}" if first.median and cell is not first else ""
    return f"**{seconds(cell.median)}**{times} ({cell.spread}){f': {cell.said}' if cell.said else ''}"


def machine(cache: Path) -> Iterator[str]:
    """What was measured, and on what."""
    memory = psutil.virtual_memory().total / 2**30
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    yield f"{os.cpu_count()} CPUs, {memory:.0f} GiB, {system}."
    for name, packages in VERSIONS.items():
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            found = peer_envs.versions(peer_envs.environment(name, cache), packages)
            yield f"Environment of {name}: {', '.join(f'{one} {version}' for one, version in found.items())}."
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    yield f"Load of the machine over 1, 5 and 15 minutes at the end: {load}."


def main() -> int:
    """Measure, and print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=peer_envs.cache_dir(), help="where the environments stand")
    parser.add_argument("--only", action="append", choices=sorted({name for _, name, _ in ROWS}), help="these rows")
    chosen = parser.parse_args()
    adopt_orphans()
    # As after Ctrl-C: what was started is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"| | {' | '.join(PEERS)} |\n|---|{'---|' * len(PEERS)}", flush=True)
    try:
        for what, name, ranks in ROWS:
            if chosen.only and name not in chosen.only:
                continue
            cells = [measure(peer, name, ranks, chosen.cache) for peer in PEERS]
            print(f"| {what} | {' | '.join(cell_text(cell, cells[0]) for cell in cells)} |", flush=True)
    finally:
        end_all()
    print()
    for line in machine(chosen.cache):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
