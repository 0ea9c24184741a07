"""The rows of a timeline, as documents. What is in them is not yet safe to show."""

from __future__ import annotations

from runfold.events.base import Document, Json
from runfold.events.failures import ErrorInfo, FailureKind
from runfold.events.transitions import StateName


class Pointer(Document, frozen=True, kw_only=True):
    """What brought something about: an input or a transition of an entry, its kind, and the row that tells of it."""

    n: int
    kind: str
    input: int | None = None
    transition: int | None = None
    row: int | None = None


class RowError(Document, frozen=True, kw_only=True):
    """An error as told: by or of which rank, in the user's frames."""

    rank: int | None
    node: str
    type: str
    message: str
    kind: FailureKind
    where: str | None = None
    traceback: str | None = None
    blob: str | None = None


class Row(Document, frozen=True, kw_only=True):
    """One row. `last_n`, `until_t` and `last_number` differ from `n`, `t` and `number` when it stands for several.

    `gap_s`: since the row before in the whole log. `kind`: the wire name of the input or transition, `reports` for a
    stretch of them. `path`: the states of a change of state, from `before` to `after`. `count`: how many inputs it
    stands for. `attempt`: the one it speaks of. `steps` and `metrics`: of reports. `collateral`: a failure of an
    attempt whose first cause is another one; it stands below that one. `late_s`: it came so long after the attempt's
    end was decided.
    """

    n: int
    last_n: int
    t: float
    until_t: float
    at: str
    gap_s: float
    kind: str
    what: str
    number: int = 0
    last_number: int = 0
    reason: str = ""
    before: StateName | None = None
    after: StateName | None = None
    path: tuple[StateName, ...] = ()
    cause: Pointer | None = None
    error: RowError | None = None
    output: str = ""
    attempt: int | None = None
    ranks: tuple[int, ...] = ()
    count: int = 1
    steps: tuple[int, int] | None = None
    metrics: dict[str, Json] | None = None
    collateral: bool = False
    late_s: float | None = None


class Timeline(Document, frozen=True, kw_only=True):
    """The rows of a run. `skipped` messages were no entries; `trouble` says what is damaged, if anything is."""

    run: str
    entries: int
    rows: tuple[Row, ...]
    skipped: int = 0
    trouble: str = ""


def bare(kind: str) -> str:
    """Return the name of an error as ranks say it today; older logs have runfold's own with their modules."""
    return kind.rpartition(".")[2] if kind.startswith("runfold.") else kind


def row_error(error: ErrorInfo, rank: int | None, node: str) -> RowError:
    """Return an error as rows show it."""
    return RowError(
        rank=rank,
        node=node,
        type=bare(error.type),
        message=error.message,
        kind=error.kind,
        where=error.where,
        traceback=error.traceback,
        blob=error.blob,
    )
