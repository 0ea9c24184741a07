"""Whether somebody lives in the directory of a one-shot run: who made it, or what was started there."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from runfold.once import is_left, occupy, taken_over

if TYPE_CHECKING:
    from pathlib import Path

UNTIL_TOLD = "import sys; sys.stdin.read()"


def test_a_directory_is_lived_in_for_as_long_as_its_descriptor_is_open(tmp_path: Path) -> None:
    folder = tmp_path / "once" / "digits"
    assert not is_left(folder), "there is none"
    descriptor = occupy(folder)
    assert not is_left(folder)
    with pytest.raises(BlockingIOError), taken_over(folder):
        pass
    with pytest.raises(FileExistsError):
        occupy(folder)
    os.close(descriptor)
    assert is_left(folder)
    with taken_over(folder):
        assert not is_left(folder)
    assert is_left(folder)


def test_whoever_was_given_the_descriptor_lives_there_too(tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    descriptor = occupy(folder)
    with subprocess.Popen([sys.executable, "-c", UNTIL_TOLD], stdin=subprocess.PIPE, pass_fds=[descriptor]) as child:
        os.close(descriptor)
        assert not is_left(folder)
        child.communicate()
    assert is_left(folder)


def test_a_file_is_no_directory_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "digits").touch()
    assert not is_left(tmp_path / "digits")
