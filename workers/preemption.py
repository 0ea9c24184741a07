"""What a training function is told of nodes that will be taken back. No collective: a rank asks for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runfold.workers import session

if TYPE_CHECKING:
    from runfold.workers.link import Noticed


class PreemptionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that will be taken back, with the ranks on each; the earliest deadline in Unix milliseconds.

    Where nobody said when, it is two minutes after the notice: that is what the controller goes by. None only where the
    run's own beginning has no time.
    """

    deadline_ms: int | None
    preempted_node_to_ranks: dict[str, list[int]]

    @property
    def preempted_node_ids(self) -> list[str]:
        """The nodes, in order of their names."""
        return sorted(self.preempted_node_to_ranks)

    @property
    def preempted_ranks(self) -> list[int]:
        """The ranks on these nodes, in order."""
        return sorted(rank for ranks in self.preempted_node_to_ranks.values() for rank in ranks)


def get_preemption_info() -> PreemptionInfo | None:
    """Return which nodes of the group will be taken back; None when none will be, or not any more.

    Costs microseconds and waits for nobody: it may be told a step earlier in one rank than in another. The ranks are
    asked for a checkpoint as well (`should_checkpoint`), and the group goes on elsewhere once there is one.
    """
    return info_of(session.current("get_preemption_info").noticed())


def info_of(noticed: Noticed) -> PreemptionInfo | None:
    """Return what a rank was told, in the words of the API."""
    if not noticed.nodes:
        return None
    return PreemptionInfo(deadline_ms=noticed.deadline_ms, preempted_node_to_ranks=noticed.nodes)
