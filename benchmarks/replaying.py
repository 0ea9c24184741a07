"""How fast logs are read, folded, verified, audited and told. `python benchmarks/replaying.py` prints these alone.

A step of the fold is one input observed or one transition evolved: both change the state, and both are counted. The
rows say besides how many transitions a second that is, counted alone, though the inputs of the same entries were
observed in that time too. Every figure counts from the archive's files or the broker, so reading, unpacking, hashing
and decoding are in it; hashing and decoding alone, the floor, are a third of the time of a restless log and more than
half of that of a busy one.

`busy` is a log that mostly reports, as those of real runs do: the limit of 260,000 steps a second is on it.
`restless` is the worst shape there is, a run that does nothing but fail and start again, two transitions to three
inputs: it folds at about that rate, too near to it for a limit, so it is shown without one. 260,000 transitions a
second counted alone are not to be had of it: with their inputs they would be 650,000 steps, and even to read the log
without folding it is slower than that.
"""

import asyncio
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import logs
import msgspec

from runfold.events.entry import decode_entry, hash_entry
from runfold.events.fold import fold_all
from runfold.events.nats.api import Api
from runfold.events.nats.broker import start_broker
from runfold.events.nats.connection import Connection, connect
from runfold.events.nats.log import JetStreamLog
from runfold.events.nats.names import Names, Role
from runfold.events.nats.streams import provision
from runfold.replay.archive import write_archive
from runfold.replay.audit import audit
from runfold.replay.export import export_lines
from runfold.replay.history import History, Raw, Where, link_up
from runfold.replay.source import load, read_log
from runfold.replay.verify import verify

TIMES_COUNT: Final = 5
BUSY: Final = (4_000, 64)
"""Entries, and reports in each: two ranks that report 64 times a second."""
RESTLESS_COUNT: Final = 4_000
LONG: Final = (100_000, 2)
STREAMED: Final = (20_000, 8)
PUBLISHED_AT_ONCE_COUNT: Final = 500
STEPS_PER_S_MIN: Final = 260_000
ENTRIES_PER_S_MIN: Final = 40_000
TIMELINE_S_MAX: Final = 2.0
FIRST_SCREEN_S_MAX: Final = 1.0


@dataclass(frozen=True)
class Row:
    """One figure, in the words of the table."""

    what: str
    limit: str
    measured: str
    floor: str
    what_floor: str
    kept: bool


def best(work: Callable[[], object]) -> float:
    """The shortest of a few runs, in seconds of this process: one thread computes, and waits for nobody."""
    took: list[float] = []
    for _ in range(TIMES_COUNT):
        gc.collect()
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return min(took)


def history_of(lines: list[bytes]) -> History:
    """Lines as a history, as if read from a stream."""
    linked = link_up(Raw(data=line, where=Where(file="bench", sequence=k)) for k, line in enumerate(lines, 1))
    return History(target="bench", kind="stream", run=linked.run, links=linked.links)


def archived(lines: list[bytes], folder: str) -> Iterator[Row]:
    """Fold, verify and audit from an archive."""
    write_archive(history_of(lines), folder)
    history = load(folder)
    inputs = sum(len(entry.inputs) for entry in history.entries)
    transitions = sum(len(entry.transitions) for entry in history.entries)
    steps, name = inputs + transitions, "restless" if transitions > inputs / 2 else "busy"
    least_rate = f"{1e6 / STEPS_PER_S_MIN:.2f} µs a step: {STEPS_PER_S_MIN} a second, inputs and transitions"
    limit = least_rate if name == "busy" else "–"
    size = f"{len(lines)} entries, {inputs} inputs, {transitions} transitions"
    folded = best(lambda: fold_all(load(folder).entries))
    least = best(lambda: [(hash_entry(line), decode_entry(line)) for line in lines])
    rate, each, alone = steps / folded, folded / steps * 1e6, transitions / folded
    yield Row(
        f"fold from archive, {name} ({size})", limit,
        f"{each:.2f} µs a step: {rate:.0f} a second, inputs and transitions; {alone:.0f} transitions counted alone",
        f"{least / steps * 1e6:.2f} µs", "hash and decode each entry, nothing else",
        limit == "–" or rate >= STEPS_PER_S_MIN,
    )  # fmt: skip
    for what, ask in (("verify", verify), ("audit with hashes", audit)):
        took = best(lambda ask=ask: ask(load(folder)))  # type: ignore[misc]  # bound at once, on purpose
        yield Row(
            f"{what} from archive, {name}", "2 × fold", f"{took / folded:.2f} × fold ({took:.3f} s)",
            f"{folded:.3f} s", "the fold itself", took <= 2 * folded,
        )  # fmt: skip


