"""What a runner's rank spawner forks: a rank, or the keeper of the run's storage."""

from __future__ import annotations

from runfold.workers import keeper, rank


def main(spec: bytes, fds: dict[str, int]) -> int:
    """Run as what `spec` says; a rank's is empty."""
    return keeper.main(spec, fds) if spec == keeper.SPEC else rank.main(spec, fds)
