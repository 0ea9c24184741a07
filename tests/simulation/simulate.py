"""Play scenarios under seeds, by hand: `make simulate SEEDS=10000`, or one again, with all that happened in it.

.venv/bin/python tests/simulation/simulate.py --seeds 10000
.venv/bin/python tests/simulation/simulate.py --scenario everything --seed 7
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.sim.invariants import broken
from support.sim.play import Outcome, simulate, told
from support.sim.scenario import load_scenario, scenario_names

CHUNK_COUNT: Final = 25
FINDINGS_SHOWN_MAX: Final = 5


class Played(NamedTuple):
    """What came of a seed: how much happened, which promises did not hold."""

    scenario: str
    seed: int
    steps: int
    findings: list[str]


def again(scenario: str, seed: int) -> str:
    """Return the command that plays a seed again."""
    return f"make simulate SCENARIO={scenario} SEED={seed}"


def play_one(what: tuple[str, int]) -> Played:
    """Play one seed of a scenario."""
    name, seed = what
    outcome = simulate(load_scenario(name), seed)
    return Played(name, seed, outcome.steps, broken(outcome))


def digest_of(outcome: Outcome) -> str:
    """Return what two plays of a seed must have in common: every byte of every log."""
    found = hashlib.sha256()
    for run, log in outcome.logs.items():
        for data in (run.encode(), *log):
            found.update(data)
    return found.hexdigest()


def chosen(names: list[str], seeds_count: int, first: int) -> Iterator[tuple[str, int]]:
    """Share out seeds among scenarios, one after the other."""
    for k in range(seeds_count):
        yield names[k % len(names)], first + k // len(names)


def play_many(names: list[str], seeds_count: int, first: int, jobs_count: int) -> int:
    """Play many seeds; print those that break a promise, each with the command that plays it again."""
    began, steps, bad = time.monotonic(), 0, 0
    with ProcessPoolExecutor(jobs_count) as pool:
        for played in pool.map(play_one, chosen(names, seeds_count, first), chunksize=CHUNK_COUNT):
            steps += played.steps
            if played.findings:
                bad += 1
                print(f"{played.scenario}, seed {played.seed}:")
                for finding in played.findings[:FINDINGS_SHOWN_MAX]:
                    print(f"    {finding}")
                print(f"    again: {again(played.scenario, played.seed)}", flush=True)
    took_s = time.monotonic() - began
    print(f"{seeds_count} seeds of {len(names)} scenarios, {steps} steps, {took_s:.0f} s: {bad} broke a promise")
    return 1 if bad else 0


def play_again(name: str, seed: int) -> int:
    """Play one seed, and print everything that happened in it."""
    outcome = simulate(load_scenario(name), seed, logging.INFO)
    print(told(outcome))
    findings = broken(outcome)
    for finding in findings:
        print(f"BROKEN: {finding}")
    print(f"{name}, seed {seed}: {outcome.steps} steps, {len(findings)} broken promises, logs {digest_of(outcome)}")
    return 1 if findings else 0


def main() -> int:
    """Read what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds, shared out among the scenarios")
    parser.add_argument("--first", type=int, default=1000, help="the first seed of each scenario")
    parser.add_argument("--scenario", default="", help="one scenario only")
    parser.add_argument("--seed", type=int, help="one seed only, with everything that happens in it")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes")
    asked = parser.parse_args()
    names = [asked.scenario] if asked.scenario else scenario_names()
    if asked.seed is not None:
        return max(play_again(name, asked.seed) for name in names)
    return play_many(names, asked.seeds, asked.first, asked.jobs)


if __name__ == "__main__":
    sys.exit(main())
