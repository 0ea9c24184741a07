"""Every question has one answer, whether the log is asked of a broker, an archive, a URL or an exported file.

The broker stands alone: no controller, no supervisor, no service. Ray, torch, what runs jobs and the user's code cannot
be imported while a question is asked; of what is no live stream nothing is connected to.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from runfold.events.nats.log import JetStreamLog
from runfold.events.nats.names import Role
from runfold.replay.archive import write_archive
from runfold.replay.source import load
from support.broker import BrokerForTest
from support.commands import COMMAND_TIMEOUT_S, Commands
from support.sources import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runfold.replay.history import History

RUN: Final = "golden-digits-retry"
OTHER: Final = "golden-digits"
ASKED: Final = {
    "replay": ("replay", "RUN"),
    "replay --full": ("replay", "RUN", "--full"),
    "replay as json": ("replay", "RUN", "-o", "json"),
    "replay of a part": ("replay", "RUN", "--attempt", "2", "--rank", "1", "--since", "12"),
    "replay --at N": ("replay", "RUN", "--at", "7"),
    "replay --at TIME": ("replay", "RUN", "--at", "+2.5"),
    "replay --follow": ("replay", "RUN", "--follow"),
    "diff of moments": ("diff", "RUN", "6", "7"),
    "diff of runs": ("diff", "RUN", "OTHER", "--full"),
    "verify": ("verify", "RUN", "--strict"),
    "whatif": ("whatif", "RUN", "--set", "failure.max_failures=0"),
    "whatif as json": ("whatif", "RUN", "--set", "failure.max_failures=0", "-o", "json"),
    "audit": ("audit", "RUN"),
    "audit as json": ("audit", "RUN", "-o", "json"),
    "goodput": ("goodput", "RUN"),
    "goodput of a part": ("goodput", "RUN", "--since", "5", "--until", "+2.5"),
    "export jsonl": ("export", "RUN"),
    "export csv": ("export", "RUN", "--format", "csv", "--table", "reports"),
    "export perfetto": ("export", "RUN", "--format", "perfetto"),
    "runfold.load": ("", "RUN"),
}
SOURCES: Final = ("live stream", "archive", "archive by its directory", "archive URL", "exported file", "URL of a file")
NEVER: Final = (
    *("ray", "torch", "examples", "digits", "runfold._serve", "runfold.controller.loop"),
    *("runfold.workers.runner", "runfold.workers.supervisor", "runfold.workers.zygote", "runfold.workers.rank"),
)

PROGRAM: Final = """
import contextlib, io, json, sys
asked, barred, data = json.loads(sys.stdin.read())
tried, connected = [], []
sys.addaudithook(lambda event, args: connected.append(str(args[1])) if event == "socket.connect" else None)

class Barred:
    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in barred):
            tried.append(name)
            raise ImportError(f"{name} cannot be imported here")

sys.meta_path.insert(0, Barred())

def python(target):
    import runfold
    log = runfold.load(target, data=data)
    print(log, log.transitions.to_csv(), log.reports.to_csv(), log.entries.to_csv())
    print(log.at(7), log.goodput(), log.what_if({"failure.max_failures": 0}).parted, log.audit().clean)
    print(log.verify().outcome, log.diff("6", "7").changes)

from runfold.cli import main
answers = {}
for name, words in asked.items():
    data_bytes = io.BytesIO()
    out, err = io.TextIOWrapper(data_bytes, "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words) if words[0] else python(words[1]) or 0
        out.flush()
    answers[name] = [code, data_bytes.getvalue().decode(), err.getvalue()]
print(json.dumps({"answers": answers, "tried": tried, "connected": connected}))
"""


@dataclass(frozen=True)
class Given:
    """Both runs, wherever they stand."""

    folder: Path

    def data(self, source: str) -> Path:
        """The data directory of a source."""
        return self.folder / ("live" if source == "live stream" else "kept")

    def target(self, source: str, run: str) -> str:
        """What a run is called there."""
        return {
            "live stream": run,
            "archive": run,
            "archive by its directory": str(self.folder / "kept" / "archive" / run),
            "archive URL": f"file://{self.folder}/kept/archive/{run}",
            "exported file": str(self.folder / f"{run}.jsonl"),
            "URL of a file": f"file://{self.folder}/{run}.jsonl",
        }[source]


async def on_a_broker(folder: Path, histories: list[History]) -> BrokerForTest:
    """Write logs to a broker of their own, and leave it alone."""
    broker = BrokerForTest(folder)
    await broker.provision()
    connection = await broker.connect(Role.CONTROLLER)
    for history in histories:
        log, last = JetStreamLog(connection, history.run), 0
        for link in history.links:
            entry = link.entry
            await log.append(link.data, n=entry.n, digest=link.hash, prev=entry.prev, last_sequence=last)
            last = await log.last_sequence()
    await connection.close()
    return broker


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Given]:
    """Two golden runs on a broker, in archives, and as exported files."""
    folder = tmp_path_factory.mktemp("sources")
    files = {run: ROOT / "tests" / "golden" / f"{run}.jsonl" for run in (RUN, OTHER)}
    histories = [load(path) for path in files.values()]
    for run, path in files.items():
        shutil.copy(path, folder)
        write_archive(load(path), folder / "kept" / "archive" / run)
    with asyncio.Runner() as runner:
        broker = runner.run(on_a_broker(folder / "live", histories))
        try:
            yield Given(folder)
        finally:
            runner.run(broker.close())


@pytest.fixture(scope="module")
def answered(given: Given) -> dict[str, dict[str, tuple[int, str, str]]]:
    """Every answer, by source and question."""
    return {source: ask(given, source) for source in SOURCES}


def ask(given: Given, source: str) -> dict[str, tuple[int, str, str]]:
    names = {"RUN": given.target(source, RUN), "OTHER": given.target(source, OTHER)}
    asked = {question: [names.get(word, word) for word in words] for question, words in ASKED.items()}
    data = given.data(source)
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        input=json.dumps([asked, NEVER, str(data)]),
        cwd=given.folder,
        env=Commands(given.folder).environment(RUNFOLD_DATA=str(data)),
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["tried"] == []
    assert bool(found["connected"]) == (source == "live stream")
    return {question: tuple(answer) for question, answer in found["answers"].items()}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("question", ASKED)
def test_every_source_gives_the_same_answer(
    question: str, source: str, answered: dict[str, dict[str, tuple[int, str, str]]]
) -> None:
    code, out, err = answered[source][question]
    assert (code, err) == (0, "")
    assert out
    assert nameless(out) == nameless(answered["exported file"][question][1])


def nameless(out: str) -> str:
    """An answer without what the run was called when it was asked for."""
    return re.sub(r'"target":"[^"]*"', '"target":"…"', out)
