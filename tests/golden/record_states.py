"""Record a golden log that ends in each state, and one in an older envelope. They are replaced only on purpose.

    .venv/bin/python tests/golden/record_states.py [FOLDER]

What is said in them is said by hand, so that they are the same wherever they are recorded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from msgspec.structs import replace

from runfold.events.conclusions import ControllerStarted
from runfold.events.config import FailureConfig
from runfold.events.entry import GENESIS, hash_entry
from runfold.events.requests import AbortRun, ResizeRun
from runfold.replay.export import export_lines
from runfold.replay.history import History as Log
from runfold.replay.history import Raw, Where, link_up
from runfold.replay.verify import present_decider
from support.runs import POOL, Run

FOLDER: Final = Path(__file__).resolve().parent / "states"
RETRIES: Final = FailureConfig(max_failures=2, backoff_s=5.0)


def scheduling() -> Run:
    """Waiting for room, then half there."""
    run = Run(2, nodes=("node-a", "node-b"))
    run.says(run.queued(ahead=1))
    run.places()
    return run.says(run.ready("node-a"))


def rescheduling() -> Run:
    """The pool let its places go before they were used; another attempt follows after a while."""
    run = Run(2).places()
    return run.says(run.runner_lost())


def running() -> Run:
    """In its third epoch, with reports."""
    run = Run(2).running()
    for _ in range(2):
        run.says(ControllerStarted(controller="ctl", decider=present_decider()))
    last = replace(run.reported(0, 0), metrics={"loss": {"float": "nan"}, "seen": {"int": "9007199254740993"}})
    return run.says(last, run.reported(1, 0))


def preempting() -> Run:
    """One of its nodes is about to be taken back."""
    run = Run(2, nodes=("node-a", "node-b")).running()
    return run.says(run.noticed("node-b", reason="spot"))


def restarting() -> Run:
    """A rank raised, after a back-off the next attempt follows; the other rank's end is late evidence."""
    run = Run(2, failure=RETRIES).running()
    run.says(run.failed(1))
    return run.says(run.exited(0, signal=15, asked=True))


def resizing() -> Run:
    """Asked to have another size."""
    return Run((1, 4)).running().says(ResizeRun(id="r1", num_workers=2))


def elastic() -> Run:
    """Grows after a checkpoint, keeps its size when the room is gone again, loses its node and goes on smaller."""
    run = Run((1, 4), joined=False, failure=RETRIES).join(POOL, "local")
    run.says(run.room(2)).running()
    run.says(run.reported(0, 0), run.room(4)).waits(60.0)
    run.says(*(run.shard(rank, 1) for rank in range(2)))
    run.says(run.sealed("checkpoint_000001_1"))
    run.says(run.released()).running()
    run.says(run.reported(0, 0), run.room(3)).waits(60.0)
    run.says(run.room(4)).says(run.runner_lost(), run.room(1)).waits(5.0)
    return run.says(run.released())


def shutting_down() -> Run:
    """Every rank has returned, and the pool has not let go."""
    return Run(2).running().finishing()


def finished() -> Run:
    """After a retry."""
    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(0))
    run.says(run.exited(0, 1, attempt=1), run.exited(1, signal=15, asked=True, attempt=1))
    run.starts().finishing()
    return run.says(run.released())


def errored() -> Run:
    """No failure was allowed."""
    run = Run(2).running()
    run.says(run.failed(1), run.failed(0, "connection reset", kind="peer"))
    return run.says(run.released())


def aborted() -> Run:
    """By somebody."""
    run = Run(2).running()
    run.says(AbortRun(id="stop-it", by="ada", reason="enough"))
    return run.says(run.released())


STATES: Final[tuple[Callable[[], Run], ...]] = (
    *(scheduling, rescheduling, running, preempting, restarting, resizing),
    *(shutting_down, finished, errored, aborted),
)


def history_of(entries: list[bytes]) -> Log:
    """Return entries as they would be read."""
    linked = link_up([Raw(data=data, where=Where(file="golden")) for data in entries])
    return Log(target="golden", kind="file", run=linked.run, links=linked.links)


def older(entries: list[bytes]) -> list[bytes]:
    """Return a log as version 0 wrote it: no epoch, and `by` was called `controller`."""
    written: list[bytes] = []
    for data in entries:
        envelope = json.loads(data)
        envelope.pop("epoch")
        controller = envelope.pop("by")
        prev = hash_entry(written[-1]) if written else GENESIS
        written.append(json.dumps({**envelope, "v": 0, "controller": controller, "prev": prev}).encode())
    return written


def main() -> int:
    """Write every log into the folder given, or into this file's own."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(exist_ok=True)
    logs = {make.__name__: make().bytes for make in STATES}
    logs["envelope_0"] = older(logs["finished"])
    logs["elastic"] = elastic().bytes
    for name, entries in logs.items():
        (folder / f"{name}.jsonl").write_bytes(b"".join(export_lines(history_of(entries))))
        print(folder / f"{name}.jsonl")
    return 0


if __name__ == "__main__":
    sys.exit(main())
