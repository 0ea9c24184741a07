"""The hooks of a job that was typed: what its callbacks have of them is looked up before it is published.

A controller asks the gates that a job names, and nothing else: it never loads what is a user's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from runfold.config import read_settings
from runfold.errors import UsageError
from runfold.events.config import HooksConfig
from runfold.parcels import check_hooks, load_callback
from runfold.workers.callbacks import Callback, gates_of, in_ranks
from runfold.workers.errors import LoadError
from runfold.workers.load import BLOB_PREFIX, Code, load_callbacks

if TYPE_CHECKING:
    from runfold.events.job import Job

_CANNOT_LOAD: Final = (ImportError, LoadError, AttributeError, TypeError, ValueError, SyntaxError, OSError)


def with_hooks(job: Job) -> Job:
    """Return a job with the hooks that its callbacks have, and those of RUNFOLD_CALLBACKS before them.

    What a job says of gates itself weighs more. Raises `UsageError` for a callback that cannot be loaded here, unless
    the job says itself what is called: its code may be where the run is, and only there.
    """
    said = job.hooks
    environment = {name: load_callback(name) for name in read_settings().callbacks}
    own = own_callbacks(job, all_of_them=not said.gates and not said.in_ranks)
    added = list(environment.values())
    everyone = [*added, *own]
    check_hooks(everyone)
    names = [*environment] if gates_of(added) or in_ranks(added) else []
    hooks = HooksConfig(
        callbacks=(*names, *(name for name in said.callbacks if name not in names)),
        gates={**gates_of(everyone), **said.gates},
        in_ranks=said.in_ranks or in_ranks(everyone),
    )
    return replace(job, hooks=hooks)


def own_callbacks(job: Job, *, all_of_them: bool) -> list[object]:
    """Return the callbacks that a job names and RUNFOLD_CALLBACKS does not; those that can be loaded, or all of them.

    Raises `UsageError` for one that cannot be loaded, if it is to be all of them.
    """
    elsewhere = read_settings().callbacks
    folder = Path(job.working_dir or ".").absolute()
    found: list[object] = []
    for name in job.hooks.callbacks:
        if name.startswith(BLOB_PREFIX) or name in elsewhere:
            continue
        try:
            found += _loaded(name, folder)
        except _CANNOT_LOAD as error:
            if not all_of_them:
                continue
            raise UsageError(
                f"the callback {name} of hooks.callbacks cannot be loaded: {error}\nNothing was published. Where its "
                "code is only where the run is, say what is called: --set hooks.gates.HOOK=fail, or hooks.in_ranks=true"
            ) from error
    return found


def _loaded(name: str, folder: Path) -> list[object]:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # ranks look there first; here it is to hide nothing of ours
    found = load_callbacks([Code(name)], folder)
    for one in found:
        if not isinstance(one, Callback):
            raise TypeError(f"it is no runfold.Callback but {type(one).__name__}")
    return found
