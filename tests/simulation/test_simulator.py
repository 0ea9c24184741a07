"""The simulator itself: enough is played, much happens in it, and chance has no part in it but by its seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.sim.play import simulate
from support.sim.scenario import FOLDER, load_scenario, scenario_names

HERE = Path(__file__).parent
SEEDS_COUNT = 200
STEPS_COUNT = 2000
LINES_MAX = 30
SHORT_S = 60.0


def test_enough_seeds_are_played() -> None:
    assert sum(load_scenario(name).seeds for name in scenario_names()) >= SEEDS_COUNT


def test_scenarios_are_small_and_say_what_they_are_about() -> None:
    for name in scenario_names():
        lines = (FOLDER / f"{name}.toml").read_text(encoding="utf-8").splitlines()
        assert len(lines) <= LINES_MAX, name
        assert load_scenario(name).about.endswith((".", ").")), name


def test_about_so_much_happens_in_a_play() -> None:
    short = [scenario for name in scenario_names() if (scenario := load_scenario(name)).calm_s <= SHORT_S]
    steps = [simulate(scenario, 0).steps for scenario in short]
    assert sum(steps) / len(steps) > STEPS_COUNT / 2


def test_the_same_seed_writes_the_same_logs_in_another_process() -> None:
    """Whatever order sets have there."""
    last_lines = {play_elsewhere(hash_seed) for hash_seed in ("0", "1", "4711")}
    assert len(last_lines) == 1, last_lines


def play_elsewhere(hash_seed: str) -> str:
    command = [sys.executable, str(HERE / "simulate.py"), "--scenario", "everything", "--seed", "3"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.splitlines()[-1]
