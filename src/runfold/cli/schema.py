"""`runfold schema`: the messages as JSON schemas."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import typer

from runfold.cli.described import described
from runfold.cli.show import print_json
from runfold.errors import UsageError
from runfold.events.assignment import Assignment
from runfold.events.beats import Folded, PoolBeat, RunnerBeat
from runfold.events.entry import Entry
from runfold.events.facts import FactMessage
from runfold.events.job import Job
from runfold.events.requests import AnyRequest
from runfold.events.status import Status

KINDS: Final[dict[str, object]] = {
    "job": Job,
    "request": AnyRequest,
    "fact": FactMessage,
    "beat": RunnerBeat,
    "pool-beat": PoolBeat,
    "folded": Folded,
    "entry": Entry,
    "assignment": Assignment,
    "status": Status,
}


def command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.", show_default=False)],
) -> None:
    """Print the JSON schema of a kind of message, with every field."""
    if kind not in KINDS:
        raise UsageError(f"there is no kind of message {kind!r}; known are {', '.join(KINDS)}")
    print_json(described(msgspec.json.schema(KINDS[kind])))
