"""What is played: a world, how it is troubled, and which promises are held against it beside those that always are."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final, Literal

import msgspec

FOLDER: Final = Path(__file__).resolve().parents[2] / "simulation" / "scenarios"

Trouble = Literal[
    "controller_dies",
    "controller_stops",
    "controller_sleeps",
    "controller_is_cut_off",
    "broker_dies",
    "broker_is_slow",
    "broker_fails",
    "disk_is_full",
    "inbox_is_lost",
    "supervisor_dies",
    "supervisor_is_cut_off",
    "runner_dies",
    "runner_is_cut_off",
    "node_dies",
    "nodes_are_cut_off",
    "rank_fails",
    "everybody_is_cut_off",
    "user_is_cut_off",
    "clock_jumps",
    "stray_in_log",
    "log_is_damaged",
    "archive_fails",
    "archiver_dies",
    "capacity_changes",
]
RankTrouble = Literal["user", "exit", "vanish", "signal", "oom", "load", "hang"]
Range = tuple[float, float]


class Spell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A trouble that comes about every `every_s` and goes again; not before `from_s`, and at most `times`."""

    every_s: float
    lasts_s: Range = (0.0, 0.0)
    from_s: float = 0.0
    times: int = 1000


class Messages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a message is lost, its answer is, it arrives twice, or late; a seed draws one of each."""

    lost: tuple[float, ...] = (0.0,)
    unheard: tuple[float, ...] = (0.0,)
    doubled: tuple[float, ...] = (0.0,)
    late: tuple[float, ...] = (0.0,)
    late_s: Range = (0.05, 3.0)


class Ranks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ranks do: reports of an attempt, seconds between them, how likely one fails, and of what."""

    reports: tuple[int, int] = (0, 20)
    step_s: Range = (0.0, 1.0)
    fails: tuple[float, ...] = (0.0,)
    of: tuple[RankTrouble, ...] = ("user", "exit", "vanish", "signal", "oom", "load")
    stubborn: float = 0.1
    """How likely a rank does not heed SIGTERM."""


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See the module. Counts are drawn from (least, most); `calm_s` is when all trouble is over.

    `holds` names promises of `invariants.py` that are held in this scenario beside those that always are.
    """

    about: str
    holds: tuple[str, ...] = ()
    seeds: int = 10
    """How many seeds of it are played by `make test`."""
    calm_s: float = 35.0
    runs: tuple[int, int] = (1, 2)
    workers: tuple[int, int] = (1, 4)
    controllers: tuple[int, int] = (1, 3)
    nodes: tuple[int, int] = (1, 2)
    slots: tuple[int, int] = (4, 8)
    max_failures: tuple[int, int] = (0, 3)
    adopt_within_s: float = 60.0
    progress_timeout_s: float | None = None
    max_hangs: int = 1
    archives: float = 0.0
    """How likely there is an archiver."""
    aborts: float = 0.0
    notices: float = 0.0
    elastic: float = 0.0
    """How likely a run is elastic, from 1 rank or more up to its workers."""
    replicas: float = 0.0
    """How likely a run has replica groups, of one rank or more."""
    dwell_s: Range = (1.0, 10.0)
    """How long an elastic run keeps a size."""
    restarts_s: Range = (0.0, 8.0)
    """How soon what died is started again."""
    messages: Messages = Messages()
    ranks: Ranks = Ranks()
    trouble: dict[Trouble, Spell] = {}
    trace: str = ""
    """Which trace of nodes that come and go drives the pool until all is calm; what fails is drawn from the mix."""


def load_scenario(name: str) -> Scenario:
    """Return the scenario of a file in the folder."""
    return msgspec.convert(tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8")), Scenario)


def scenario_names() -> list[str]:
    """Return the name of every scenario that needs no trace."""
    names = sorted(path.stem for path in FOLDER.glob("*.toml"))
    return [name for name in names if not load_scenario(name).trace]
