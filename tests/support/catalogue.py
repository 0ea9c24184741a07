"""The catalogue: what fails, how it is brought about, and what the first screen of its replay must name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runfold.replay.render import render_story, render_timeline
from runfold.replay.screen import on_screen
from runfold.replay.source import load
from runfold.replay.story import story
from runfold.replay.timeline import timeline

if TYPE_CHECKING:
    from pathlib import Path

SCREEN_LINES_COUNT = 24
"""What a terminal shows at once."""

QUICK = (
    *("timeouts.beat_every_s=0.3", "timeouts.report_flush_s=0.1", "timeouts.coalesce_s=0.1"),
    *("timeouts.restart_grace_s=0.3", "timeouts.stop_grace_s=0.3"),
)
HANGS = ("timeouts.progress_timeout_s=10", "failure.max_hangs=0")
SPREAD = "scaling.placement_strategy=SPREAD"


@dataclass(frozen=True)
class Case:
    """One failure: what is trained and how, and the words that its first screen must have, in this order.

    `driven`: somebody has to do something to it from outside (see `producing.py`).
    """

    name: str
    entrypoint: str
    workers: int
    says: tuple[str, ...]
    settings: tuple[str, ...] = ()
    driven: bool = False


CASES = (
    Case(
        "exception-on-rank-3-of-4",
        "broken.py:raises",
        4,
        (
            "ERRORED",
            "failed attempt 1: rank 3 on local-",
            "ValueError: batch 17 has labels outside [0, 10)",
            "in raises",
            "decided raise at entry",
            "no worker failure is allowed (failure.max_failures = 0); the run ends",
        ),
    ),
    Case(
        "segfault",
        "broken.py:segfaults",
        2,
        (
            "ERRORED",
            "failed attempt 1: rank 1 on local-",
            "ended by SIGSEGV at broken.py:",
            "in segfaults",
            "decided raise at entry",
            "no worker failure is allowed (failure.max_failures = 0); the run ends",
        ),
    ),
    Case(
        "memory-limit",
        "broken.py:needs_memory",
        2,
        (
            "ERRORED",
            "failed attempt 1: rank 1 on local-",
            "MemoryError: its address space is limited to 2048 MiB (RLIMIT_AS)",
            "(oom)",
            "in needs_memory",
            "decided raise at entry",
            "no worker failure is allowed (failure.max_failures = 0); the run ends",
        ),
    ),
    Case(
        "killed-from-outside",
        "broken.py:at_work",
        2,
        (
            "ERRORED",
            "failed attempt 1: rank 1 on local-",
            "ended by SIGKILL (signal)",
            "decided raise at entry",
            "no worker failure is allowed (failure.max_failures = 0); the run ends",
        ),
        driven=True,
    ),
    Case(
        "deadlock-in-collective",
        "broken.py:deadlocks",
        2,
        (
            "ERRORED",
            "failed attempt 1: rank 1 on local-",
            "no report for 10 s",
            "it waits in Python code, at broken.py:",
            "in deadlocks",
            "decided raise at entry",
            "no hang failure is allowed (failure.max_hangs = 0); the run ends",
            "rank 0 waits for the other ranks in barrier #1",
        ),
        settings=HANGS,
    ),
    Case(
        "native-spin",
        "broken.py:spins",
        2,
        (
            "ERRORED",
            "failed attempt 1: rank 1 on local-",
            "it is busy in native code, which keeps the interpreter to itself, at broken.py:",
            "in spins",
            "decided raise at entry",
            "no hang failure is allowed (failure.max_hangs = 0); the run ends",
            "rank 0 waits for the other ranks in barrier #1",
        ),
        settings=HANGS,
    ),
    Case(
        "fewer-reports",
        "broken.py:reports_less",
        2,
        (
            "FINISHED",
            "in doubt: checkpoint_000000_1, checkpoint_000001_1",
            "the ranks returned after different counts of reports (2 to 3, fewest: rank 1)",
        ),
    ),
    Case(
        "import-error-on-one-node",
        "imports.py:train",
        2,
        (
            "ERRORED",
            "failed attempt 1: rank 1 on local-1",
            "No module named 'driver_of_this_node' (load)",
            "at imports.py:",
            "decided raise at entry",
            "never retried; the run ends",
        ),
        settings=(SPREAD,),
    ),
    Case(
        "disk-full-at-checkpoint",
        "broken.py:saves",
        1,
        (
            "ERRORED",
            "failed attempt 1: rank 0 on local-",
            "the checkpoint of report 0 was not uploaded: OSError: [Errno 28] No space left on device",
            "(uploading checkpoint_000000_1/state-0)",
            "(storage)",
            "decided raise at entry",
            "no worker failure is allowed (failure.max_failures = 0); the run ends",
        ),
        settings=("checkpoint.upload_retries_max=0",),
    ),
    Case(
        "corrupt-checkpoint-on-resume",
        "broken.py:resumes",
        1,
        (
            "ERRORED",
            "failed attempt 1: rank 0 on local-",
            "CheckpointDamagedError: first/checkpoint_000000_1: state-0 is not what rank 0 uploaded",
            "(storage)",
            "in resumes",
            "decided raise at entry",
            "no worker failure is allowed (failure.max_failures = 0); the run ends",
            "continues checkpoint-to-corrupt from checkpoint_000000_1",
        ),
        settings=("storage_path=checkpoints", "storage_name=first"),
    ),
    Case(
        "validation-crash",
        "broken.py:validates",
        1,
        ("FINISHED", "noticed", "checkpoint_000000_1: its validation failed", "SIGSEGV"),
        settings=('validation={"entrypoint": "broken.py:crashes"}',),
    ),
    Case(
        "slow-storage",
        "broken.py:saves_slowly",
        2,
        (
            "FINISHED",
            "a warning: checkpoint_000000_1 waits for rank 1 on local-",
            "it waits in Python code, at broken.py:",
            "in slow_put",
            "for more than timeouts.checkpoint_timeout_s (10 s)",
        ),
        settings=("timeouts.checkpoint_timeout_s=10",),
        driven=True,
    ),
    Case(
        "port-clash",
        "broken.py:meets",
        2,
        (
            "ERRORED",
            "failed attempt 1: rank 1 on local-",
            "Address already in use",
            "in meets",
            "decided raise at entry",
            "no worker failure is allowed (failure.max_failures = 0); the run ends",
        ),
    ),
    Case(
        "nan-loss",
        "broken.py:diverges",
        2,
        (
            "ERRORED",
            "failed attempt 1: rank 0 on local-",
            "FloatingPointError: loss is nan at step 3",
            "in diverges",
            "decided raise at entry",
            "no worker failure is allowed (failure.max_failures = 0); the run ends",
        ),
    ),
    Case(
        "victim-before-cause",
        "broken.py:loses_its_peer",
        2,
        (
            "ERRORED",
            "failed attempt 1: rank 1 on local-1: RuntimeError: the data loader's worker 3 died",
            "(user, known only later)",
            "decided raise at entry",
            "it came before what was taken for the first cause: rank 0 failed first: ConnectionError",
        ),
        settings=(SPREAD,),
        driven=True,
    ),
    Case(
        "broker-outage",
        "broken.py:at_work",
        2,
        ("FINISHED", "noticed", "was heard up to", "its broker or link was down, or it stood still"),
        driven=True,
    ),
    Case(
        "controller-crash",
        "broken.py:at_work",
        2,
        ("FINISHED", "noticed", "epoch 2", "decided before"),
        driven=True,
    ),
    Case(
        "runner-crash",
        "broken.py:once_more",
        2,
        (
            "FINISHED",
            "failed attempt 1: local-",
            "the runner ended by SIGKILL (runner)",
            "decided retry at entry",
            "worker failure 1 of 1; starting again on new places",
            "worker budget: 1 of 1 spent, 0 left",
        ),
        settings=("failure.max_failures=1",),
        driven=True,
    ),
    Case(
        "preemption",
        "broken.py:once_more",
        2,
        (
            "FINISHED",
            "failed attempt 1: local-",
            "decided retry at entry",
            "preemption failure 1 of 1; starting again on new places",
            "to be taken back: SIGTERM to the runner on local-",
        ),
        settings=("failure.max_preemption_failures=1",),
        driven=True,
    ),
    Case(
        "bad-node-twice",
        "broken.py:breaks_a_node",
        2,
        (
            "FINISHED",
            "failed attempt 1: local-1: RunnerLost",
            "worker failure 1 of 3; restarting on the same places; local-1 lost its place, and another is looked for",
            "failed attempt 2: local-1: RunnerLost",
            "worker failure 2 of 3; restarting on the same places; local-1 lost its place, and another is looked for",
        ),
        settings=(SPREAD, "failure.max_failures=3", "failure.node_exclude_after=2"),
    ),
    Case(
        "user-abort",
        "broken.py:at_work",
        2,
        ("ABORTED", "because aborted by demo: the learning rate was wrong", "noticed", "abort run accepted"),
        driven=True,
    ),
    Case(
        "more-ranks-than-slots",
        "broken.py:raises",
        99,
        (
            "ERRORED",
            "PlacementImpossible: 99 ranks with 1 CPU each, and the whole pool has local-0: 16 CPU, local-1: 16 CPU",
            "decided raise at entry",
            "never retried; the run ends",
        ),
    ),
    Case(
        "no-such-function",
        "broken.py:trains",
        1,
        (
            "ERRORED",
            "failed attempt 1: rank 0 on local-",
            "broken has no 'trains'; its functions:",
            "decided raise at entry",
            "never retried; the run ends",
        ),
    ),
    Case(
        "missing-setting",
        "broken.py:misses_a_setting",
        1,
        (
            "ERRORED",
            "failed attempt 1: rank 0 on local-",
            "KeyError: 'learning_rate' (user)",
            "in misses_a_setting",
            "decided raise at entry",
            "no worker failure is allowed (failure.max_failures = 0); the run ends",
        ),
    ),
)
BY_NAME = {case.name: case for case in CASES}


def first_screen(archive: Path) -> str:
    """Return what replay shows first of an archive, spaces made one: read from the directory alone."""
    history = load(archive)
    lines = [*render_story(story(history)), *render_timeline(on_screen(timeline(history)))]
    return " ".join("\n".join(lines[:SCREEN_LINES_COUNT]).split())


def check(case: Case, archive: Path) -> None:
    """Check that the first screen says all it must, in this order."""
    screen = first_screen(archive)
    place = 0
    for words in case.says:
        found = screen.find(words, place)
        assert found >= 0, f"{case.name}: {words!r} is not where it should be in: {screen}"
        place = found + len(words)
