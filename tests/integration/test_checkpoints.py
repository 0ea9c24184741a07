"""Checkpoints of real ranks on a service: committed whole or not at all, begun from, kept, asked for, continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from runfold import Result, get_result
from runfold.events.entry import Entry
from runfold.events.facts import Reported
from runfold.events.requests import CheckpointNow, StopAtCheckpoint
from runfold.events.state import RunState
from runfold.events.transitions import CheckpointCommitted, RunContinued, TaskClosed, Warned
from runfold.follow import follow_run
from runfold.ids import new_request_id
from runfold.jobs import job_from
from runfold.replay.audit import audit
from runfold.replay.verify import verify
from runfold.sources import live_history
from runfold.workers.files import TEMPORARY
from runfold.workers.layout import MANIFEST, Manifest, StorageSpec
from runfold.workers.storage import Storage, open_storage
from support.clients import client_of
from support.commands import COMMAND_TIMEOUT_S, Commands
from support.saving import SAVING
from support.waiting import until, until_seen, within

if TYPE_CHECKING:
    from collections.abc import Sequence

RUN_TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def user(served: Commands) -> Commands:
    """A folder with training functions beside a shared service."""
    served.write("saving.py", SAVING)
    return served


class Run:
    """A run that has ended: its state, its entries, its storage."""

    def __init__(self, user: Commands, state: RunState, entries: Sequence[Entry]) -> None:
        self.state = state
        self.entries = entries
        name = state.job.storage_name or state.run
        self.storage = open_storage(StorageSpec(url=state.job.storage_path or str(user.data / "storage"), name=name))

    def said(self, kind: type[object]) -> list[object]:
        """The transitions of a kind."""
        return [said for entry in self.entries for said in entry.transitions if isinstance(said, kind)]

    @property
    def committed(self) -> list[str]:
        """The checkpoints that were committed, in order."""
        return [said.name for said in self.said(CheckpointCommitted) if isinstance(said, CheckpointCommitted)]

    @property
    def there(self) -> list[str]:
        """The checkpoints that are there, whole or not."""
        return [name for name in self.storage.files.folders(self.storage.root) if not name.startswith(".")]

    @property
    def unfinished(self) -> list[Path]:
        """What was being written to checkpoints when somebody was killed, and the parts of what is not sealed.

        Beside them the run's log is being put by now.
        """
        root, beside = Path(self.storage.root), Path(self.storage.inner("", ""))
        files = [path for path in root.rglob("*") if path.is_file() and path.parent != beside]
        return [path for path in files if path.name.startswith((TEMPORARY, "part-"))]


def whole(storage: Storage, name: str) -> Manifest:
    """A checkpoint's manifest, every file compared with it."""
    manifest = msgspec.json.decode(storage.files.read(storage.inner(name, MANIFEST)), type=Manifest)
    for file in manifest.files:
        assert storage.files.digest(storage.path(f"{name}/{file.path}")) == (file.size, file.sha256)
    return manifest


async def run(user: Commands, function: str, *settings: str, workers: int = 2, name: str | None = None) -> Run:
    """Run one function to its end; its log must be clean and decide the same again."""
    job = job_from(f"saving.py:{function}", workers=workers, settings=settings, name=name, working_dir=str(user.folder))
    async with client_of(user) as client:
        await client.submit(job)
        async with follow_run(client, str(job.id)) as following:
            state = await within(RUN_TIMEOUT_S, following.wait_ended())
        history = await live_history(client, state.run)
    assert history is not None
    assert audit(history).findings == ()
    assert verify(history).outcome == "agrees"
    return Run(user, state, history.entries)


async def test_after_a_failure_training_goes_on_from_the_last_committed_checkpoint(user: Commands) -> None:
    ran = await run(user, "trains", "failure.max_failures=1", "config.fail_at=1", "config.steps=4")
    assert type(ran.state.phase).__name__ == "Finished"
    assert ran.state.attempt == 2
    assert ran.state.return_value == 2
    assert ran.committed == ran.there
    assert ran.committed[:2] == ["checkpoint_000000_1", "checkpoint_000001_1"]
    # A rank that was ahead when the other failed had begun the next report: its number is not used again.
    assert [name.rpartition("_")[2] for name in ran.committed[2:]] == ["2", "2"]
    for name in ran.committed:
        manifest = whole(ran.storage, name)
        assert [file.path for file in manifest.files] == ["state-0", "state-1"]
        assert manifest.run == ran.state.run


