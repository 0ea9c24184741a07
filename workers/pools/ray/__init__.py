"""The pool of a Ray cluster. Nothing outside of this folder imports Ray."""

from __future__ import annotations

import msgspec


class RayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster: its address, or None for one of the supervisor's own, with so many CPUs."""

    address: str | None = None
    cpus_count: int = 2
