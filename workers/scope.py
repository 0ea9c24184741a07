"""Which ranks meet with each other: all of an attempt, or those of a replica group in one of its lives. Pure."""

from __future__ import annotations

import hashlib
import hmac

from runfold.events.assignment import Assignment, Rendezvous, ReplicaGiven
from runfold.events.base import Value


class Scope(Value, frozen=True, kw_only=True):
    """The ranks `first` … `first + size − 1` of an attempt. `group`: their replica group; None: they are all ranks."""

    attempt: int
    first: int
    size: int
    group: int | None = None
    life: int = 1
    groups: int = 1

    @property
    def ranks(self) -> range:
        """The ranks that meet."""
        return range(self.first, self.first + self.size)

    def secret(self, of_run: bytes) -> bytes:
        """Return the secret of those who meet: what is left of an earlier attempt or life is not let in."""
        which = "" if self.group is None else f" group {self.group} life {self.life}"
        return hmac.digest(of_run, f"attempt {self.attempt}{which}".encode(), hashlib.sha256)


def scope_of(assignment: Assignment, rank: int) -> Scope:
    """Return the scope of a rank that is laid out."""
    size = assignment.replica_group_size
    if size is None:
        return Scope(attempt=assignment.attempt, first=0, size=len(assignment.layout))
    group = rank // size
    return Scope(
        attempt=assignment.attempt,
        first=group * size,
        size=size,
        group=group,
        life=next((laid.life for laid in assignment.layout if laid.rank == rank), 1),
        groups=max(assignment.num_workers // size, 1),
    )


def sources_of(assignment: Assignment, scope: Scope) -> dict[int, str]:
    """Return who speaks for each rank of a scope."""
    places = assignment.places
    return {laid.rank: places[laid.place].source for laid in assignment.layout if laid.rank in scope.ranks}


def rendezvous_of(assignment: Assignment, scope: Scope) -> Rendezvous | None:
    """Return where the ranks of a scope meet: at the runner of their first."""
    if scope.group is None:
        return assignment.rendezvous
    first = next((laid for laid in assignment.layout if laid.rank == scope.first), None)
    if first is None or not assignment.places[first.place].port:
        return None
    place = assignment.places[first.place]
    return Rendezvous(addr=place.addr, port=place.port)


def given_to(assignment: Assignment, scope: Scope) -> ReplicaGiven | None:
    """Return where a replica group in a later life than its first begins."""
    return next((one for one in assignment.replicas if (one.group, one.life) == (scope.group, scope.life)), None)