async def test_only_the_best_are_kept_and_what_goes_is_a_fact(user: Commands) -> None:
    ran = await run(
        user,
        "trains",
        "config.steps=6",
        "checkpoint.num_to_keep=2",
        "checkpoint.checkpoint_score_attribute=loss",
        "checkpoint.checkpoint_score_order=max",
    )
    assert len(ran.committed) == 6
    # The two with the largest loss, and the latest.
    assert ran.there == ["checkpoint_000000_1", "checkpoint_000001_1", "checkpoint_000005_1"]
    deleted = [said for said in ran.said(TaskClosed) if isinstance(said, TaskClosed) and said.task_kind == "delete"]
    assert {said.outcome for said in deleted} == {"done"}


@pytest.mark.parametrize("mode", ["SYNC", "ASYNC"])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("at", range(5))
async def test_a_rank_killed_at_any_file_leaves_a_whole_checkpoint_or_none(
    user: Commands, at: int, rank: int, mode: str
) -> None:
    """Files 0 to 2 are the rank's own, 3 is its part; 4 never comes, and nobody is killed."""
    await killed(user, at < 4, f"config.at={at}", f"config.rank={rank}", f"config.mode={mode}")


@pytest.mark.parametrize("mode", ["SYNC", "ASYNC"])
@pytest.mark.parametrize("at", range(3))
async def test_a_rank_killed_in_the_middle_of_a_file_leaves_no_part_of_it(user: Commands, at: int, mode: str) -> None:
    await killed(user, True, f"config.at={at}", "config.torn=true", f"config.mode={mode}")


async def killed(user: Commands, is_killed: bool, *settings: str) -> None:
    """Let a rank be killed while it uploads the second of three checkpoints."""
    # One file after another: which one it is killed at is told by their order.
    ran = await run(user, "killed_at_file", "failure.max_failures=1", "checkpoint.upload_threads_max=1", *settings)
    assert type(ran.state.phase).__name__ == "Finished"
    assert ran.state.attempt == (2 if is_killed else 1)
    assert ran.there == ran.committed
    assert len(ran.committed) == 3
    # The next attempt begins from what is whole; beside an asynchronous upload the other rank may be behind.
    of_the_first = sum(name.endswith("_1") for name in ran.committed)
    assert ran.state.return_value == (of_the_first if is_killed else 0)
    if is_killed and "config.mode=SYNC" in settings:
        assert of_the_first == 1
    for name in ran.committed:
        assert len(whole(ran.storage, name).files) == 6
    assert ran.unfinished == []


async def test_a_lost_runner_leaves_whole_checkpoints_alone_and_its_half_done_ones_are_swept(user: Commands) -> None:
    ran = await run(user, "loses_its_runner", "failure.max_failures=1", workers=1)
    assert type(ran.state.phase).__name__ == "Finished"
    assert (ran.state.attempt, ran.state.return_value) == (2, 1)
    assert ran.there == ran.committed == ["checkpoint_000000_1", "checkpoint_000001_2", "checkpoint_000002_2"]


async def test_asynchronous_uploads_are_all_there_when_the_run_is_over(user: Commands) -> None:
    ran = await run(user, "beside")
    assert ran.committed == ran.there
    assert len(ran.committed) == 4
    assert ran.state.return_value == "returned"


async def test_what_was_reported_behind_an_upload_is_told_when_the_rank_fails(user: Commands) -> None:
    ran = await run(user, "fails_beside", "failure.max_failures=1", workers=1)
    assert (type(ran.state.phase).__name__, ran.state.attempt, ran.state.return_value) == ("Finished", 2, 1)
    reports = [item for entry in ran.entries for item in entry.inputs if isinstance(item, Reported)]
    told = [(item.attempt, item.metrics["step"]) for item in reports if item.metrics is not None]
    assert told == [(1, step) for step in range(4)] + [(2, step) for step in range(1, 5)]
    assert reports[1].upload_error == "its rank failed before its files were uploaded"
    assert ran.committed == ran.there == ["checkpoint_000000_1", "checkpoint_000004_2", "checkpoint_000005_2"]


