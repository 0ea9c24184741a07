"""`connection.json` of a service that runs: where it is lost the service writes it anew, and who needs it waits."""

from __future__ import annotations

import sys
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from runfold.errors import BrokerAwayError, UnreachableError
from runfold.servicelock import kept_running_by
from runfold.unheard import print_lasting

if TYPE_CHECKING:
    from pathlib import Path

    from runfold.events.nats.files import ConnectionFile

CONNECTION_AWAITED_S: Final = 20.0
"""How long who needs the file waits for a service that runs to write it: one that starts does so last."""

LOOK_EVERY_S: Final = 0.1


def connection_of(data_dir: Path) -> ConnectionFile | None:
    """Return what `connection.json` says; None where there is none, and nobody who writes it.

    Raises:
        BrokerAwayError: the service runs, and the file was waited for in vain, or cannot come.
        UnreachableError: the file is damaged, and no service runs.
    """
    from runfold.events.nats.errors import BrokerUnreachable
    from runfold.events.nats.files import CONNECTION_FILE, read_connection

    since_s, said = monotonic(), False
    while True:
        damage: BrokerUnreachable | None = None
        try:
            if (file := read_connection(data_dir)) is not None:
                return file
        except BrokerUnreachable as error:
            damage = error
        if (holder := kept_running_by(data_dir)) is None:
            if damage is not None:
                raise UnreachableError(str(damage)) from damage
            return None
        is_folder = (data_dir / CONNECTION_FILE).is_dir()
        fault = "a directory" if is_folder else "missing" if damage is None else "damaged"
        text = f"the service of {data_dir} runs (process {holder}), but its {CONNECTION_FILE} is {fault}"
        if is_folder:
            raise BrokerAwayError(f"{text}\nMove that away: the service then writes the file anew by itself.")
        if monotonic() - since_s >= CONNECTION_AWAITED_S:
            raise BrokerAwayError(
                f"{text}: it was waited for {CONNECTION_AWAITED_S:g} s\n"
                f"What that process says tells why it is not written anew; if nothing does, stop it and start it again."
            )
        if not said:
            print_lasting(f"{text}: waiting until the service has written it", sys.stderr)
            said = True
        _pause()


def _pause() -> None:
    """Wait a moment, unless the task that this holds up was cancelled: Ctrl-C is told to the task, not to us."""
    import asyncio

    sleep(LOOK_EVERY_S)
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
