"""`runfold run` without a service: everything is started for one run, and nothing of it is left but its archive."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from support.commands import COMMAND_TIMEOUT_S, Commands
from support.processes import gone, under
from support.scripts import TRAINING

if TYPE_CHECKING:
    import subprocess


@pytest.fixture
def user(runfold: Commands) -> Commands:
    runfold.write("jobs.py", TRAINING)
    return runfold


def only_run(user: Commands) -> str:
    (listed,) = json.loads(user.ok("ls", "-o", "json").out)
    return str(listed["run"])


def nothing_left(user: Commands) -> None:
    """No file of the run but its archive, and no process with the data directory on its command line or open."""
    assert list((user.data / "once").iterdir()) == []
    ours = [p for p in psutil.process_iter(["cmdline"]) if str(user.data) in " ".join(p.info["cmdline"] or [])]
    assert ours == []


def test_a_finished_run_is_told_and_its_archive_answers_every_question(user: Commands) -> None:
    done = user.ok("run", "jobs.py:ok", "--workers", "2")
    assert "running" in done.out
    assert "finished" in done.out
    assert "step=2" in done.out
    run = only_run(user)
    assert f"runfold replay {run}" in done.out
    nothing_left(user)

    status = user.ok("get", run, "-o", "json").document
    assert (status["state"], status["world_size"], status["attempt"]) == ("finished", 2, 1)
    assert status["return_value"] == {"rank": 0, "world_size": 2}
    assert "finished" in user.ok("get", run).out

    story = user.ok("replay", run).out
    assert "SCHEDULING → RUNNING" in story
    assert "SCHEDULING since" in user.ok("replay", run, "--at", "2").out
    assert user("replay", run, "--at", "soon").code == 2
    told = user.ok("replay", run, "-o", "json").document
    assert set(told) == {"story", "timeline"}
    assert "agrees" in user.ok("verify", run).out
    assert "clean" in user.ok("audit", run).out
    assert "finished" in user.ok("watch", run).out

    assert "rank 1 has printed this" in user.ok("logs", run).out
    records = [json.loads(line) for line in user.ok("logs", run, "--rank", "1", "-o", "json").out.splitlines()]
    (record,) = [record for record in records if record["text"]]
    assert (record["run"], record["attempt"], record["rank"], record["source"]) == (run, 1, 1, "stdout")
    assert record["text"] == "rank 1 has printed this"
    assert user("abort", run, "--reason", "late").code == 0


def test_an_error_of_the_users_code_comes_first_then_the_decision_and_what_is_left(user: Commands) -> None:
    done = user("run", "jobs.py:boom", "--workers", "2", "--set", "failure.max_failures=1", "--set", "config.times=2")
    assert done.code == 1
    error = done.err.strip().splitlines()
    assert error[0].startswith("rank 1 failed in attempt 2: RuntimeError: the user's own error")
    assert "jobs.py" in error[1]
    assert 'raise RuntimeError("the user\'s own error")' in done.err
    assert "errored" in done.err
    assert "worker 1 of 1, 0 left" in done.err
    nothing_left(user)
    assert user("watch", only_run(user)).code == 1


def test_a_rank_that_fails_once_is_retried_within_the_budget(user: Commands) -> None:
    done = user.ok("run", "jobs.py:boom", "--workers", "2", "--set", "failure.max_failures=1")
    assert "worker failure 1 of 1" in done.out
    assert "2 attempts" in done.out


@pytest.mark.parametrize(
    ("entrypoint", "said"),
    [
        ("no.such.module:train", "there is no module"),
        ("jobs.py:nothing", "has no 'nothing'"),
        ("jobs.py:not_a_function", "cannot be called"),
        ("broken.py:train", "SyntaxError"),
    ],
)
def test_code_that_does_not_load_is_never_retried(user: Commands, entrypoint: str, said: str) -> None:
    user.write("broken.py", "def train(:\n")
    done = user("run", entrypoint, "--set", "failure.max_failures=-1", "-o", "json")
    assert done.code == 1
    status = done.document
    assert (status["state"], status["attempt"]) == ("errored", 1)
    error = status["error"]
    assert isinstance(error, dict)
    assert error["kind"] == "load"
    assert said in f"{error['type']}: {error['message']}"


def test_a_file_that_is_not_there_is_told_before_anything_is_published(user: Commands) -> None:
    done = user("run", "nowhere.py:train")
    assert (done.code, "nowhere.py" in done.err, "Nothing was published" in done.err) == (2, True, True)


def test_with_json_progress_is_elsewhere_and_the_status_is_all_that_is_printed(user: Commands) -> None:
    done = user.ok("run", "jobs.py:ok", "-o", "json", "--name", "My Run")
    assert done.document["state"] == "finished"
    assert str(done.document["run"]).startswith("my-run-")
    assert "running" in done.err


def test_a_job_file_is_the_same_in_toml_and_json(user: Commands) -> None:
    user.write(
        "job.toml", 'entrypoint = "jobs.py:ok"\nname = "toml"\n[scaling]\nnum_workers = 2\n[config]\nsteps = 1\n'
    )
    user.write("job.json", '{"entrypoint": "jobs.py:ok", "name": "json", "scaling": {"num_workers": 2}}')
    assert user.ok("run", "job.toml", "-o", "json").document["world_size"] == 2
    assert user.ok("run", "job.json", "--workers", "1", "-o", "json").document["world_size"] == 1


def running(process: subprocess.Popen[str]) -> None:
    """Read what a run prints until its ranks are in user code."""
    assert process.stdout is not None
    while line := process.stdout.readline():
        if " running " in line:
            return
    pytest.fail("the run ended before it was running")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_aborts_in_order(user: Commands, number: signal.Signals) -> None:
    process = user.start("run", "jobs.py:wait", "--workers", "2")
    running(process)
    process.send_signal(number)
    _, err = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert process.returncode == 3, err
    assert number.name in err
    assert "aborted" in err
    nothing_left(user)
    run = only_run(user)
    assert user.ok("get", run, "-o", "json").document["state"] == "aborted"
    assert "clean" in user.ok("audit", run).out


def test_a_signal_aborts_a_resumed_run_in_order_where_no_service_goes_on_with_it(user: Commands) -> None:
    user("run", "jobs.py:boom", "--workers", "2", "--set", "id=first")
    process = user.start("resume", "first", "--set", "entrypoint=jobs.py:wait")
    running(process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert process.returncode == 3, err
    assert "aborted" in err
    nothing_left(user)


def test_a_run_under_way_is_found_by_other_commands(user: Commands) -> None:
    process = user.start("run", "jobs.py:wait", "--workers", "2")
    running(process)
    (folder,) = (user.data / "once").iterdir()
    user.until_known(folder.name)
    user.reaches(folder.name, "running")
    (listed,) = json.loads(user.ok("ls", "-o", "json").out)
    assert (listed["state"], listed["where"]) == ("running", "once")
    run = listed["run"]
    assert (run, user.ok("get", run, "-o", "json").document["state"]) == (folder.name, "running")
    assert "RUNNING" in user.ok("replay", run).out
    assert "accepted" in user.ok("abort", run, "--reason", "seen enough").out
    _, err = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert process.returncode == 3
    assert "seen enough" in err
    nothing_left(user)


def test_a_killed_run_leaves_no_process(user: Commands) -> None:
    process = user.start("run", "jobs.py:wait", "--workers", "2")
    running(process)
    family = under(psutil.Process(process.pid))
    assert len(family) > 5
    process.kill()
    process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert gone(family) == []
    doctor = user("doctor")
    assert doctor.code == 1
    assert "left behind" in doctor.out
