"""Whether what a log takes for a failure was one: each is held against what really happened."""

from __future__ import annotations

from collections.abc import Iterator

from runfold.events.failures import Failure
from runfold.events.transitions import FailureDecided
from runfold.replay.history import History
from support.sim.truth import Harm, Truth


def unexplained(truth: Truth, run: str, history: History) -> Iterator[str]:
    """Return the failures decided on that nothing happened for."""
    harms = [harm for harm in truth.harms if harm.run == run]
    for entry in history.entries:
        for item in entry.transitions:
            if isinstance(item, FailureDecided) and not any(explains(harm, item.failure) for harm in harms):
                yield f"entry {entry.n}: {item.reason}; nothing of the kind had happened"


def explains(harm: Harm, failure: Failure) -> bool:
    """Whether this is what the failure is about."""
    match failure.kind:
        case "user" | "exit" | "signal" | "oom" | "load":
            return harm.kind == "rank" and (harm.attempt, harm.rank) == (failure.attempt, failure.rank)
        case "peer":
            return harm.kind == "rank" and harm.attempt == failure.attempt
        case "runner":
            return harm.kind == "runner" and harm.attempt <= failure.attempt and failure.node in ("", harm.node)
        case "preempted":
            return harm.kind == "notice"
        case "placement":
            return harm.kind in ("starved", "notice")
        case "hang":
            return harm.kind == "rank" and (harm.attempt, harm.rank) == (failure.attempt, failure.rank)
        case "node":
            return harm.kind == "silent" and harm.node in ("", failure.node)
        case "rendezvous":
            return harm.kind == "cut" and harm.attempt == failure.attempt
        case "start_timeout":
            return harm.kind == "late" and harm.attempt <= failure.attempt
        case _:
            return False


def some_late(truth: Truth, run: str) -> bool:
    """Whether somebody could not do in time, or not say, what a timer of the run waits for."""
    return any(harm.run == run and harm.kind == "late" for harm in truth.harms)


def was_late(truth: Truth, run: str, failure: Failure) -> bool:
    """Whether a start took too long for such a reason."""
    return failure.kind == "start_timeout" and some_late(truth, run)
