"""The pool of this machine: the slots' book, runners forked here, places in a folder."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from runfold.workers.adopted import AdoptedRunner
from runfold.workers.hatchery import Hatchery, RunnerProcess
from runfold.workers.pipe import RunnerSpec
from runfold.workers.places import Place, find_places
from runfold.workers.pools.labels import HOST_LABEL
from runfold.workers.pools.local import Slots
from runfold.workers.pools.pool import Left, Notice, Watched
from runfold.workers.remote import RemoteTasks

SETTLE_S: Final = 2.0
"""A runner that was being started when its supervisor died takes its place within this time."""


class MachinePool:
    """The nodes of this machine with their slots (CPUs); runners hold their places in a folder, if there is one.

    `labels` are given to nodes, beside their name and that of the machine.
    """

    def __init__(
        self,
        nodes: Mapping[str, int],
        hatchery: Hatchery,
        name: str,
        places_dir: str | None,
        labels: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        host = {HOST_LABEL: socket.gethostname()}
        all_labels = {node: {**host, **(labels or {}).get(node, {})} for node in nodes}
        self.book = Slots({node: {"CPU": float(slots)} for node, slots in nodes.items()}, all_labels)
        self.settled_s = time.monotonic() + SETTLE_S if places_dir is not None else 0.0
        self.remote: RemoteTasks | None = None
        self._hatchery = hatchery
        self._name = name
        self._folder = Path(places_dir) if places_dir is not None else None

    def attend(self, on_change: Callable[[], None]) -> None:
        """Nothing changes here but by what is asked."""

    async def serve(self) -> None:
        """Do nothing by itself."""
        await asyncio.Event().wait()

    def start(self, spec: RunnerSpec, on_end: Callable[[], None]) -> Watched:
        """Fork a runner."""
        return RunnerProcess(spec, self._hatchery, on_end)

    def find(self, knows: Callable[[Place], bool], on_end: Callable[[], None]) -> list[Left]:
        """Look through the places."""
        if self._folder is None:
            return []
        return [
            AdoptedRunner(path, place, on_end)
            for path, place in find_places(self._folder)
            if place.pool == self._name and not knows(place)
        ]

    def is_here(self, node: str) -> bool:  # noqa: ARG002  # as every pool's
        """All are."""
        return True

    def notices(self) -> list[Notice]:
        """Return nothing: who takes this machine back tells its processes."""
        return []