def told(folder: str) -> Iterator[Row]:
    """The timeline of a long log on the command line: until its first line, and until its last."""
    history = history_of(logs.busy(*LONG))
    write_archive(history, folder)
    file = Path(f"{folder}.jsonl")
    with file.open("wb") as out:
        out.writelines(export_lines(history))
    empty = min(_helped() for _ in range(TIMES_COUNT))
    for what, target in (("an archive", folder), ("an exported file", str(file))):
        command = [sys.executable, "-P", "-m", "runfold", "replay", target]
        firsts: list[float] = []
        wholes: list[float] = []
        for _ in range(TIMES_COUNT):
            began = time.perf_counter()
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                if process.stdout is None:
                    raise RuntimeError("no output to read")
                process.stdout.readline()
                firsts.append(time.perf_counter() - began)
                process.stdout.read()
            wholes.append(time.perf_counter() - began)
        for part, limit_s, values in (("first line", FIRST_SCREEN_S_MAX, firsts), ("whole", TIMELINE_S_MAX, wholes)):
            yield Row(
                f"`runfold replay` of {what} of {LONG[0]} entries: {part}", f"{limit_s:g} s",
                f"{statistics.median(values):.3f} s [{min(values):.3f} .. {max(values):.3f}]",
                f"{empty:.3f} s", "`runfold --help`", statistics.median(values) <= limit_s,
            )  # fmt: skip


def _helped() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-m", "runfold", "--help"], check=True, capture_output=True)
    return time.perf_counter() - began


async def streamed() -> Row:
    """A log read from JetStream, checked and linked."""
    with tempfile.TemporaryDirectory(prefix="runfold-bench-") as folder:
        broker = start_broker(Path(folder), die_with_parent=True)
        try:
            names = Names()
            admin = await connect(broker.url(Role.ADMIN), role=Role.ADMIN, name="bench", names=names)
            await provision(Api(admin), names, storage_max_bytes=broker.storage_max_bytes, marker=broker.created_marker)
            lines = logs.busy(*STREAMED)
            await _published(admin, lines)
            rates, raw = await _read(admin, len(lines))
            await admin.close()
        finally:
            broker.stop()
    rate = max(rates)
    return Row(
        f"a log from JetStream ({len(lines)} entries of {STREAMED[1]} reports)",
        f"{1e6 / ENTRIES_PER_S_MIN:.1f} µs an entry: {ENTRIES_PER_S_MIN} a second",
        f"{1e6 / rate:.1f} µs an entry: {rate:.0f} a second",
        f"{1e6 / raw:.1f} µs", "the messages read, and not looked at", rate >= ENTRIES_PER_S_MIN,
    )  # fmt: skip


async def _published(admin: Connection, lines: list[bytes]) -> None:
    log = JetStreamLog(admin, logs.RUN)
    for first in range(0, len(lines), PUBLISHED_AT_ONCE_COUNT):
        for line in lines[first : first + PUBLISHED_AT_ONCE_COUNT]:
            await admin.publish(log.subject, line)
        await admin.raw.flush()
    while await log.last_sequence() < len(lines):
        await asyncio.sleep(0.05)


async def _read(admin: Connection, count: int) -> tuple[list[float], float]:
    rates: list[float] = []
    raw = 0.0
    for _ in range(TIMES_COUNT):
        began = time.perf_counter()
        async for _stored in JetStreamLog(admin, logs.RUN).read():
            pass
        raw = max(raw, count / (time.perf_counter() - began))
        began = time.perf_counter()
        history = await read_log(JetStreamLog(admin, logs.RUN), logs.RUN)
        rates.append(len(history.links) / (time.perf_counter() - began))
    return rates, raw


async def rows() -> list[Row]:
    """Measure everything."""
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="runfold-bench-") as folder:
        found += archived(logs.busy(*BUSY), f"{folder}/busy")
        found += archived(logs.restless(RESTLESS_COUNT), f"{folder}/restless")
        found += told(f"{folder}/long")
    return [*found, await streamed()]


if __name__ == "__main__":
    for row in asyncio.run(rows()):
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(row)).decode() + "\n")
