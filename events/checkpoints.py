"""The run's checkpoints as its state has them: being gathered, kept, wanted. Nothing here grows with the log."""

from __future__ import annotations

import math
from bisect import insort
from typing import TYPE_CHECKING, Final, Literal

from runfold.events.base import Cause, Json, Value
from runfold.events.failures import ErrorInfo
from runfold.events.limits import CHECKPOINTS_TRACKED_MAX_COUNT
from runfold.events.values import unpack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runfold.events.config import CheckpointConfig
    from runfold.events.state import Rank

CheckpointState = Literal["committed", "pending", "validated", "failed", "timed_out"]
"""Whether a committed checkpoint is to be validated, and what came of it."""
_LARGEST: Final = 1.7976931348623157e308
"""What ±inf are taken for, since JSON has no word for them."""


class ValidationWish(Value, frozen=True, kw_only=True):
    """A report asked for its checkpoint to be validated. `own`: with these arguments over the run's, and this limit."""

    own: bool = False
    arguments: dict[str, Json] = {}
    timeout_s: float | None = None


class Gathering(Value, frozen=True, kw_only=True):
    """A checkpoint that ranks have reported and that not every rank has passed.

    `index` counts reports through all attempts, `at` within this one: the highest at which a rank reported it. `ranks`
    holds those that have (see `with_rank`). `named`: the user chose the directory, and for a rank with files it was the
    so-manieth that it named; 0 for runfold's own. `due`: its time is over; `looked`: the ranks that it waits for were
    looked at; `overdue`: that was said. `validation`: what `first`, the lowest rank with files so far, asked for.
    """

    name: str
    index: int
    at: int
    attempt: int
    ranks: str
    since_t: float
    cause: Cause
    named: int = 0
    due: Cause | None = None
    looked: bool = False
    overdue: bool = False
    first: int | None = None
    validation: ValidationWish | None = None


class Mark(Value, frozen=True, kw_only=True):
    """Where ranks were in their data at a report: by what they said, the set of ranks that did."""

    at: int
    ranks: dict[str, str]


class Kept(Value, frozen=True, kw_only=True):
    """A committed checkpoint that is there. `score` is None when it has none, and then ranks worst.

    `shards`: so many ranks had files. `validating`: protected until that is over. `doubtful`: its files may not
    belong together. `status` says what came of a validation, `wish` what is to be validated.
    """

    name: str
    index: int
    attempt: int
    score: float | None = None
    shards: int = 1
    named: bool = False
    validating: bool = False
    doubtful: bool = False
    status: CheckpointState = "committed"
    wish: ValidationWish | None = None


class Wanted(Value, frozen=True, kw_only=True):
    """A checkpoint that was asked for: by which request; `stop`: the run ends with the next one that is committed.

    `index` is that of the last report that any rank had made by then: an older checkpoint is not what was asked for.
    """

    id: str
    by: str
    cause: Cause
    stop: bool = False
    reason: str = ""
    index: int = -1


class Trouble(Value, frozen=True, kw_only=True):
    """The storage cannot be used: a failure of the run."""

    error: ErrorInfo
    cause: Cause


class LateFiles(Value, frozen=True, kw_only=True):
    """Files of a rank for a checkpoint that was sealed, or about to be, without them: they are not in it."""

    name: str
    rank: int
    cause: Cause


class Checkpoints(Value, frozen=True, kw_only=True):
    """All of it. `kept` is in order of rank, the best last.

    `base`: the index of the present attempt's first report. `leftovers`: directories that will never be whole.
    `opened`: the storage was looked into. `seals_failed` in a row. `orders` counts the deletions ordered.
    `sweep`: a runner was lost, and what its ranks had begun to upload is known to nobody.
    `continues`: the run that this one goes on from. `last`: what brought the newest commit.
    `unread`: a rank that was given a checkpoint has not asked for it. `late`: the first files that came too late.
    `marks`: where the ranks were in their data at the last reports, in their order. `torn`: checkpoints of this attempt
    that were given up with a replica group.
    """

    base: int = 0
    gathering: tuple[Gathering, ...] = ()
    kept: tuple[Kept, ...] = ()
    leftovers: tuple[str, ...] = ()
    wanted: Wanted | None = None
    trouble: Trouble | None = None
    opened: bool = False
    seals_failed: int = 0
    orders: int = 0
    sweep: bool = False
    continues: str | None = None
    last: Cause | None = None
    unread: Cause | None = None
    late: LateFiles | None = None
    marks: tuple[Mark, ...] = ()
    torn: tuple[str, ...] = ()

    @property
    def unusable(self) -> bool:
        """Whether the look into the storage, before anybody trains, has failed: nothing was sealed, nor tried to be."""
        return self.trouble is not None and self.opened and self.seals_failed == 0


# --- sets of ranks, small also for thousands


def with_rank(ranks: str, rank: int) -> str:
    """Return a set of ranks with one more; the empty text is the empty set."""
    return f"{int(ranks or '0', 16) | 1 << rank:x}"


def passed(rank: Rank, one: Gathering) -> bool:
    """Whether a rank without files went by: it is done, or reported later; by name if it names its checkpoints."""
    if rank.phase == "returned":
        return True
    if one.named and rank.named:
        return rank.named >= one.named
    return rank.index >= one.at


def ranks_in(ranks: str) -> tuple[int, ...]:
    """Return the ranks of a set, in order."""
    bits = int(ranks or "0", 16)
    return tuple(rank for rank in range(bits.bit_length()) if bits >> rank & 1)


# --- scores and retention


def score_of(metrics: dict[str, Json] | None, config: CheckpointConfig) -> tuple[float | None, str]:
    """Return the score of metrics (packed), negated where less is better, and what is wrong when there is none."""
    attribute = config.checkpoint_score_attribute
    if attribute is None:
        return None, ""
    missing = object()
    value = _flattened(metrics or {}).get(attribute, missing)
    if value is missing:
        return None, f"{attribute} is missing: it ranks worst"
    if not isinstance(value, int | float):
        return None, f"{attribute} is no number: it ranks worst"
    if math.isnan(value):
        return None, f"{attribute} is NaN: it ranks worst"
    number = max(-_LARGEST, min(_LARGEST, value))
    return float(number if config.checkpoint_score_order == "max" else -number), ""


def _flattened(metrics: dict[str, Json], prefix: str = "") -> dict[str, Json]:
    found: dict[str, Json] = {}
    for key, packed in metrics.items():
        value = unpack(packed)
        if isinstance(value, dict):
            found |= _flattened(value, f"{prefix}{key}/")
        else:
            found[f"{prefix}{key}"] = value
    return found


def rank_key(kept: Kept) -> tuple[bool, float, int]:
    """Return what checkpoints are ranked by: those without a score first, then by score, then the later the better."""
    return (kept.score is not None, 0.0 if kept.score is None else kept.score, kept.index)


def ranked(kept: Iterable[Kept], new: Kept, latest: str) -> tuple[Kept, ...]:
    """Return the kept ones with a new one in its place; the worst is tracked no more beyond the limit."""
    found = [one for one in kept if one.name != new.name]
    insort(found, new, key=rank_key)
    while len(found) > CHECKPOINTS_TRACKED_MAX_COUNT:
        found.remove(next(one for one in found if one.name != latest))
    return tuple(found)


def doomed(kept: tuple[Kept, ...], latest: str | None, num_to_keep: int | None) -> tuple[Kept, ...]:
    """Return those that are kept no more: all but the best, the latest, and those being validated."""
    if num_to_keep is None:
        return ()
    return tuple(one for one in kept[:-num_to_keep] if one.name != latest and not one.validating)
