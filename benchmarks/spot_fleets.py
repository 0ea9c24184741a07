"""Two spot fleets as they were recorded, squeezed in time and scaled to this machine, under one elastic run.

.venv/bin/python benchmarks/spot_fleets.py --traces DIR [--within 60] [--places 8] [-o json]

Every node that comes or goes is a slot that is set on the pool; the run takes what there is. Checked: it finishes, its
sizes stay in bounds, no failure but the loss of nodes is spent, and every attempt begins where the last commit was.
"""

import argparse
import asyncio
import csv
import json
import math
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from runfold.capacities import set_capacity
from runfold.client import open_client
from runfold.events.config import ScalingConfig, Timeouts
from runfold.events.facts import Reported
from runfold.events.job import Job
from runfold.events.pools import SetCapacity
from runfold.events.state import Finished
from runfold.events.transitions import AttemptStarted, CheckpointCommitted, ResizePlanned
from runfold.follow import follow_run
from runfold.ids import new_request_id, new_run_id
from runfold.locate import Address
from runfold.replay.goodput import goodput
from runfold.replay.history import History
from runfold.replay.render import render_story
from runfold.replay.story import story
from runfold.service import Plan, Service
from runfold.sources import live_history

TRACES = ("p3", "g4dn")
FASTEST_S = 0.02
END_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Change:
    """A place comes or goes, so long after the beginning."""

    at_s: float
    place: int
    there: bool


def read_sizes(path: Path, places: int) -> list[tuple[float, int]]:
    """Return when a fleet has so many nodes, scaled to so many places at its largest; one size a tick."""
    with path.open(encoding="utf-8") as file:
        rows = [(float(ms) / 1000, what == "add", node) for ms, what, node in csv.reader(file)]
    up: set[str] = set()
    counts: dict[float, int] = {}
    for at_s, comes, node in rows:
        up = up | {node} if comes else up - {node}
        counts[at_s] = len(up)
    most = max(counts.values())
    return [(at_s, math.ceil(count * places / most)) for at_s, count in counts.items()]


def changes_of(folder: Path, places: int, within_s: float) -> list[Change]:
    """Return the places that come and go in both fleets, one after the other, within so many seconds."""
    found: list[Change] = []
    there = list(range(places))
    gone: list[int] = []
    for k, name in enumerate(TRACES):
        sizes = read_sizes(folder / "bamboo" / f"{name}-trace.csv", places)
        first, share_s = sizes[0][0], within_s / len(TRACES)
        faster = (sizes[-1][0] - first) / share_s
        for at_s, size in sizes:
            when_s = k * share_s + (at_s - first) / faster
            # Who has been there the longest goes first, and who has been gone the longest comes back.
            while len(there) > size:
                gone.append(there.pop(0))
                found.append(Change(when_s, gone[-1], there=False))
            while len(there) < size:
                there.append(gone.pop(0))
                found.append(Change(when_s, there[-1], there=True))
    return found


async def play(address: Address, changes: list[Change]) -> None:
    """Do as the fleets did."""
    began = time.monotonic()
    for change in changes:
        await asyncio.sleep(max(FASTEST_S, began + change.at_s - time.monotonic()))
        wish = SetCapacity(id=new_request_id(), slots=int(change.there), node=f"local-{change.place}", by="the fleet")
        await set_capacity(address, "local", wish)


def faults(history: History, places: int) -> tuple[list[str], int]:
    """Return what should not have been, and how many attempts were seen to begin where the last commit was."""
    found: list[str] = []
    begins: dict[int, int] = {1: 0}
    committed, seen = -1, 0
    for entry in history.entries:
        for said in entry.inputs:
            if isinstance(said, Reported) and said.attempt in begins and said.rank == 0 and said.metrics is not None:
                began, seen = said.metrics["begins"], seen + 1
                if began != begins.pop(said.attempt):
                    found.append(f"attempt {said.attempt} began at step {began}, and step {committed} was committed")
        for item in entry.transitions:
            if isinstance(item, CheckpointCommitted) and item.metrics is not None:
                committed = int(str(item.metrics["step"]))
                # What is committed between two attempts is what the next one begins from.
                begins = {attempt: committed + 1 for attempt in begins}  # noqa: C420  # of a type that is known
            elif isinstance(item, AttemptStarted):
                begins = {item.attempt: committed + 1}
            if isinstance(item, AttemptStarted | ResizePlanned) and not 1 <= item.num_workers <= places:
                found.append(f"entry {entry.n}: {item.num_workers} ranks")
    return found, seen


async def run(folder: Path, traces: Path, places: int, within_s: float) -> dict[str, object]:
    """Play both fleets under one run, and return what came of it."""
    changes = changes_of(traces, places, within_s)
    service = Service(Plan(folder / "data", "runfold", slots=1, nodes_count=places), print)
    await service.start()
    try:
        enough = folder / "enough"
        job = Job(
            id=new_run_id("fleet"),
            entrypoint=f"{Path(__file__).with_name('fleet_job.py')}:train",
            config={"enough": str(enough)},
            scaling=ScalingConfig(num_workers=(1, places), elastic_resize_monitor_interval_s=0.5),
            timeouts=Timeouts(coalesce_s=0.05, resize_wait_s=2.0, restart_grace_s=0.2),
            labels={"benchmark": "spot fleets"},
        )
        async with open_client(service.address) as client:
            await client.submit(job)
            async with follow_run(client, str(job.id)) as following:
                await play(service.address, changes)
                await asyncio.sleep(1.0)
                enough.touch()
                async with asyncio.timeout(END_TIMEOUT_S):
                    state = await following.wait_ended()
            history = await live_history(client, str(job.id))
        if history is None:
            raise RuntimeError("the run has no log")
        return told(history, changes, places, finished=isinstance(state.phase, Finished))
    finally:
        await service.stop()


def told(history: History, changes: list[Change], places: int, *, finished: bool) -> dict[str, object]:
    """Return the figures."""
    use = goodput(history)
    transitions = [item for entry in history.entries for item in entry.transitions]
    sizes = [item.num_workers for item in transitions if isinstance(item, AttemptStarted)]
    wrong, resumed = faults(history, places)
    return {
        "changes": len(changes),
        "attempts": len(sizes),
        "sizes": sorted(set(sizes)),
        "planned": sum(isinstance(item, ResizePlanned) for item in transitions),
        "commits": sum(isinstance(item, CheckpointCommitted) for item in transitions),
        "seconds": round(use.clock_s, 3),
        "goodput": round(use.goodput or 0.0, 4),
        "uses_s": {name: round(seconds, 3) for name, seconds in use.uses_s.items()},
        "resumed": resumed,
        "finished": finished,
        "faults": wrong,
        "told": [] if finished else list(render_story(story(history))),
    }


def main() -> int:
    """Play, print, and return 1 when something was as it should not be."""
    parser = argparse.ArgumentParser(description="Two recorded spot fleets under one elastic run.")
    parser.add_argument("--traces", type=Path, required=True, metavar="DIR")
    parser.add_argument("--within", type=float, default=60.0, metavar="S")
    parser.add_argument("--places", type=int, default=8, metavar="N")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="runfold-fleet-") as folder:
        found = asyncio.run(run(Path(folder), given.traces.resolve(), given.places, given.within))
    if given.output == "json":
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:<10} {value}")
    return 0 if found["finished"] and not found["faults"] else 1


if __name__ == "__main__":
    sys.exit(main())
