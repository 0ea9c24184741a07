"""What the documents say can be typed: blocks parse, commands and targets exist, links resolve."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from functools import cache

import pytest

from support.documents import Block, blocks, commands, links
from support.sources import ROOT

SHELL = ("sh", "bash", "console")
# `text` is the mark of a block that nobody can run: output, a drawing, a sketch.
LANGUAGES = (*SHELL, "python", "json", "toml", "yaml", "ini", "text")
HELP_TIMEOUT_S = 60


def by_place(found: list[Block]) -> list[object]:
    return [pytest.param(block, id=block.place) for block in found]


def test_every_block_says_what_it_is() -> None:
    unknown = [f"{block.place}: {block.language!r}" for block in blocks() if block.language not in LANGUAGES]
    assert not unknown, f"mark each block with one of {LANGUAGES}:\n" + "\n".join(unknown)


@pytest.mark.parametrize("block", by_place(blocks("python")))
def test_python_blocks_parse_and_use_names_that_exist(block: Block) -> None:
    import runfold

    tree = ast.parse(block.body)
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "runfold"
    }
    missing = sorted(name for name in used if not hasattr(runfold, name))
    assert not missing, f"runfold offers no {', '.join(missing)}"


@pytest.mark.parametrize("block", by_place(blocks("json", "toml")))
def test_data_blocks_parse(block: Block) -> None:
    if block.language == "toml":
        tomllib.loads(block.body)
    else:
        json.loads(block.body)


def typed(program: str) -> set[tuple[str, ...]]:
    """The arguments given to a program in any shell block."""
    return {tuple(words[1:]) for block in blocks(*SHELL) for words in commands(block) if words and words[0] == program}


@cache
def help_of(command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "runfold", command, "--help"],
        capture_output=True,
        text=True,
        check=False,
        timeout=HELP_TIMEOUT_S,
    )
    assert done.returncode == 0, f"`runfold {command} --help`: {done.stderr}"
    return done.stdout


def test_the_commands_shown_exist_with_their_options() -> None:
    missing: list[str] = []
    for words in sorted(typed("runfold")):
        if not words or words[0].startswith("-"):
            continue
        text = help_of(words[0])
        options = {word.partition("=")[0] for word in words[1:] if word.startswith("--") and word != "--"}
        missing += [f"runfold {words[0]} has no {option}" for option in sorted(options) if option not in text]
    assert not missing, "\n".join(missing)


def test_the_make_targets_shown_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    shown = {word for words in typed("make") for word in words if "=" not in word}
    assert shown <= targets, f"no such target: {sorted(shown - targets)}"


def test_links_resolve() -> None:
    broken = [f"{path.relative_to(ROOT)}: {target}" for path, target in links() if not (path.parent / target).exists()]
    assert not broken, "\n".join(broken)
