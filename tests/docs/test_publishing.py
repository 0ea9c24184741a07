"""The README's job by the `nats` program: the lines as they are printed, with a program that publishes as that does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from support.commands import COMMAND_TIMEOUT_S, Commands
from support.sources import ROOT
from support.waiting import until_seen

PROGRAM = """\
#!{python}
import asyncio, sys
import nats
pub, server, url, subject, body = sys.argv[1:]
assert (pub, server) == ("pub", "--server"), sys.argv
async def publish():
    connection = await nats.connect(url)
    await connection.publish(subject, body.encode())
    await connection.flush()
    await connection.close()
asyncio.run(publish())
"""


def printed() -> str:
    """The block of the README that has the program's line."""
    blocks = (ROOT / "README.md").read_text(encoding="utf-8").split("```")
    return next(block for block in blocks if "nats pub" in block).partition("\n")[2]


def test_the_readmes_job_is_taken_as_it_is_printed(served: Commands) -> None:
    programs = served.folder / "programs"
    programs.mkdir()
    program = programs / "nats"
    program.write_text(PROGRAM.format(python=sys.executable), encoding="utf-8")
    program.chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    script = printed().replace("/path/of/the/code", str(ROOT))
    done = subprocess.run(
        ["sh", "-e", "-c", script],
        cwd=served.folder,
        env=served.environment(PATH=path),
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_TIMEOUT_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    until_seen(lambda: json.loads(served.ok("ls", "-o", "json").out), COMMAND_TIMEOUT_S)
    assert json.loads(served.ok("ls", "-o", "json").out)[0]["run"].startswith("job-")
