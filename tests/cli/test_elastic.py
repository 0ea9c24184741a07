"""Elastic runs and bad nodes as users meet them: capacity that is set, sizes that follow, nodes to stay off."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psutil
import pytest

from support.commands import Commands
from support.processes import gone
from support.waiting import until_seen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.commands import Up

PATIENCE_S = 60.0

TRAIN = '''
import json, pathlib, tempfile, time
import psutil, runfold

HERE = pathlib.Path(__file__).parent


def train(config):
    """Count steps until told that it is enough; rank 0 saves each."""
    context, step = runfold.get_context(), -1
    checkpoint = runfold.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            step = json.loads((pathlib.Path(folder) / "step.json").read_text())
    while not (HERE / config["until"]).exists():
        step += 1
        time.sleep(0.05)
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "step.json").write_text(json.dumps(step))
            saved = runfold.Checkpoint.from_directory(folder) if context.get_world_rank() == 0 else None
            runfold.report({"step": step, "world": context.get_world_size()}, checkpoint=saved)
    return step


def raises(config):
    """Fail in the first two attempts."""
    if runfold.get_context().get_attempt() <= 2:
        raise RuntimeError("not yet")


def breaks(config):
    """Break the node of rank 1, attempt after attempt, until there is another one."""
    runfold.barrier()
    context = runfold.get_context()
    if context.get_attempt() <= 2:
        if context.get_world_rank() == 1:
            next(one for one in psutil.Process().parents() if one.name() == "runfold-runner").kill()
        time.sleep(600)
    while not (HERE / config["until"]).exists():
        time.sleep(0.05)
'''


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Commands, Up]]:
    """Commands beside a service that shows three nodes of one slot."""
    folder: Path = tmp_path_factory.mktemp("elastic")
    commands = Commands(folder)
    commands.write("jobs.py", TRAIN)
    try:
        with commands.service("--nodes", "3", "--slots", "1") as up:
            yield commands, up
    finally:
        commands.end()


def submitted(commands: Commands, name: str, function: str, *settings: str) -> str:
    """Submit a job of the file, and return its run."""
    more = [word for setting in settings for word in ("--set", setting)]
    words = ("--set", f"id={name}", "--set", f'config={{"until": "{name}-enough"}}')
    return commands.submit(f"jobs.py:{function}", *words, *more)


def status(commands: Commands, run: str) -> dict[str, object]:
    return commands.status(run)


def finish(commands: Commands, run: str) -> list[dict[str, object]]:
    """Let a run finish, and return its log's entries."""
    (commands.folder / f"{run}-enough").touch()
    assert commands.ended(run)["state"] == "finished"
    assert commands("verify", run).code == 0
    assert commands("audit", run).code == 0
    return [json.loads(line) for line in commands.ok("export", run).out.splitlines()[:-1]]


