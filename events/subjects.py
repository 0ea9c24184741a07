"""Subjects: built and parsed here and nowhere else. A part that would break a subject is a `ValueError`."""

from __future__ import annotations

import re
from typing import Final

from runfold.events.base import Value

DEFAULT_NAMESPACE: Final = "runfold"
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
NAME_MAX_CHARS: Final = 64
_NAMESPACE: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")


def is_token(text: str) -> bool:
    """Return whether a name may be part of a subject, with room for what is put behind it."""
    return len(text) <= NAME_MAX_CHARS and _TOKEN.fullmatch(text) is not None


def _token(part: str | int) -> str:
    text = str(part)
    if not _TOKEN.fullmatch(text):
        raise ValueError(f"{text!r} cannot be part of a subject: letters, digits, '-' and '_' only, at most 128")
    return text


class FactSubject(Value, frozen=True, kw_only=True):
    """The parts of a fact's subject."""

    run: str
    attempt: int
    source: str


class RequestSubject(Value, frozen=True, kw_only=True):
    """The parts of a request's subject."""

    run: str
    verb: str


class Subjects:
    """All subjects and names of one namespace."""

    def __init__(self, namespace: str = DEFAULT_NAMESPACE) -> None:
        if not _NAMESPACE.fullmatch(namespace):
            raise ValueError(f"{namespace!r} is no namespace: a lower-case letter, then letters, digits, '-' or '_'")
        self.namespace = namespace
        self.jobs = f"{namespace}.jobs.submit"

    def stream(self, name: str) -> str:
        """Return the name of a stream or bucket: `RUNFOLD_LOG` for `LOG`."""
        return f"{self.namespace.upper()}_{name}"

    def refused(self, sequence: int | str) -> str:
        """Return where the refusal of a job is kept; `*` for all."""
        return f"{self.namespace}.jobs.refused.{sequence if sequence == '*' else _token(sequence)}"

    def request(self, run: str, verb: str) -> str:
        """Return where a request is published."""
        return f"{self.namespace}.run.{_token(run)}.request.{_token(verb)}"

    def fact(self, run: str, attempt: int, source: str) -> str:
        """Return where a source publishes its facts."""
        return f"{self.namespace}.run.{_token(run)}.fact.{_token(attempt)}.{_token(source)}"

    def inbox(self, run: str) -> tuple[str, str]:
        """Return the filters of a run's facts and requests."""
        prefix = f"{self.namespace}.run.{_token(run)}"
        return (f"{prefix}.fact.>", f"{prefix}.request.>")

    def beat(self, run: str, attempt: int, source: str) -> str:
        """Return where a runner beats."""
        return f"{self.namespace}.run.{_token(run)}.beat.{_token(attempt)}.{_token(source)}"

    def beats(self, run: str) -> str:
        """Return the filter of all beats of a run (`*`: of all runs)."""
        return f"{self.namespace}.run.{run if run == '*' else _token(run)}.beat.*.*"

    def pool_beat(self, pool: str) -> str:
        """Return where a pool's supervisor beats (`*`: all pools)."""
        return f"{self.namespace}.pool.{pool if pool == '*' else _token(pool)}.beat"

    def pool_request(self, pool: str, verb: str) -> str:
        """Return where something is asked of a pool's supervisor."""
        return f"{self.namespace}.pool.{_token(pool)}.request.{_token(verb)}"

    def pool_answer(self, pool: str) -> str:
        """Return where a pool's supervisor answers what was asked of it."""
        return f"{self.namespace}.pool.{_token(pool)}.answer"

    def logs(self, run: str = "*") -> str:
        """Return the filter of a run's log in all its generations, or of all runs' logs."""
        return f"{self.namespace}.run.{run if run == '*' else _token(run)}.log.*"

    def log(self, run: str, generation: int = 1) -> str:
        """Return the subject of a run's log."""
        return f"{self.namespace}.run.{_token(run)}.log.{_token(generation)}"

    def assignment(self, run: str) -> str:
        """Return the subject of a run's assignment (`*`: all runs)."""
        return f"{self.namespace}.run.{run if run == '*' else _token(run)}.assignment"

    def folded(self, run: str) -> str:
        """Return where the controller says what it has folded."""
        return f"{self.namespace}.run.{_token(run)}.folded"

    def output(self, run: str, attempt: int | str, rank: int | str) -> str:
        """Return where a rank's output goes (`*` for all attempts or ranks)."""
        parts = [part if part == "*" else _token(part) for part in (attempt, rank)]
        return f"{self.namespace}.run.{_token(run)}.out.{parts[0]}.{parts[1]}"

    def parse_inbox(self, subject: str) -> FactSubject | RequestSubject | None:
        """Return the parts of a fact's or request's subject, or None for any other."""
        parts = subject.split(".")
        if len(parts) < 5 or parts[0] != self.namespace or parts[1] != "run":
            return None
        if parts[3] == "request" and len(parts) == 5:
            return RequestSubject(run=parts[2], verb=parts[4])
        if parts[3] == "fact" and len(parts) == 6 and parts[4].isdecimal():
            return FactSubject(run=parts[2], attempt=int(parts[4]), source=parts[5])
        return None

    def run_of(self, subject: str) -> str | None:
        """Return the run a subject belongs to, or None."""
        parts = subject.split(".")
        return parts[2] if len(parts) > 3 and parts[0] == self.namespace and parts[1] == "run" else None

    def parse_output(self, subject: str) -> tuple[str, int, int] | None:
        """Return (run, attempt, rank) of an output subject, or None."""
        parts = subject.split(".")
        if len(parts) != 6 or parts[0] != self.namespace or parts[3] != "out":
            return None
        return (parts[2], int(parts[4]), int(parts[5])) if parts[4].isdecimal() and parts[5].isdecimal() else None
