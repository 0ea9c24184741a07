"""How runs fare when controllers die, and what one controller bears. `python benchmarks/bearing.py` prints it alone."""

import asyncio
import statistics
from collections.abc import Iterator
from typing import Final

import loads
import longlogs
import msgspec
import takeovers
from replaying import Row

KILLS_COUNT: Final = 20
ALONE_COUNT: Final = 5
TAKEN_S_MAX: Final = 1.5
RUNS_COUNT: Final = 200
ALL_TAKEN_S_MAX: Final = 5.0
TRAINED_S: Final = 10.0
BEATING: Final = (100, 13, 8)
"""Runs, nodes of each, ranks on each node: each node's runner beats once a second for all its ranks."""
BEATING_CPU_MAX: Final = 0.5
SUBMITTED_COUNT: Final = 1000
SUBMITTED_S_MAX: Final = 10.0
LONG_COUNT: Final = 1_000_000
AT_S_MAX: Final = 2.0
NO_SLOWER_S: Final = 0.05
"""What two measurements of the same thing differ by here."""


def taken(ones: list[float], many: list[float], alone: list[float]) -> Iterator[Row]:
    """From kill -9 of the controller that has a run to the entry by which another has it."""
    floor = ("1.000 s", "a lease's time to live: nobody knows sooner")
    yield Row(
        f"controller killed → another has its run (slowest of {len(ones)})", f"{TAKEN_S_MAX:g} s",
        f"{max(ones):.3f} s; median {statistics.median(ones):.3f} s", *floor, max(ones) <= TAKEN_S_MAX,
    )  # fmt: skip
    yield Row(
        f"the only controller killed → started again, it has its run (slowest of {len(alone)})", "–",
        f"{max(alone):.3f} s; median {statistics.median(alone):.3f} s", "–", "", True,
    )  # fmt: skip
    yield Row(
        f"controller killed → another has all of its {len(many)} runs", f"{ALL_TAKEN_S_MAX:g} s",
        f"{max(many):.3f} s; median {statistics.median(many):.3f} s", *floor, max(many) <= ALL_TAKEN_S_MAX,
    )  # fmt: skip


def borne(crowd: loads.Crowd, cpu: float, submitted_s: float) -> Iterator[Row]:
    """What one controller bears."""
    ranks = BEATING[0] * BEATING[1] * BEATING[2]
    yield Row(
        f"{RUNS_COUNT} runs of 2 ranks at once, each rank reporting twice a second", "all end",
        f"all at work after {crowd.at_work_s:.1f} s, all over after {crowd.over_s:.1f} s; {crowd.cpu:.0%} of one core, "
        f"{crowd.entries_per_s:.0f} entries a second meanwhile",
        f"{TRAINED_S:g} s", "the time they train", True,
    )  # fmt: skip
    yield Row(
        f"{ranks} ranks beating once a second", f"{BEATING_CPU_MAX:.0%} of one core", f"{cpu:.1%} of one core",
        f"{BEATING[0] * BEATING[1]} messages a second", "one a runner", cpu <= BEATING_CPU_MAX,
    )  # fmt: skip
    yield Row(
        f"{SUBMITTED_COUNT} submissions → entry 0 of the last stands", f"{SUBMITTED_S_MAX:g} s", f"{submitted_s:.2f} s",
        "–", "", submitted_s <= SUBMITTED_S_MAX,
    )  # fmt: skip


def long_logs(found: longlogs.Measured) -> Iterator[Row]:
    """What snapshots save."""
    yield Row(
        f"take-over of a log of {LONG_COUNT} entries", "as long as for 1000",
        f"{found.long_s * 1000:.0f} ms", f"{found.short_s * 1000:.0f} ms", "a log of 1000 entries",
        found.long_s <= found.short_s + NO_SLOWER_S,
    )  # fmt: skip
    yield Row(
        f"`runfold replay RUN --at N` of a log of {LONG_COUNT} entries on the service", f"{AT_S_MAX:g} s",
        f"{found.at_s:.2f} s", "–", "", found.at_s <= AT_S_MAX,
    )  # fmt: skip


async def rows() -> list[Row]:
    """Measure everything."""
    return [
        *taken(
            await takeovers.one_by_one(KILLS_COUNT),
            await takeovers.all_at_once(RUNS_COUNT),
            await takeovers.alone(ALONE_COUNT),
        ),
        *borne(
            await loads.crowd(RUNS_COUNT, TRAINED_S),
            await loads.beating(*BEATING, TRAINED_S),
            await loads.submissions(SUBMITTED_COUNT),
        ),
        *long_logs(await longlogs.measure(LONG_COUNT)),
    ]


if __name__ == "__main__":
    for row in asyncio.run(rows()):
        print(msgspec.json.format(msgspec.json.encode(row)).decode())
