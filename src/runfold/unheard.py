"""A reader that has gone away: `runfold run … | head` must not cost the run."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO


def silence(stream: TextIO) -> None:
    """Let what is still written to a stream that nobody reads go nowhere, what is flushed at exit included."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)


def print_lasting(text: str, stream: TextIO) -> None:
    """Print a line at once; from when nobody reads the stream any more, nothing, and without an error."""
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        silence(stream)
