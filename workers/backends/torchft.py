"""torchft: a process group in each replica group, and a lighthouse by which the groups find each other."""

from __future__ import annotations

import importlib.util

from runfold.workers.backends import Meet, Place
from runfold.workers.backends.torch import TorchBackend


class TorchftBackend(TorchBackend):
    """One rank of its replica group's process group; the options are those of torch, and of the lighthouse."""

    def environment(self) -> dict[str, str]:
        """Return what torch looks for within the group, and what torchft looks for among groups."""
        return {**super().environment(), **replica_environment(self._place)}

    def on_start(self, meet: Meet) -> None:
        """Join the group's process group; groups meet later, in torchft's manager."""
        if importlib.util.find_spec("torchft") is None:
            raise ImportError("torchft is not installed where the ranks run: pip install 'runfold[torchft]'")
        super().on_start(meet)


def replica_environment(place: Place) -> dict[str, str]:
    """Return the variables that say which replica group this is, and where the lighthouse is."""
    given = {"REPLICA_GROUP_ID": str(place.replica_group), "NUM_REPLICA_GROUPS": str(place.replica_groups)}
    return {**given, "TORCHFT_LIGHTHOUSE": place.lighthouse} if place.lighthouse else given