async def test_threads_save_in_every_way_while_processes_forked_from_their_rank_cannot(user: Commands) -> None:
    ran = await run(user, "threads", "metrics_ranks=all")
    assert ran.state.return_value == [7]
    reports = [item for entry in ran.entries for item in entry.inputs if isinstance(item, Reported)]
    saved = [item.checkpoint for item in reports if item.checkpoint is not None]
    assert len(saved) == 9
    assert ran.committed == ran.there == saved
    for name in ran.committed:
        assert {file.rank for file in whole(ran.storage, name).files} == {0}
    for rank in range(2):
        mine = [item for item in reports if item.rank == rank]
        assert [item.index for item in mine] == list(range(18))
        for k in range(3):
            # Each thread's own are in the order in which it made them, whatever the mode.
            assert [item.metrics["n"] for item in mine if item.metrics and item.metrics["thread"] == k] == [
                0,
                0,
                1,
                1,
                2,
                2,
            ]


@pytest.mark.parametrize(
    ("reports", "saving", "committed"),
    [
        ([3, 3, 3], {}, []),
        ([3, 3, 3], {"2": [1]}, ["checkpoint_000001_1"]),
        ([3, 1, 3], {"0": [2]}, ["checkpoint_000002_1"]),
        ([2, 4, 3], {"0": [0], "1": [0, 3]}, ["checkpoint_000000_1", "checkpoint_000003_1"]),
    ],
    ids=["metrics alone", "one rank with files", "a rank that returns early", "different counts"],
)
async def test_ranks_that_report_differently_hang_nothing(
    user: Commands, reports: list[int], saving: dict[str, list[int]], committed: list[str]
) -> None:
    user.write("saving.py", SAVING.replace('config["saving"]', '{int(k): v for k, v in config["saving"].items()}'))
    ran = await run(
        user, "uneven", f"config.reports={json.dumps(reports)}", f"config.saving={json.dumps(saving)}", workers=3
    )
    assert type(ran.state.phase).__name__ == "Finished"
    assert ran.committed == committed
    doubtful = [one.name for one in ran.state.checkpoints.kept if one.doubtful]
    assert doubtful == (["checkpoint_000000_1"] if len(saving) == 2 else [])
    if doubtful:
        assert ran.storage.files.exists(ran.storage.inner(doubtful[0], "doubt.json"))
        assert any("different counts" in warning for warning in ran.state.warnings)


# --- asking for one


async def test_a_checkpoint_can_be_asked_for_and_a_run_stopped_at_one(user: Commands) -> None:
    job = job_from("saving.py:asked", workers=2, working_dir=str(user.folder))
    run_id = str(job.id)
    async with client_of(user) as client:
        await client.submit(job)
        async with follow_run(client, run_id) as following:
            await until(lambda: following.state is not None and following.state.reports > 4, RUN_TIMEOUT_S)
            assert await client.request(run_id, CheckpointNow(id=new_request_id(), by="ann")) == "accepted"
            await until(lambda: following.state is not None and following.state.checkpoint is not None, RUN_TIMEOUT_S)
            stop = StopAtCheckpoint(id=new_request_id(), by="ann", reason="the night is over")
            assert await client.request(run_id, stop) == "accepted"
            state = await within(RUN_TIMEOUT_S, following.wait_ended())
    assert type(state.phase).__name__ == "Finished"
    assert "finished by ann: stopped at checkpoint" in state.phase.reason
    assert "the night is over" in state.phase.reason
    assert len(state.checkpoints.kept) == 2


# --- an earlier run


async def test_the_same_name_and_storage_continue_and_the_first_entries_say_so(user: Commands, tmp_path: Path) -> None:
    storage = f"storage_path={tmp_path}/runs"
    first = await run(user, "trains", storage, "config.steps=2", name="digits")
    second = await run(user, "trains", storage, "config.steps=4", name="digits")
    (said,) = second.said(RunContinued)
    assert isinstance(said, RunContinued)
    assert (said.run, said.checkpoint, said.first_index) == (first.state.run, "checkpoint_000001_1", 2)
    said_at, running_at = (
        next(entry.n for entry in second.entries if any(words in t.reason for t in entry.transitions))
        for words in ("this run continues it", "in user code")
    )
    assert said_at <= running_at
    assert second.state.return_value == 2
    assert second.committed == ["checkpoint_000002_1", "checkpoint_000003_1"]
    assert second.there == [*first.committed, *second.committed]


async def test_a_resumed_run_that_never_asks_where_to_begin_is_warned_of(user: Commands, tmp_path: Path) -> None:
    storage = f"storage_path={tmp_path}/runs"
    await run(user, "ignores", storage, workers=1, name="mine")
    second = await run(user, "ignores", storage, workers=1, name="mine")
    assert [said.about for said in second.said(Warned) if isinstance(said, Warned)] == ["unread"]


