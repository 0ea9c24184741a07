"""The catalogue produced anew, with real processes: what is told today is what the archives tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.catalogue import CASES, Case, check
from support.commands import Commands
from support.producing import produce_all

if TYPE_CHECKING:
    from collections.abc import Iterator

# All are produced by the first test, most of them at the same time.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def produced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """A folder with the archives of everything that this machine allows to be produced."""
    commands = Commands(tmp_path_factory.mktemp("produced"))
    try:
        produce_all(commands)
        yield commands
    finally:
        commands.end()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_failure_produced_anew_is_told_as_its_archive_tells_it(case: Case, produced: Commands) -> None:
    archive = produced.data / "archive" / case.name
    if not archive.exists():
        pytest.skip("mounting a small file system is not allowed here")
    check(case, archive)
