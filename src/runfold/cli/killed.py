"""What commands say of one-shot runs that were killed, and how `run` clears them away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from runfold.cli.command import say
from runfold.events.counts import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runfold.locate import Where
    from runfold.salvaging import Salvaged

NAMED_MAX_COUNT: Final = 3


def say_killed(where: Where, runs: Sequence[str], more: str = "") -> None:
    """Say that these runs were killed, and which command ends them; nothing of none."""
    if not runs:
        return
    if len(runs) == 1:
        command = where.hint("salvage", runs[0])
        say(f"{runs[0]} was killed: `{command}` ends it in its log and closes its archive{more}")
        return
    named = ", ".join(runs[:NAMED_MAX_COUNT])
    rest = f" and {len(runs) - NAMED_MAX_COUNT} more" if len(runs) > NAMED_MAX_COUNT else ""
    say(
        f"{counted(len(runs), 'one-shot run')} were killed ({named}{rest}): `{where.hint('salvage')}` ends them in "
        f"their logs and closes their archives{more}"
    )


def salvage_killed(where: Where, runs: Sequence[str], told: Callable[[Salvaged], None]) -> int:
    """End these runs, each where nobody lives in its directory any more, and tell what became of it.

    One that cannot be ended is said, and keeps nobody from the next; return how many those were.
    """
    from runfold.errors import NotFoundError, RunfoldError, UsageError
    from runfold.events.nats.errors import BrokerError
    from runfold.replay.errors import ReplayError
    from runfold.salvaging import salvage

    failed_count = 0
    for run in runs:
        try:
            told(asyncio.run(salvage(where, run, say)))
        except (NotFoundError, UsageError):
            continue  # somebody else sees to it
        except (RunfoldError, BrokerError, ReplayError, OSError) as error:
            say(f"{run} was killed, and could not be salvaged: {error}")
            failed_count += 1
    return failed_count
