"""The service as a user has it: `up`, and the commands that find it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import COMMAND_TIMEOUT_S, Commands
from support.processes import alive, gone, name_of, under
from support.scripts import TRAINING
from support.sources import ROOT
from support.waiting import until_seen


@pytest.fixture(scope="module")
def user(served: Commands) -> Commands:
    """Commands beside a shared service."""
    served.write("jobs.py", TRAINING)
    return served


def publish(user: Commands, payload: bytes) -> int:
    """Publish raw bytes as a job with nats-py alone; the receipt's sequence."""
    code = (
        "import asyncio, json, sys, nats\n"
        "async def main():\n"
        "    broker = await nats.connect(json.load(open(sys.argv[1]))['url'])\n"
        "    print((await broker.jetstream().publish('runfold.jobs.submit', sys.stdin.buffer.read())).seq)\n"
        "    await broker.close()\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, user.data / "connection.json"],
        input=payload,
        capture_output=True,
        check=True,
        timeout=COMMAND_TIMEOUT_S,
    )
    return int(done.stdout)


def test_submit_prints_the_id_alone_and_the_run_can_be_followed(user: Commands) -> None:
    done = user.ok("submit", "jobs.py:ok", "--workers", "2", "--set", "config.steps=2")
    run = done.out.strip()
    assert done.out == f"{run}\n"
    user.until_known(run)
    watched = user.ok("watch", run)
    assert "step=1" in watched.out
    status = user.ended(run)
    assert (status["state"], status["world_size"]) == ("finished", 2)
    assert run in user.ok("ls").out
    assert "rank 0 has printed this" in user.ok("logs", run).out
    assert "clean" in user.ok("audit", run).out
    assert "agrees" in user.ok("verify", run).out


@pytest.fixture(scope="module")
def ended_run(user: Commands) -> str:
    """A run that has ended, for tests that need there to be one."""
    return user.ok("submit", "jobs.py:ok", "--follow", "--set", "config.steps=1").out.strip()


@pytest.mark.parametrize("word", ["*", ">", "../x"])
@pytest.mark.usefixtures("ended_run")
def test_what_is_no_runs_id_is_no_run(user: Commands, word: str) -> None:
    for words in (("get",), ("watch",), ("logs", "-f"), ("abort", "--reason", "x")):
        done = user(*words, word)
        assert done.code == 4, (words, done.out, done.err)
        assert "Traceback" not in done.err


def test_submit_follow_ends_as_the_run_ends(user: Commands) -> None:
    assert user.ok("submit", "jobs.py:ok", "--follow").out.count("\n") == 1
    done = user("submit", "jobs.py:boom", "--workers", "2", "--follow")
    assert done.code == 1
    assert "the user's own error" in done.err


def test_run_uses_the_service_that_answers(user: Commands) -> None:
    done = user.ok("run", "jobs.py:ok", "-o", "json")
    user.until_known(str(done.document["run"]))
    listed = json.loads(user.ok("ls", "-o", "json").out)
    (found,) = [item for item in listed if item["run"] == done.document["run"]]
    assert found["where"] == "service"
    assert not (user.data / "once").exists()


def test_an_interrupt_can_leave_the_run_to_the_service(user: Commands) -> None:
    process = user.start("run", "jobs.py:wait", "--set", "id=left-alone", "--detach-on-interrupt")
    assert process.stdout is not None
    while " running " not in (line := process.stdout.readline()):
        assert line
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert process.returncode == 0
    assert "left-alone goes on" in err
    user.reaches("left-alone", "running")
    user.ok("abort", "left-alone", "--reason", "tidy")


def test_watch_as_json_gives_a_status_a_line(user: Commands) -> None:
    run = user.submit("jobs.py:ok")
    lines = [json.loads(line) for line in user.ok("watch", run, "-o", "json").out.splitlines()]
    assert lines[-1]["state"] == "finished"
    assert [line["head"]["n"] for line in lines] == list(range(len(lines)))


def test_abort_is_acknowledged_with_who_and_why(user: Commands) -> None:
    run = user.submit("jobs.py:wait", "--workers", "2")
    large = user("abort", run, "--reason", "x" * 20_000)
    assert (large.code, "request_max_bytes" in large.err) == (2, True)
    assert "accepted" in user.ok("abort", run, "--reason", "seen enough").out
    assert user("watch", run).code == 3
    status = user.ended(run)
    assert status["state"] == "aborted"
    assert "seen enough" in str(status["reason"])
    assert "ended already" in user.ok("abort", run, "--reason", "again").out


def test_logs_follow_until_the_run_ends(user: Commands) -> None:
    run = user.submit("jobs.py:ok", "--workers", "2")
    lines = user.ok("logs", run, "--follow", "-o", "json").out.splitlines()
    told = {(record["rank"], record["text"]) for record in map(json.loads, lines)}
    assert {(0, "rank 0 has printed this"), (1, "rank 1 has printed this")} <= told


def test_a_job_published_raw_is_a_run_of_its_number(user: Commands) -> None:
    job = {"entrypoint": "jobs.py:ok", "working_dir": str(user.folder), "scaling": {"num_workers": 2}}
    run = f"job-{publish(user, json.dumps(job).encode())}"
    user.until_known(run)
    assert user.ended(run)["state"] == "finished"


