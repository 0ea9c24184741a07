"""What a runner's rank spawner forks: a rank, the keeper of the run's storage, a lighthouse, or the warm process."""

from __future__ import annotations

from runfold.workers import keeper, lighthouse, rank, warm


def main(spec: bytes, fds: dict[str, int]) -> int:
    """Run as what `spec` says; a rank's is empty."""
    match spec:
        case keeper.SPEC:
            return keeper.main(spec, fds)
        case lighthouse.SPEC:
            return lighthouse.main(spec, fds)
        case warm.SPEC:
            return warm.main(spec, fds)
        case _:
            return rank.main(spec, fds)
