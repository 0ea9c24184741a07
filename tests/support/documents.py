"""The Markdown documents of the repository, cut into what can be checked."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.sources import ROOT

FENCE = re.compile(r"^```(?P<language>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """One fenced block: where it begins, what it says it is, what it holds."""

    place: str
    language: str
    body: str


def documents() -> list[Path]:
    """Every Markdown file at the top, in docs/, deploy/, examples/ and benchmarks/."""
    folders = ("docs", "deploy", "examples", "benchmarks")
    return sorted(ROOT.glob("*.md")) + sorted(path for name in folders for path in (ROOT / name).rglob("*.md"))


def blocks(*languages: str) -> list[Block]:
    """The fenced blocks in one of these languages; all of them when none is named."""
    found: list[Block] = []
    for path in documents():
        text = path.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            language = match["language"].strip()
            if not languages or language in languages:
                found.append(Block(f"{path.relative_to(ROOT)}:{line}", language, match["body"]))
    return found


def links() -> Iterator[tuple[Path, str]]:
    """Every relative link: the file it stands in, and its target without the anchor."""
    for path in documents():
        for match in LINK.finditer(FENCE.sub("", path.read_text(encoding="utf-8"))):
            target = match["target"].partition("#")[0]
            if target and "://" not in target and not target.startswith("mailto:"):
                yield path, target


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a shell block as words, comments and prompts gone."""
    for raw in block.body.replace("\\\n", " ").splitlines():
        line = raw.removeprefix("$ ").strip()
        if line and not line.startswith("#"):
            try:
                yield shlex.split(line, comments=True)
            except ValueError:
                # A quoted text that runs over several lines, such as a script given to python.
                continue