async def test_what_was_never_whole_is_removed_when_the_path_is_used_again(user: Commands, tmp_path: Path) -> None:
    left = tmp_path / "runs" / "mine" / "checkpoint_000000_1"
    left.mkdir(parents=True)
    (left / "state-0").write_text("half")
    ran = await run(user, "trains", f"storage_path={tmp_path}/runs", "config.steps=1", name="mine")
    assert ran.committed == ["checkpoint_000000_1"]
    assert [file.path for file in whole(ran.storage, "checkpoint_000000_1").files] == ["state-0", "state-1"]


async def test_storage_that_cannot_be_used_ends_the_run_before_anybody_trains(user: Commands, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("in the way")
    ran = await run(user, "trains", f"storage_path={tmp_path}/a file/runs", "checkpoint.upload_retries_max=0")
    assert type(ran.state.phase).__name__ == "Errored"
    assert ran.state.failure is not None
    assert ran.state.failure.kind == "storage"
    assert ran.state.reports == 0


def test_the_commands(user: Commands) -> None:
    done = user.ok("run", "saving.py:trains", "--workers", "2", "--set", "config.steps=2", "-o", "json")
    before = str(done.document["run"])
    again = user.ok("resume", before, "--set", "config.steps=3", "-o", "json").document
    assert again["run"] != before
    assert again["return_value"] == 2
    assert again["checkpoint"] == "checkpoint_000002_1"
    assert "had ended already" in user.ok("checkpoint", before).out
    assert "had ended already" in user.ok("stop", before, "--at-checkpoint").out
    refused = user("stop", before)
    assert (refused.code, "--at-checkpoint" in refused.err) == (2, True)
    assert user("resume", "nobody").code == 4


def test_a_second_live_run_on_the_same_path_is_refused_and_told_of_the_first(user: Commands, tmp_path: Path) -> None:
    options = ("--set", f"storage_path={tmp_path}", "--set", "storage_name=shared", "--set", "config.steps=2")
    first = user.submit("saving.py:asked", *options)
    user.reaches(first, "running")
    refused = user("run", "saving.py:trains", *options)
    assert (refused.code, first in refused.err, "shared" in refused.err) == (2, True, True), refused.err
    user.ok("stop", first, "--at-checkpoint", "--reason", "another one waits")
    user.ok("watch", first)
    then = user.ok("run", "saving.py:trains", *options, "-o", "json").document
    assert then["state"] == "finished"
    assert f"{first} was here before" in user.ok("replay", str(then["run"])).out


def test_a_run_of_a_service_tells_the_same_from_its_log_and_from_its_storage(user: Commands, tmp_path: Path) -> None:
    """Nobody waited for it: the archiver puts its log beside its checkpoints."""
    settings = [f"storage_path={tmp_path}", "storage_name=told", "config.steps=3", "checkpoint.num_to_keep=2"]
    options = [word for setting in settings for word in ("--set", setting)]
    run = user.submit("saving.py:trains", "--workers", "2", *options)
    user.ok("watch", run)
    until_seen(lambda: bool(list((tmp_path / "told" / ".runfold").glob(f"run-{run}.*"))), COMMAND_TIMEOUT_S)
    from_storage, from_log = Result.from_path(tmp_path / "told"), get_result(run, data=user.data)
    assert from_storage == from_log
    assert (from_storage.run, from_storage.state, from_storage.return_value) == (run, "finished", 0)
    assert from_storage.metrics_dataframe.equals(from_log.metrics_dataframe)
    assert from_storage.checkpoints_dataframe.equals(from_log.checkpoints_dataframe)
    assert list(from_log.checkpoints_dataframe["kept"]) == [False, True, True]


def test_ranks_of_several_nodes_make_one_checkpoint(runfold: Commands) -> None:
    runfold.write("saving.py", SAVING)
    settings = ("--set", "failure.max_failures=1", "--set", "config.fail_at=1", "--set", "checkpoint.num_to_keep=1")
    ran = runfold.ok("run", "saving.py:trains", "--workers", "3", "--nodes", "2", "-o", "json", *settings).document
    assert (ran["state"], ran["attempt"], ran["return_value"]) == ("finished", 2, 2)
    storage = open_storage(StorageSpec(url=str(runfold.data / "storage"), name=str(ran["run"])))
    assert [name for name in storage.files.folders(storage.root) if "checkpoint" in name] == [ran["checkpoint"]]
    assert [file.rank for file in whole(storage, str(ran["checkpoint"])).files] == [0, 1, 2]
