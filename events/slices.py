"""TPU slices: how many hosts one has, and how many ranks whole slices have room for. Pure tables."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from runfold.events.base import Value

CHIPS_PER_HOST: Final = 4
SINGLE_HOST_CHIPS_MAX: Final = 8
GENERATIONS: Final = ("v2", "v3", "v4", "v5p", "v5litepod", "v6e", "v7x")
SINGLE_HOST_GENERATIONS: Final = frozenset(("v5litepod", "v6e"))
"""Generations whose slices of at most `SINGLE_HOST_CHIPS_MAX` chips are one host with all of them."""
ONE_CORE_GENERATIONS: Final = frozenset(("v5litepod", "v6e"))
"""Generations whose chips have one core; those of the others have two. Kinds of slices are called after their cores."""
CORES_PER_CHIP: Final = 2
ALIASES: Final[Mapping[str, str]] = MappingProxyType({"v5e": "v5litepod"})
DIMENSION_MAX: Final = 1024

_TOPOLOGY: Final = re.compile(r"\d{1,4}(x\d{1,4}){1,2}")
_TYPE: Final = re.compile(r"(?:tpu-)?(v\d+[a-z]*)(?:-\d+)?")


class Slice(Value, frozen=True, kw_only=True):
    """One slice of a kind: its chips, how many of them a host has, its hosts."""

    generation: str
    topology: str
    chips: int
    chips_per_host: int

    @property
    def hosts(self) -> int:
        """Hosts of the slice."""
        return self.chips // self.chips_per_host

    @property
    def pod_type(self) -> str:
        """What slices of this size are called: after the generation and their cores."""
        cores = 1 if self.generation in ONE_CORE_GENERATIONS else CORES_PER_CHIP
        return f"{self.generation}-{self.chips * cores}"

    @property
    def host_resources(self) -> dict[str, float]:
        """What one rank has that has a host to itself."""
        return {"CPU": 1.0, "TPU": float(self.chips_per_host)}

    def workers(self, tpus_per_worker: float) -> int:
        """Return how many ranks with so many chips each fill the slice; 0 when one needs more than there is."""
        if tpus_per_worker <= 0 or tpus_per_worker > self.chips:
            return 0
        return int(self.chips / tpus_per_worker + 1e-9)


def slice_of(topology: str, accelerator_type: str) -> Slice:
    """Return the slice that a topology (`4x4`, `2x2x2`) of an accelerator type (`v4`, `TPU-V6E`) is.

    Raises `ValueError` for what is none.
    """
    generation = _generation(accelerator_type)
    text = topology.strip().lower()
    if not _TOPOLOGY.fullmatch(text):
        raise ValueError(f"topology: {topology!r} is none; it reads like 4x4 or 2x2x2")
    dimensions = [int(part) for part in text.split("x")]
    if not all(1 <= size <= DIMENSION_MAX for size in dimensions):
        raise ValueError(f"topology: each dimension of {topology!r} must be 1 to {DIMENSION_MAX}")
    chips = math.prod(dimensions)
    small = generation in SINGLE_HOST_GENERATIONS and chips <= SINGLE_HOST_CHIPS_MAX
    per_host = chips if small else min(CHIPS_PER_HOST, chips)
    if chips % per_host:
        raise ValueError(f"topology: {topology!r} has {chips} chips, which is no whole number of hosts of {per_host}")
    return Slice(generation=generation, topology=text, chips=chips, chips_per_host=per_host)


def _generation(accelerator_type: str) -> str:
    found = _TYPE.fullmatch(accelerator_type.strip().lower())
    name = ALIASES.get(found.group(1), found.group(1)) if found is not None else ""
    if name not in GENERATIONS:
        known = ", ".join(GENERATIONS)
        raise ValueError(f"accelerator_type: {accelerator_type!r} is no TPU that is known; these are: {known}")
    return name


def whole_slices(fits: int, workers_per_slice: int, intact: int | None = None) -> int:
    """Return how many ranks fit if only whole slices count; `intact` slices are whole, None: nobody counted."""
    if workers_per_slice <= 0:
        return 0
    slices = fits // workers_per_slice
    return workers_per_slice * (slices if intact is None else min(slices, intact))


def slices_for(num_workers: int, workers_per_slice: int) -> int:
    """Return how many slices so many ranks need."""
    return -(-num_workers // workers_per_slice) if workers_per_slice > 0 else 1


def pod_order(hosts: Sequence[tuple[str, int, str]]) -> tuple[str, ...]:
    """Return nodes in the order in which their ranks are counted: slice by slice, by worker number within it.

    `hosts` are (name of the slice, the host's number in it, node); a slice stands where its first host was named.
    """
    firsts: dict[str, int] = {}
    for k, (name, _, _) in enumerate(hosts):
        firsts.setdefault(name, k)
    return tuple(node for _, _, node in sorted(hosts, key=lambda host: (firsts[host[0]], host[1], host[2])))
