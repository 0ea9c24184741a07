"""Real traces: nodes of a spot fleet coming and going, what fails in large training, and how often.

They stand beside the repository, not in it (`../shared/traces`), and are squeezed in time.
"""

from __future__ import annotations

import asyncio
import csv
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.sim.machines import PoolSeat
from support.sim.runner import SIGKILL
from support.sim.scenario import Trouble
from support.sim.world import Node, World

FOLDER: Final = Path(__file__).resolve().parents[4] / "shared" / "traces"
SCALE_GPUS: Final = "16384"
"""The scale whose mean time to failure spaces what fails."""
S_PER_MS: Final = 1e-3
S_PER_H: Final = 3600.0

WHAT_IT_IS_HERE: Final[dict[str, Trouble]] = {
    "cuda_error": "rank_fails",
    "cpu_overload": "runner_is_cut_off",
    "cpu_oom": "rank_fails",
    "insufficient_disk_space": "disk_is_full",
    "infiniband_error": "nodes_are_cut_off",
    "filesystem_mount": "rank_fails",
    "hdfs_error": "broker_fails",
    "container_error": "runner_dies",
    "os_kernel_panic": "node_dies",
    "gpu_memory_error": "rank_fails",
    "external_service_error": "broker_dies",
    "gpu_unavailable": "node_dies",
    "disk_fault": "broker_is_slow",
    "job_hang": "supervisor_is_cut_off",
    "mfu_decline": "broker_is_slow",
    "nan_value": "rank_fails",
    "code_or_data_adjustment": "controller_dies",
}
"""Symptom of the mix → the trouble that stands for it."""


@dataclass(frozen=True)
class Change:
    """A node comes or goes."""

    at_s: float
    comes: bool
    node: str


def read_changes(name: str, within_s: float) -> tuple[list[Change], float]:
    """Return a trace of nodes squeezed into so many seconds, and how much faster that makes everything."""
    with (FOLDER / "bamboo" / f"{name}-trace.csv").open(encoding="utf-8") as file:
        rows = [(float(ms) * S_PER_MS, what == "add", node) for ms, what, node in csv.reader(file)]
    first, last = rows[0][0], rows[-1][0]
    faster = (last - first) / within_s
    return [Change((at_s - first) / faster, comes, node) for at_s, comes, node in rows], faster


def read_mix() -> tuple[list[Trouble], list[int]]:
    """Return the troubles that stand for what fails in large training, and how often each did."""
    with (FOLDER / "failure-mix" / "byterobust_table1.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [WHAT_IT_IS_HERE[row["symptom"]] for row in rows], [int(row["count"]) for row in rows]


def read_mttf_s() -> float:
    """Return the mean time to failure at the scale."""
    with (FOLDER / "failure-mix" / "mttf_by_scale.csv").open(encoding="utf-8") as file:
        return next(float(row["mttf_hours"]) for row in csv.DictReader(file) if row["gpus"] == SCALE_GPUS) * S_PER_H


class Fleet:
    """Makes a trace true: nodes join the pool and leave it, with all that runs on them."""

    def __init__(self, world: World, pool: PoolSeat, changes: list[Change]) -> None:
        self._world, self._pool, self._changes = world, pool, changes
        self._slots = world.dice.randint(*world.scenario.slots)
        world.nodes.clear()
        for change in changes:
            if change.comes and change.at_s <= 0.0:
                world.nodes[change.node] = Node(change.node, self._slots)

    async def come_and_go(self) -> None:
        """Do as the trace says."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for change in self._changes:
            await asyncio.sleep(max(0.0, began_s + change.at_s - loop.time()))
            self._world.net.steps += 1
            if change.comes:
                self._come(change.node)
            else:
                self._go(change.node)

    def _come(self, name: str) -> None:
        self._world.nodes[name] = Node(name, self._slots)
        self._pool.node_comes(name, self._slots)

    def _go(self, name: str) -> None:
        if self._world.nodes.pop(name, None) is None:
            return
        self._pool.node_goes(name)
        for runner in self._world.truth.runners:
            if runner.node == name and runner.alive:
                runner.die(SIGKILL)


def draw_failures(dice: random.Random, faster: float) -> Iterator[tuple[float, Trouble]]:
    """Draw what fails next, and how long that takes in squeezed time, for ever."""
    troubles, weights = read_mix()
    mttf_s = read_mttf_s() / faster
    while True:
        yield dice.expovariate(1.0 / mttf_s), dice.choices(troubles, weights)[0]
