"""Where things are found: options, environment, contexts, connection.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runfold.config import read_settings
from runfold.errors import UnreachableError, UsageError
from runfold.locate import answering, find


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RUNFOLD_SERVER", "RUNFOLD_CONTEXT", "RUNFOLD_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RUNFOLD_DATA", str(tmp_path / "from-environment"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def context(tmp_path: Path, name: str, **fields: str) -> None:
    folder = tmp_path / "config" / "nats" / "context"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(fields), encoding="utf-8")


def test_settings_are_read_once_from_the_environment(tmp_path: Path) -> None:
    settings = read_settings(
        {
            "RUNFOLD_DATA": str(tmp_path),
            "RUNFOLD_SERVER": "nats://x:1",
            "RAY_TRAIN_B": "1",
            "RAY_TRAIN_A": "1",
            "USER": "ada",
        }
    )
    assert settings.data_dir == tmp_path
    assert settings.server == "nats://x:1"
    assert settings.peer_variables == ("RAY_TRAIN_A", "RAY_TRAIN_B")
    assert (settings.user, settings.namespace, settings.no_color) == ("ada", "runfold", False)


def test_a_data_directory_given_outweighs_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find().data_dir == tmp_path / "from-environment"
    assert find(tmp_path / "given").data_dir == tmp_path / "given"
    monkeypatch.setenv("RUNFOLD_SERVER", "example.com")
    assert find().named is not None
    assert find(tmp_path / "given").named is None


def test_a_server_given_outweighs_all_and_gets_a_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNFOLD_SERVER", "from-environment:1")
    named = find(server="example.com:4222").named
    assert named is not None
    assert (named.url, named.local) == ("nats://example.com:4222", False)


def test_a_context_gives_address_and_user(tmp_path: Path) -> None:
    context(tmp_path, "here", url="example.com:4222", user="me", password="a/b")
    named = find(context="here").named
    assert named is not None
    assert named.url == "nats://me:a%2Fb@example.com:4222"
    context(tmp_path, "token", url="nats://example.com", token="t@ken")
    named = find(context="token").named
    assert named is not None
    assert named.url == "nats://t%40ken@example.com"


def test_a_context_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    context(tmp_path, "creds", url="example.com", creds="file")
    context(tmp_path, "empty")
    for name, said in (("creds", "creds"), ("empty", "no url"), ("missing", "creds, empty")):
        with pytest.raises(UsageError, match=said):
            find(context=name)


def test_two_brokers_named_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="--context"):
        find(server="a", context="b")


def test_without_a_service_there_is_none_and_what_needs_one_says_how(tmp_path: Path) -> None:
    where = find(tmp_path)
    assert where.service() is None
    assert list(where.services()) == []
    with pytest.raises(UnreachableError, match="runfold up"):
        where.required_service()


def test_a_service_that_went_away_is_none(tmp_path: Path) -> None:
    document = {"url": "nats://client:x@127.0.0.1:1", "server": "nats://127.0.0.1:1"}
    (tmp_path / "connection.json").write_text(json.dumps(document), encoding="utf-8")
    assert answering(tmp_path) is None


def test_a_damaged_connection_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "connection.json").write_text("{", encoding="utf-8")
    with pytest.raises(UnreachableError, match="damaged"):
        answering(tmp_path)


def test_commands_that_are_told_ask_the_same_place() -> None:
    assert find("a folder").hint("replay", "r") == "runfold replay r --data 'a folder'"
    assert find(server="example.com:1").hint("logs", "r") == "runfold logs r --server example.com:1"
    assert "secret" not in find(server="nats://client:secret@example.com:1").hint("logs", "r")
    assert find().hint("replay", "r") == "runfold replay r"