def transitions(entries: list[dict[str, object]], kind: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = [item for entry in entries for item in entry["transitions"]]  # type: ignore[attr-defined]  # JSON
    return [item for item in found if item["kind"] == kind]


ELASTIC = ("scaling.num_workers=[1,3]", "scaling.elastic_resize_monitor_interval_s=0.2", "timeouts.coalesce_s=0.1")


def runs_on(commands: Commands, run: str, size: int) -> bool:
    now = status(commands, run)
    return now["state"] == "running" and now["world_size"] == size


def runs_attempt(commands: Commands, run: str, attempt: int) -> bool:
    now = status(commands, run)
    return (now["state"], now["attempt"]) == ("running", attempt)


def test_a_run_follows_the_capacity_that_is_set(three: tuple[Commands, Up]) -> None:
    commands, up = three
    run = submitted(commands, "follows", "train", *ELASTIC)
    until_seen(lambda: runs_on(commands, run, 3), PATIENCE_S)
    shown = commands.ok("capacity", "-o", "json")
    assert json.loads(shown.out)[0]["nodes"] == {"local-0": 1, "local-1": 1, "local-2": 1}
    said = commands.ok("capacity", "set", "0", "--node", "local-1").out
    assert said.splitlines() == ["local: local-0 1, local-1 0, local-2 1", "follows loses its places on local-1"]
    until_seen(lambda: runs_on(commands, run, 2), PATIENCE_S)
    supervisor = psutil.Process(up.pids["supervisor"])
    supervisor.kill()
    assert not gone([supervisor])
    until_seen(lambda: "local: local-0 1, local-1 0, local-2 1;" in commands("capacity").out, PATIENCE_S)
    assert commands.ok("capacity", "set", "0").out.splitlines()[0] == "local: local-0 0, local-1 0, local-2 0"
    until_seen(lambda: status(commands, run)["state"] == "restarting", PATIENCE_S)
    assert commands.ok("capacity", "set", "3", "-o", "json").document["nodes"] == {
        "local-0": 1,
        "local-1": 1,
        "local-2": 1,
    }
    until_seen(lambda: runs_on(commands, run, 3), PATIENCE_S)
    assert "accepted" in commands.ok("resize", run, "2").out
    until_seen(lambda: runs_on(commands, run, 2), PATIENCE_S)
    refused = commands("resize", run, "4")
    assert (refused.code, "4 ranks are not within num_workers = [1, 3]" in refused.err) == (1, True)
    entries = finish(commands, run)
    sizes = [item["num_workers"] for item in transitions(entries, "attempt_started")]
    assert set(sizes) <= {1, 2, 3}
    budgets = status(commands, run)["budgets"]
    assert budgets["worker"]["spent"] == 0  # type: ignore[index]  # a status
    assert commands.ok("replay", run).out.count("room for") > 0


def test_what_cannot_be_asked_of_a_pool_is_said(three: tuple[Commands, Up]) -> None:
    commands, _ = three
    for words, why in (
        (("set",), "capacity set N"),
        (("raise", "3"), "capacity set N"),
        (("set", "5000"), "0 to 4096"),
        (("set", "1", "--within", "-1"), "--within"),
        (("set", "1", "--within", "nan"), "--within"),
        (("set", "1", "--pool", "a.b"), "no pool's name"),
    ):
        done = commands("capacity", *words)
        assert (done.code, why in done.err) == (2, True), done.err
    done = commands("capacity", "set", "1", "--node", "nowhere")
    assert (done.code, "there is no node 'nowhere' in this pool" in done.err) == (1, True), done.err
    done = commands("capacity", "set", "9")
    assert "9 slots are more than the 3 of its 3 nodes" in done.err


def test_a_node_that_breaks_twice_is_stayed_off_until_it_is_admitted(three: tuple[Commands, Up]) -> None:
    commands, _ = three
    settings = ("scaling.num_workers=2", "scaling.placement_strategy=SPREAD", "failure.max_failures=5")
    run = submitted(commands, "breaks", "breaks", *settings, "failure.node_exclude_after=2")
    until_seen(lambda: runs_attempt(commands, run, 3), PATIENCE_S)
    ranks = status(commands, run)["ranks"]
    assert sorted(rank["node"] for rank in ranks) == ["local-0", "local-2"]  # type: ignore[attr-defined]  # JSON
    story = commands.ok("replay", run).out
    assert "local-1 failed 2 times, and failure.node_exclude_after is 2; later attempts stay off it" in story
    assert commands("admit", run, "local-2").code == 1
    assert commands.ok("admit", run, "local-1").out.strip() == "breaks: accepted"
    entries = finish(commands, run)
    assert [item["node"] for item in transitions(entries, "node_excluded")] == ["local-1"]
    assert [item["node"] for item in transitions(entries, "node_admitted")] == ["local-1"]


def test_a_node_that_the_run_needs_is_kept_however_it_breaks(three: tuple[Commands, Up]) -> None:
    commands, _ = three
    settings = ("scaling.num_workers=3", "scaling.placement_strategy=SPREAD", "failure.max_failures=5")
    run = submitted(commands, "needs", "breaks", *settings, "failure.node_exclude_after=2")
    until_seen(lambda: runs_attempt(commands, run, 3), PATIENCE_S)
    assert transitions(finish(commands, run), "node_excluded") == []


def test_who_fails_again_waits_twice_as_long_before_the_next_attempt(three: tuple[Commands, Up]) -> None:
    commands, _ = three
    run = submitted(commands, "waits", "raises", "failure.max_failures=2", "failure.backoff_s=0.5")
    entries = finish(commands, run)
    waits = [item for item in transitions(entries, "state_changed") if item["to"] == "restarting"]
    times = [entry["t"] for entry in entries for item in entry["transitions"] if item in waits]  # type: ignore[attr-defined]  # JSON
    assert [round(item["not_before_t"] - t, 3) for item, t in zip(waits, times, strict=True)] == [0.5, 1.0]  # type: ignore[operator]  # JSON
    began = [entry["t"] for entry in entries for item in entry["transitions"] if item["kind"] == "attempt_started"]  # type: ignore[attr-defined]  # JSON
    assert all(t >= item["not_before_t"] for item, t in zip(waits, began[1:], strict=True))  # type: ignore[operator]  # JSON
