"""What answers without a service: help, versions, schemas, and everything that was typed wrong."""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runfold.cli import COMMANDS
from runfold.cli.schema import KINDS
from support.commands import RUNFOLD, Commands, Done


def test_help_lists_every_command_and_exit_code(runfold: Commands) -> None:
    done = runfold.ok("--help")
    for name, (_, line) in COMMANDS.items():
        assert f"{name} " in done.out
        assert line in done.out
    assert "5 broker unreachable" in done.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_tells_its_options(runfold: Commands, name: str) -> None:
    assert "--help" in runfold.ok(name, "--help").out


def test_a_misspelt_command_names_the_one_meant(runfold: Commands) -> None:
    done = runfold("replai")
    assert done.code == 2
    assert "did you mean 'replay'" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run",), "Missing argument"),
        (("run", "a.py:f", "--workers", "two"), "--workers"),
        (("run", "nothing"), "$.entrypoint"),
        (("run", "a.py:f", "--workers", "0"), "num_workers"),
        (("run", "a.py:f", "--workers", "-1"), "num_workers"),
        (("run", "a.py:f", "--workers", "1000000000"), "world_size_max"),
        (("run", "a.py:f", "--set", "failure"), "--set failure"),
        (("run", "a.py:f", "--set", "failure.max_failure=1"), "$.failure.max_failure"),
        (("run", "a.py:f", "--set", "id=job-1"), "$.id"),
        (("run", "no-such-file.toml"), "no-such-file.toml"),
        (("schema", "nothing"), "known are"),
        (("replay", "x", "-o", "yaml"), "--output"),
        (("up", "--slots", "0"), "--slots"),
        (("up", "--node", "a b"), "--node"),
        (("up", "--node", "n" * 65), "--node"),
        (("up", "--node", "pool-local"), "--node"),
        (("up", "--pool", "A.*"), "--pool"),
        (("ls", "--data", ""), "--data"),
        (("ls", "--server", ":::"), "no address"),
        (("ls", "--server", "http://["), "no address"),
        (("ls", "--server", "ftp://host"), "no address"),
        (("ls", "--server", "nats://host:99999"), "no address"),
        (("get", "x", "--server", "nats://127.0.0.1:1", "--context", "c"), "--context"),
        (("get", "x", "--context", "nowhere"), "nowhere"),
    ],
)
def test_what_is_typed_wrong_is_usage_and_names_it(runfold: Commands, words: tuple[str, ...], said: str) -> None:
    done = runfold(*words)
    assert done.code == 2, done.err
    assert said in done.err
    assert "Traceback" not in done.err
    assert not (runfold.data / "once").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_message_has_a_schema(runfold: Commands, kind: str) -> None:
    schema = json.loads(runfold.ok("schema", kind).out)
    assert "$defs" in schema


def test_versions_name_what_runs(runfold: Commands) -> None:
    from runfold import __version__

    assert f"runfold {__version__}" in runfold.ok("version").out
    assert runfold.ok("--version", "-o", "json").document["runfold"] == __version__


ABORT = ("abort", "nope", "--reason", "x")
READING = [("get", "nope"), ("logs", "nope"), ("replay", "nope"), ("watch", "nope")]


@pytest.mark.parametrize("words", [*READING, ABORT, ("verify", "nope"), ("audit", "nope")])
def test_a_run_that_nobody_knows_is_not_found(runfold: Commands, words: tuple[str, ...]) -> None:
    done = runfold(*words)
    assert done.code == 4, done.err
    assert "nope" in done.err.splitlines()[0]
    assert "Traceback" not in done.err


ANSWERED_BY_A_BROKER = [*READING, ABORT, ("submit", "a.py:f"), ("ls",)]


@pytest.fixture(scope="module")
def unanswered(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Done]:
    """What commands say when no broker answers; each waits for one, so they wait together."""
    commands = Commands(tmp_path_factory.mktemp("unanswered"))
    asked = [(*words, "--server", "nats://127.0.0.1:1") for words in ANSWERED_BY_A_BROKER]
    try:
        with ThreadPoolExecutor() as threads:
            done = list(threads.map(lambda words: commands(*words), asked))
    finally:
        commands.end()
    return dict(zip(ANSWERED_BY_A_BROKER, done, strict=True))


@pytest.mark.parametrize("words", ANSWERED_BY_A_BROKER)
def test_a_broker_that_does_not_answer_is_said(unanswered: dict[tuple[str, ...], Done], words: tuple[str, ...]) -> None:
    done = unanswered[words]
    assert done.code == 5, done.err
    assert "127.0.0.1:1" in done.err


@pytest.mark.parametrize("words", [("ls",), ("run", "a.py:f"), ("up",), ("submit", "a.py:f")])
def test_a_data_directory_that_is_none_is_said(runfold: Commands, words: tuple[str, ...]) -> None:
    runfold.data.parent.joinpath("file").write_text("")
    done = runfold(*words, "--data", str(runfold.data.parent / "file"))
    assert done.code == 2, done.err
    assert "is a file, not a directory" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("words", [("version",), ("version", "-o", "json"), ("schema", "job")])
def test_an_output_that_is_full_is_said(words: tuple[str, ...]) -> None:
    # Kept back, as to a file, and written at the end alone.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [RUNFOLD, *words],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words", [("run", "\udcff.py:f"), ("run", "a.py:f", "--name", "\udcff"), ("run", "a.py:f", "--set", "env.A=\udcff")]
)
def test_bytes_that_are_no_text_are_usage(runfold: Commands, words: tuple[str, ...]) -> None:
    done = runfold(*words)
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    assert not (runfold.data / "once").exists()


@pytest.mark.parametrize("words", [("run", "a.py:f"), ("up",), ("ls", "--data", "d"), ("get", "d", "--data", "d")])
def test_a_working_directory_that_is_gone_is_said(runfold: Commands, words: tuple[str, ...]) -> None:
    gone = runfold.folder / "gone"
    gone.mkdir()
    done = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", RUNFOLD, *words],
        cwd=gone,
        env=runfold.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "working directory is gone" in done.stderr
    assert not list((runfold.data / "once").glob("*"))
    assert "Traceback" not in done.stderr


def test_a_bad_namespace_is_said(runfold: Commands) -> None:
    done = runfold("ls", RUNFOLD_NAMESPACE="A b")
    assert done.code == 2, done.err
    assert "RUNFOLD_NAMESPACE" in done.err


def test_submit_without_a_service_says_how_to_start_one(runfold: Commands) -> None:
    done = runfold("submit", "a.py:f")
    assert done.code == 5
    assert "runfold up" in done.err


def test_nothing_to_list_is_an_empty_list(runfold: Commands) -> None:
    assert json.loads(runfold.ok("ls", "-o", "json").out) == []
    assert json.loads(runfold.ok("ls", "--refused", "-o", "json").out) == []


def test_doctor_warns_of_the_peers_variables_and_says_what_to_set(runfold: Commands) -> None:
    assert runfold("doctor").code == 0
    done = runfold("doctor", RAY_TRAIN_COLLECTIVE_TIMEOUT_S="5")
    assert done.code == 1
    assert "timeouts.collective_timeout_s" in done.out
