"""What somebody meets who does not know the program yet: typos, waiting, refusals, a service that is not running."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from support.commands import COMMAND_TIMEOUT_S, STOP_TIMEOUT_S, Commands
from support.scripts import TRAINING


@pytest.fixture(scope="module")
def user(served: Commands) -> Commands:
    """Commands beside a shared service of four slots."""
    served.write("jobs.py", TRAINING)
    return served


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--data", "x", "ls"), "options come after it"),
        (("run", "jobs.py:ok", "-o", "yaml"), "'yaml' is not one of 'text', 'json'"),
        (("run", "jobs.py:ok", "--workers", "two"), "must be a whole number"),
        (("run",), "Missing argument"),
        (("submit", "job.yaml"), "job files are .toml or .json"),
        (("run", "jobs.py:ok", "--set", "config.=3"), "a part of the path is empty"),
        (("run", "jobs.py:ok", "--name", ""), "--name: is empty"),
        (("run", "jobs.py:ok", "--name", "x" * 129), "1 to 128 characters"),
        (("run", "jobs.py:ok", "--set", "failure.max_failures=x"), "must be a whole number, not text"),
        (("run", "jobs.py:ok", "--set", "scaling.placement_strategy=FOO"), "must be one of PACK, SPREAD"),
        (("abort", "some-run", "--reason", " "), "--reason must say why"),
        (("ls", "--data", "nowhere"), "there is no directory"),
        (("up", "--data", "/proc/x"), "/proc/x cannot be created"),
        (("run", "jobs.py:ok", "--data", "/proc/x"), "/proc/x cannot be created"),
        (("run", "jobs.py"), "write it as jobs.py:function"),
    ],
)
def test_what_cannot_be_asked_for_is_told_in_plain_words(runfold: Commands, words: tuple[str, ...], said: str) -> None:
    runfold.write("jobs.py", TRAINING)
    done = runfold(*words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Value error" not in done.err
    assert "x" * 60 not in done.err


@pytest.mark.parametrize("words", [("get",), ("replay",), ("watch",), ("logs",), ("abort", "--reason", "x")])
def test_a_run_that_nobody_knows_is_called_the_same_everywhere(runfold: Commands, words: tuple[str, ...]) -> None:
    for run, said in (("nope", "there is no run 'nope'\nThere is no directory"), ("", "there is no run ''")):
        done = runfold(*words, run)
        assert (done.code, said in done.err) == (4, True), done.err


@pytest.fixture(scope="module")
def refused(user: Commands) -> str:
    """A job that was refused, since its id is another one's."""
    user.submit("jobs.py:ok", "--set", "id=taken")
    refused = user("submit", "jobs.py:ok", "--set", "id=taken", "--workers", "2")
    assert (refused.code, refused.out) == (2, "")
    assert "choose another id" in refused.err
    job = user.ok("ls", "--refused").out.splitlines()[1].split()[0]
    assert "choose another id" in user.ok("get", job).out
    assert user.ok("submit", "jobs.py:ok", "--set", "id=taken", "--workers", "2", "--no-wait").out == "taken\n"
    return job


@pytest.mark.parametrize("words", [("replay",), ("watch",), ("logs",), ("abort", "--reason", "x"), ("stacks",)])
def test_a_refused_job_is_told_everywhere(user: Commands, refused: str, words: tuple[str, ...]) -> None:
    done = user(*words, refused)
    assert done.code == 4
    assert f"{refused} was refused" in done.err


def test_a_run_that_waits_says_for_what(user: Commands) -> None:
    holds = user.submit("jobs.py:wait", "--workers", "4")
    user.reaches(holds, "running")
    watching = user.start("run", "jobs.py:ok", "--workers", "3", "--set", "id=waits")
    assert watching.stdout is not None
    while " waiting " not in (line := watching.stdout.readline()):
        assert line
    assert "3 slots needed, 0 free" in line
    # The log is first, the status a moment later.
    user.until_known("waits")
    user.until("waits", lambda status: "3 slots needed" in str(status["waiting"]))
    assert "waiting: 3 slots needed, 0 free" in user.ok("get", "waits").out
    assert "waiting: 3 slots needed, 0 free" in user.ok("ls").out
    assert "after it was accepted" in user.ok("replay", "waits").out
    user.ok("abort", holds, "--reason", "make room")
    assert watching.communicate(timeout=COMMAND_TIMEOUT_S) is not None
    assert watching.returncode == 0


def test_ranks_and_attempts_that_a_run_never_had(user: Commands) -> None:
    run = user.ok("run", "jobs.py:ok", "-o", "json").document["run"]
    assert isinstance(run, str)
    for command, option, said in (
        ("logs", "--rank", "has 1 rank"),
        ("replay", "--rank", "has had 1 rank"),
        ("replay", "--attempt", "has had 1 attempt"),
    ):
        done = user(command, run, option, "7")
        assert (done.code, said in done.err, done.out) == (2, True, "")


