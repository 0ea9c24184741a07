"""Taking an exception of any class: what user code raises is data for the runner, never our crash."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Capture:
    """A `with` block that ends normally whatever is raised inside, and keeps it as `error`.

    `SystemExit` and `KeyboardInterrupt` are taken as well.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.error = error
        return True
