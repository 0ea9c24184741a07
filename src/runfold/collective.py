"""The small collectives, under the name that the peer has them: `train.collective`."""

from __future__ import annotations

from runfold.workers.session import barrier, broadcast_from_rank_zero

__all__ = ["barrier", "broadcast_from_rank_zero"]
