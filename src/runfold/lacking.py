"""Runs whose logs in the service hold less than is known of them: a damaged store takes ends, or everything.

A broker that ended uncleanly and finds a damaged block drops what follows in it, of every run, and says nothing.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from runfold.events.base import Document
from runfold.events.nats.collected import find_collected

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runfold.client import Client
    from runfold.events.status import Status


class Lacking(Document, frozen=True, kw_only=True):
    """A run, how many entries its log holds, and how many its status knows of."""

    run: str
    holds: int
    known: int


async def find_lacking(client: Client, statuses: Sequence[Status]) -> list[Lacking]:
    """Return the runs whose logs lack entries that their statuses, read before, know of; none that was given back.

    A log is written before the status, so that it may have more. Of generations of a log the fullest counts.
    """
    held = await _held(client, "*")
    found: list[Lacking] = []
    for status in sorted(statuses, key=lambda one: one.run):
        known = status.head.n + 1
        if status.quarantined or held.get(status.run, 0) >= known:
            continue
        # Asked again, alone: an answer about all runs leaves some out where there are very many.
        holds = (await _held(client, status.run)).get(status.run, 0)
        if holds < known and await find_collected(client.connection, status.run) is None:
            found.append(Lacking(run=status.run, holds=holds, known=known))
    return found


async def _held(client: Client, run: str) -> Mapping[str, int]:
    """Return how many entries the logs of runs hold, by run."""
    names = client.names
    held: defaultdict[str, int] = defaultdict(int)
    depth = names.subjects.logs("*").split(".").index("*")
    for subject, count in (await client.api.subjects(names.log, names.subjects.logs(run)) or {}).items():
        name = subject.split(".")[depth]
        held[name] = max(held[name], count)
    return held