@pytest.mark.parametrize(
    ("payload", "path", "said"),
    [
        (b"not json", "$", "not JSON"),
        (b"[1, 2]", "$", "a table of names"),
        (b'{"entrypoint": 3}', "$.entrypoint", "must be text"),
        (b'{"entrypoint": "a:b", "surprise": 1}', "$.surprise", "unknown field"),
        (b'{"entrypoint": "a:b", "scaling": {"num_workers": 0}}', "$.scaling.num_workers", "at least 1"),
        (b'{"entrypoint": "a:b", "scaling": {"num_workers": -1}}', "$.scaling.num_workers", "at least"),
        (b'{"entrypoint": "a:b", "scaling": {"num_workers": 1000000000}}', "$.scaling.num_workers", "world_size_max"),
    ],
)
def test_a_bad_job_is_refused_with_the_path_of_the_offender(
    user: Commands, payload: bytes, path: str, said: str
) -> None:
    name = f"job-{publish(user, payload)}"
    until_seen(lambda: user("get", name).code != 4, COMMAND_TIMEOUT_S)
    found = user.ok("get", name, "-o", "json")
    assert found.document["kind"] == "job_refused"
    assert found.document["path"] == path
    assert said in str(found.document["reason"])
    assert name in user.ok("ls", "--refused").out


def test_the_same_id_is_the_same_run_and_another_content_is_refused(user: Commands) -> None:
    words = ("submit", "jobs.py:ok", "--set", "id=twice", "-o", "json")
    assert user.ok(*words).document["repeated"] is False
    assert user.ok(*words).document["repeated"] is True
    assert user.ended("twice")["state"] == "finished"
    done = user("submit", "jobs.py:ok", "--set", "id=twice", "--set", "config.steps=9", "--follow")
    assert done.code == 2
    assert "refused" in done.err
    assert user.ok("get", "twice", "-o", "json").document["state"] == "finished"


def test_a_second_service_in_one_directory_is_refused_and_harms_nothing(user: Commands) -> None:
    done = user("up")
    assert done.code == 1
    assert "in use" in done.err
    assert user.ok("submit", "jobs.py:ok", "--follow").code == 0


def test_doctor_finds_the_service_well(user: Commands) -> None:
    done = user.ok("doctor", "-o", "json")
    checks = {check["what"]: check["verdict"] for check in json.loads(done.out)}
    assert {"service", "streams", "pool"} <= set(checks)
    assert set(checks.values()) == {"ok"}


def test_a_context_of_the_nats_program_finds_it_too(user: Commands) -> None:
    connection = json.loads((user.data / "connection.json").read_text())
    contexts = user.folder / "config" / "nats" / "context"
    contexts.mkdir(parents=True)
    (contexts / "here.json").write_text(json.dumps({"url": connection["url"]}))
    user.ok("submit", "jobs.py:ok", "--context", "here")
    assert json.loads(user.ok("ls", "--context", "here", "-o", "json").out)
    quoted = connection["url"].replace("client:", "clien%74:")
    assert json.loads(user.ok("ls", "--server", quoted, "-o", "json").out)


def test_the_examples_publish_jobs(user: Commands) -> None:
    import shutil

    shutil.copytree(ROOT / "examples", user.folder / "examples")
    done = subprocess.run(
        [sys.executable, "-P", "examples/publish.py"],
        cwd=user.folder,
        env=user.environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=COMMAND_TIMEOUT_S,
    )
    user.until_known(done.stdout.strip())
    assert user("watch", done.stdout.strip()).code == 0
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    shell = subprocess.run(
        ["sh", "examples/publish.sh"],
        cwd=user.folder,
        env=user.environment(PATH=path),
        capture_output=True,
        text=True,
        check=True,
        timeout=COMMAND_TIMEOUT_S,
    )
    assert "finished" in shell.stdout


def test_stopping_leaves_no_process_and_the_archive_answers_afterwards(runfold: Commands) -> None:
    runfold.write("jobs.py", TRAINING)
    with runfold.service() as up:
        run = runfold.ok("submit", "jobs.py:ok", "--follow").out.strip()
        runfold.until_archived(run)
        runfold.ok("submit", "jobs.py:wait", "--workers", "2")
        family = up.family()
        up.stop(signal.SIGINT)
        assert up.process.returncode == 0
        assert gone(family) == []
    assert runfold.ok("get", run, "-o", "json").document["state"] == "finished"


def test_the_runs_of_a_killed_service_go_on_and_the_next_one_adopts_them(runfold: Commands) -> None:
    runfold.write("jobs.py", TRAINING)
    with runfold.service("--slots", "4") as up:
        run = runfold.submit("jobs.py:wait", "--workers", "2")
        runfold.reaches(run, "running")
        family = up.family()
        runner = next(one for one in family if name_of(one) == "runfold-runner")
        kept = under(runner)
        group = [one for one in kept if name_of(one) in ("runfold-runner", "rank-0", "rank-1")]
        assert len(group) == 3
        up.process.kill()
        assert gone([one for one in family if one not in kept]) == []
    assert all(alive(one) for one in group)
    with runfold.service("--slots", "4"):
        assert runfold.ok("submit", "jobs.py:ok", "--follow").code == 0
        status = runfold.ok("get", run, "-o", "json").document
        assert (status["state"], status["attempt"]) == ("running", 1)
        runfold.ok("abort", run, "--reason", "tidy")
        assert runfold("watch", run).code in (1, 3)
    assert gone(kept) == []


def test_what_dies_under_it_is_started_again(runfold: Commands) -> None:
    runfold.write("jobs.py", TRAINING)
    with runfold.service() as up:
        import psutil

        for role in ("controller", "supervisor", "broker"):
            psutil.Process(up.pids[role]).kill()
            assert runfold.ok("submit", "jobs.py:ok", "--follow").code == 0
            up.pids = json.loads((runfold.data / "connection.json").read_text())["pids"]
