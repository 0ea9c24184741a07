"""The settings of a process, and what of its environment others get."""

from __future__ import annotations

import os

import pytest

from runfold import config
from runfold.config import SECRET_VARIABLES, child_environment
from runfold.workers.config import forget_secrets
from support.sources import ROOT


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment in which everything that may be secret is set."""
    found = dict.fromkeys(SECRET_VARIABLES, "squeamish ossifrage")
    for name, value in {**found, "HF_TOKEN": "the user's own"}.items():
        monkeypatch.setenv(name, value)
    return found


def test_processes_of_our_own_do_not_inherit_what_may_be_secret(secrets: dict[str, str]) -> None:
    inherited = child_environment()
    assert not secrets.keys() & inherited.keys()
    assert (inherited["HF_TOKEN"], inherited["PYTHONSAFEPATH"]) == ("the user's own", "1")


def test_what_may_be_secret_is_forgotten_before_ranks_inherit_it(secrets: dict[str, str]) -> None:
    forget_secrets()
    assert not secrets.keys() & os.environ.keys()
    assert os.environ["HF_TOKEN"] == "the user's own"


def test_every_variable_stands_in_the_documents() -> None:
    names = [value for name, value in vars(config).items() if name.endswith("_VARIABLE")]
    told = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    assert len(names) >= 7
    assert [name for name in names if f"`{name}`" not in told] == []
