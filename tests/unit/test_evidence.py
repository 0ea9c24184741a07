"""How a rank's end reads: a crash is told in the frame of its user's code, else by the last line it printed."""

from __future__ import annotations

import signal

from runfold.events.base import Cause
from runfold.events.evidence import of_rank_exited
from runfold.events.facts import RankExited


def exited(where: str | None, last_lines: str) -> RankExited:
    return RankExited(
        source="local",
        incarnation=1,
        number=1,
        attempt=1,
        clock_s=0.0,
        rank=0,
        life=1,
        signal=signal.SIGSEGV,
        where=where,
        last_lines=last_lines,
    )


def test_a_crash_is_told_where_its_user_finds_it() -> None:
    item = exited("train.py:43 in segv", "Fatal Python error\nExtension modules: numpy\n")
    error = of_rank_exited(item, node="local", t=1.0, cause=Cause(input=0)).error
    assert (error.message, error.where) == ("ended by SIGSEGV at train.py:43 in segv", "train.py:43 in segv")


def test_without_its_frames_the_last_line_has_to_do() -> None:
    error = of_rank_exited(exited(None, "one\ntwo\n"), node="local", t=1.0, cause=Cause(input=0)).error
    assert (error.message, error.where) == ("ended by SIGSEGV; its last line: two", None)