def test_looking_on_ends_without_ending_the_run(user: Commands) -> None:
    run = user.submit("jobs.py:wait")
    for words in (("watch", run), ("submit", "jobs.py:wait", "--follow", "--set", f"id={run}-2")):
        looking = user.start(*words)
        stream = looking.stdout if words[0] == "watch" else looking.stderr
        assert stream is not None
        while " running " not in (line := stream.readline()):
            assert line
        looking.send_signal(signal.SIGINT)
        _, err = looking.communicate(timeout=COMMAND_TIMEOUT_S)
        assert looking.returncode == 130
        assert "goes on; follow it again with: runfold watch" in err
        assert "Traceback" not in err
    for each in (run, f"{run}-2"):
        user.reaches(each, "running")
        user.ok("abort", each, "--reason", "tidy")


def test_following_a_resumed_run_ends_without_ending_it(user: Commands) -> None:
    run = user.submit("jobs.py:wait")
    user.reaches(run, "running")
    user.ok("abort", run, "--reason", "to be resumed")
    user.ended(run)
    looking = user.start("resume", run, "--set", f"id={run}-2")
    assert looking.stdout is not None
    while " running " not in (line := looking.stdout.readline()):
        assert line
    looking.send_signal(signal.SIGINT)
    _, err = looking.communicate(timeout=COMMAND_TIMEOUT_S)
    assert looking.returncode == 130
    assert f"{run}-2 goes on; follow it again with: runfold watch" in err
    user.reaches(f"{run}-2", "running")
    user.ok("abort", f"{run}-2", "--reason", "tidy")


def test_an_object_that_was_returned_is_named(runfold: Commands) -> None:
    runfold.write("jobs.py", "def train():\n    return object()\n")
    assert "returned: an object" in runfold.ok("run", "jobs.py:train").out


def test_a_service_that_is_not_running_is_told_with_what_it_left(runfold: Commands) -> None:
    runfold.write("jobs.py", TRAINING)
    with runfold.service("--slots", "1") as up:
        runfold.submit("jobs.py:wait", "--set", "id=at-work")
        following = runfold.start("watch", "at-work")
        assert following.stdout is not None
        while " running " not in (line := following.stdout.readline()):
            assert line
        following.send_signal(signal.SIGINT)
        following.communicate(timeout=STOP_TIMEOUT_S)
        runfold.submit("jobs.py:ok", "--set", "id=waits")
        runfold.reaches("at-work", "running")
        assert "1 running and 1 waiting runs go on when the service is started again" in up.stop()
    listed = runfold.ok("ls")
    assert "is not running" in listed.err
    for run in ("at-work", "waits"):
        found = runfold("get", run)
        assert "is not running" in found.err
    unknown = runfold("get", "nope")
    assert (unknown.code, "is not running" in unknown.err) == (4, True)
    assert runfold("abort", "at-work", "--reason", "x").code == 5
    with runfold.service("--slots", "1"):
        runfold.ok("abort", "at-work", "--reason", "seen enough")
        assert runfold.ok("watch", "waits").code == 0


PRINTS = """
import sys
import runfold

def train():
    print("printed by", runfold.get_context().get_world_rank())
    print("a warning", file=sys.stderr)
    return 1
"""


def test_what_ranks_print_is_shown_unless_it_is_not_wanted(runfold: Commands) -> None:
    runfold.write("jobs.py", PRINTS)
    shown = runfold.ok("run", "jobs.py:train", "--workers", "2")
    assert {"[rank 0]      printed by 0", "[rank 1]      printed by 1"} <= {
        line.strip() for line in shown.out.splitlines()
    }
    assert "a warning" not in shown.out
    assert "what its ranks printed: runfold logs" in shown.out
    assert "printed by" not in runfold.ok("run", "jobs.py:train", "--no-output").out
    assert "printed by" not in runfold.ok("run", "jobs.py:train", "-o", "json").out


def test_fit_leaves_standard_output_to_its_caller(runfold: Commands) -> None:
    runfold.write("jobs.py", PRINTS)
    script = runfold.write("fit.py", "import runfold\nprint(runfold.Trainer('jobs.py:train').fit().return_value)\n")
    done = subprocess.run(
        [sys.executable, script],
        cwd=runfold.folder,
        env=runfold.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_TIMEOUT_S,
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert "printed by 0" in done.stderr


@pytest.mark.parametrize("words", [("submit", "--follow"), ("run",)])
def test_a_pool_that_nobody_supervises_is_told_while_its_run_waits(user: Commands, words: tuple[str, ...]) -> None:
    run = f"alone-{words[0]}"
    command, *more = words
    following = user.start(command, "jobs.py:ok", *more, "--set", "pool=ray", "--set", f"id={run}")
    user.until_known(run)
    watching = user.start("watch", run)
    told = f"{run}: waiting: a supervisor of pool ray: none has spoken yet\n"
    for stream in (following.stderr, watching.stderr):
        assert stream is not None
        # Nothing but a controller that is slow is waited for before.
        while (line := stream.readline()) != told:
            assert line
            assert "waiting" not in line or "waiting: a controller: " in line, line
    user.ok("abort", run, "--reason", "nobody there")
    for process in (following, watching):
        process.communicate(timeout=COMMAND_TIMEOUT_S)
