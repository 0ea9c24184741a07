"""Errors that runfold raises quote what others have said; an interpreter prints them as they are."""

from __future__ import annotations

import pickle
import traceback

import pytest

from runfold import errors
from runfold.workers.errors import CheckpointDamagedError, MetricsError, RunfoldError

QUOTED = "gate: \x1b[31mred\x1b]0;title\x07\n\tat line 1"
SHOWN = "gate: \\x1b[31mred\\x1b]0;title\\x07\n    at line 1"


@pytest.mark.parametrize(
    "error",
    [
        errors.ControllerError(QUOTED),
        errors.WorkerGroupError(QUOTED, {0: QUOTED}),
        errors.RunAbortedError(QUOTED),
        errors.NotAcceptedError(QUOTED),
        CheckpointDamagedError(QUOTED),
        MetricsError(QUOTED),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_an_error_quotes_does_not_reach_a_terminal_raw(error: RunfoldError) -> None:
    assert str(error) == SHOWN
    assert str(pickle.loads(pickle.dumps(error))) == SHOWN
    assert "\x1b" not in "".join(traceback.format_exception(error))
