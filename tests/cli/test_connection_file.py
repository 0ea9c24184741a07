"""`connection.json` is lost while its service runs: it is written anew, and until then nobody says what is not so."""

from __future__ import annotations

import pytest

from runfold.events.nats.files import CONNECTION_FILE, read_connection
from support.commands import COMMAND_TIMEOUT_S, Commands
from support.waiting import until_seen

TRAINING = """
import time
from pathlib import Path

import runfold


def waits(config):
    while not Path(config["enough"]).exists():
        time.sleep(0.05)


def ok():
    return 5
"""
LIES = ("Nobody goes on", "no service answers", "none runs here", "archive", "is not running", "Traceback")


def at_work(runfold: Commands) -> None:
    runfold.write("jobs.py", TRAINING)
    runfold.submit("jobs.py:waits", "--set", f"config.enough={runfold.folder / 'enough'}", "--set", "id=live")
    runfold.reaches("live", "running")


def test_a_running_service_writes_it_anew_and_commands_wait_for_that(runfold: Commands) -> None:
    file = runfold.data / CONNECTION_FILE
    with runfold.service("--slots", "2") as up:
        at_work(runfold)
        told = read_connection(runfold.data)
        file.rename(runfold.folder / "moved away")
        listed = runfold.ok("ls", "-o", "json")
        assert '"service"' in listed.out
        assert '"archive"' not in listed.out
        until_seen(file.exists, COMMAND_TIMEOUT_S)
        for content in ("", "{", "[]", "null", '{"url": 1}'):
            file.write_text(content, encoding="utf-8")
            done = runfold.ok("get", "live", "-o", "json")
            assert done.document["state"] == "running"
            assert read_connection(runfold.data) == told
        file.write_text("{", encoding="utf-8")
        run = runfold.ok("submit", "jobs.py:ok").out.strip()
        assert runfold.ended(run)["state"] == "finished"
        file.unlink()
        runfold.ok("run", "jobs.py:ok")
        assert list((runfold.data / "once").glob("*")) == [], "it ran on the service"
        file.unlink()
        runfold.ok("abort", "live", "--reason", "seen enough")
        assert runfold.ended("live")["state"] == "aborted"
        assert f"{CONNECTION_FILE} was missing, damaged or another one: it is written anew" in up.stop()


def test_a_directory_in_its_place_is_told_by_all_until_it_is_moved_away(runfold: Commands) -> None:
    file = runfold.data / CONNECTION_FILE
    with runfold.service("--slots", "2") as up:
        at_work(runfold)
        file.unlink()
        file.mkdir()
        for words in (
            ("abort", "live", "--reason", "x"),
            ("submit", "jobs.py:ok"),
            ("run", "jobs.py:ok"),
            ("get", "live"),
            ("logs", "live"),
            ("ls",),
            ("doctor",),
        ):
            done = runfold(*words)
            assert done.code == (1 if words == ("doctor",) else 5), (words, done.out, done.err)
            said = f"runs (process {up.process.pid}), but its {CONNECTION_FILE} is a directory\nMove that away"
            assert said in done.out + done.err, words
            if words != ("doctor",):
                assert not [lie for lie in LIES if lie in done.out + done.err], (words, done.out, done.err)
        assert not (runfold.data / "once").exists()
        assert f"(process {up.process.pid})" in runfold("up").err
        file.rmdir()
        runfold.ok("abort", "live", "--reason", "seen enough")
        assert runfold.ended("live")["state"] == "aborted"
        assert "a directory is in its place; move that away" in up.stop()
    file.unlink()
    file.mkdir()
    refused = runfold("up")
    assert refused.code == 1
    assert "a directory is in its place; move that away" in refused.err


@pytest.mark.parametrize("name", [CONNECTION_FILE, "admin.json"])
def test_a_service_starts_on_what_is_damaged(runfold: Commands, name: str) -> None:
    runfold.data.mkdir()
    (runfold.data / name).write_text("{", encoding="utf-8")
    with runfold.service("--slots", "1"):
        runfold.ok("ls")
        runfold.ok("gc", "--older-than", "30d")
