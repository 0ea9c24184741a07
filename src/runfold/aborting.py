"""What an interrupt does to a run that is waited for: an abort in order, within bounded time; a second one ends it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from runfold.errors import NoAnswerError, NotAcceptedError, NotFoundError, RunAbortedError
from runfold.events.limits import REQUEST_TIMEOUT_S
from runfold.events.nats.errors import BrokerError
from runfold.events.requests import AbortRun
from runfold.ids import new_request_id
from runfold.room import shortage

if TYPE_CHECKING:
    from collections.abc import Callable

    from runfold.client import Client
    from runfold.events.config import Timeouts
    from runfold.interrupts import Interrupts

ABORT_RETRY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Abort:
    """Whom to ask for the end of which run, in whose name. `own`: its broker and all else end with who waits."""

    client: Client
    run: str
    by: str
    timeouts: Timeouts
    say: Callable[[str], None]
    own: bool


async def abort_when_asked(abort: Abort, caught: Interrupts) -> None:
    """On the first interrupt ask for an abort; give up waiting on the second, or when nothing comes of the first.

    Raises:
        RunAbortedError: nobody waits any longer; says why, and what becomes of the run.
    """
    await caught.first.wait()
    again = "stop at once" if abort.own else "wait no longer: the service then ends it alone"
    abort.say(f"{caught.name}: aborting {abort.run}; once more to {again}")
    asking = asyncio.ensure_future(_ask(abort, f"interrupted ({caught.name})"))
    second = asyncio.ensure_future(caught.second.wait())
    try:
        await asyncio.wait({asking, second}, return_when=asyncio.FIRST_COMPLETED)
        if not second.done():
            asking.result()
            ending_s = ending_max_s(abort.timeouts)
            await asyncio.wait({second}, timeout=ending_s)
            if not second.done():
                raise _given_up(abort, await _why(abort, f"it did not end within {ending_s:g} s of its abort"))
    except (NoAnswerError, BrokerError) as error:
        raise _given_up(abort, await _why(abort, str(error).partition("\n")[0])) from error
    finally:
        asking.cancel()
        second.cancel()
        await asyncio.gather(asking, second, return_exceptions=True)
    raise _given_up(abort, "a second interrupt came")


def ending_max_s(timeouts: Timeouts) -> float:
    """Return how long a run may take to end once its abort is accepted: its own deadlines, and time to say so."""
    return timeouts.shutdown_deadline_s + timeouts.hook_timeout_s + REQUEST_TIMEOUT_S


def _given_up(abort: Abort, why: str) -> RunAbortedError:
    if abort.own:
        return RunAbortedError(f"{abort.run} was stopped at once, without waiting for its orderly end: {why}")
    return RunAbortedError(
        f"{abort.run} is not waited for any longer: {why}\n"
        f"The service goes on with it; its abort stands on the broker. See `runfold get {abort.run}`"
    )


async def _why(abort: Abort, otherwise: str) -> str:
    """Return why nothing came of it: that a stream is full, if one is."""
    try:
        short = await shortage(abort.client)
    except BrokerError:
        return otherwise
    return otherwise if short is None else f"{otherwise}; {short}"


async def _ask(abort: Abort, reason: str) -> None:
    """Return once the abort is answered, whatever the answer is.

    Raises:
        NoAnswerError: nobody answered, or took the job, within `REQUEST_TIMEOUT_S`.
        BrokerError: the broker was away for all of that time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + REQUEST_TIMEOUT_S
    request = AbortRun(id=new_request_id(), reason=reason, by=abort.by)
    while True:
        try:
            await abort.client.request(abort.run, request, deadline - loop.time())
        except NotAcceptedError:
            return  # it ends already
        except (NotFoundError, BrokerError) as error:
            if loop.time() < deadline:
                await asyncio.sleep(ABORT_RETRY_S)  # the job was not taken yet, or the broker is started again
            elif isinstance(error, BrokerError):
                raise
            else:
                raise NoAnswerError(f"no controller took the job within {REQUEST_TIMEOUT_S:g} s") from error
        else:
            return
