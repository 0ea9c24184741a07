"""docs/map.md names files that are there, and all that are."""

import re
from pathlib import Path

import pytest

from support.sources import ROOT

SECTION = re.compile(r"^## (?P<folder>[\w/]+)/$", re.MULTILINE)
NAME = re.compile(r"`(?P<name>[\w/]+)`")
LEFT_OUT = ("__init__", "__main__")
ON_THEIR_OWN = ("cli",)
"""Folders whose files are called by what they are."""


def sections() -> dict[str, set[str]]:
    """The names on the map, by folder."""
    text = (ROOT / "docs" / "map.md").read_text(encoding="utf-8")
    starts = list(SECTION.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    return {
        start["folder"]: {one["name"] for one in NAME.finditer(text, start.end(), end)}
        for start, end in zip(starts, ends, strict=True)
    }


def files(folder: str) -> set[str]:
    """The files of a folder, as the map names them; those of a folder with a section of its own are not among them."""
    root = ROOT / folder
    found = {path.relative_to(root).with_suffix("") for path in root.rglob("*.py")}
    apart = {Path(other).relative_to(folder) for other in sections() if other.startswith(f"{folder}/")}
    if folder == "src/runfold":
        apart |= {Path(link.name) for link in root.iterdir() if link.is_symlink()} | {
            Path(name) for name in ON_THEIR_OWN
        }
    return {
        str(path) for path in found if path.name not in LEFT_OUT and not any(path.is_relative_to(one) for one in apart)
    }


@pytest.mark.parametrize("folder", sections())
def test_what_is_named_is_there(folder: str) -> None:
    gone = [name for name in sorted(sections()[folder]) if not (ROOT / folder / f"{name}.py").is_file()]
    assert gone == [], f"docs/map.md names files of {folder}/ that are not there"


@pytest.mark.parametrize("folder", sections())
def test_what_is_there_is_named(folder: str) -> None:
    assert sorted(files(folder) - sections()[folder]) == [], "put it on docs/map.md"
