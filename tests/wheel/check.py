"""Build the sdist and the wheel, and try the wheel in a second environment, the source tree away.

Run by `make wheel-test`. Ends with code 0, or with 1 and what went wrong.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND_TIMEOUT_S = 600

TRAIN = """\
import runfold


def train(config):
    for step in range(3):
        runfold.report({"loss": 1.0 / (step + 1)})
"""


class Failed(Exception):
    """A step ended otherwise than it should."""


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run one command, show it, return what it printed."""
    print("+", *command, flush=True)
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise Failed(f"exit code {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def build(base: Path) -> Path:
    """The wheel, made from the sdist, made from a copy of the tree."""
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*", "build", "dist")
    shutil.copytree(ROOT, base / "tree", symlinks=True, ignore=ignore)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", base / "dist", base / "tree", cwd=base)
    shutil.rmtree(base / "tree")
    (wheel,) = (base / "dist").glob("*.whl")
    return wheel


def environment(base: Path) -> dict[str, str]:
    """This environment without anything that could lead back to the source tree or to a running service."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV") and not name.startswith("RUNFOLD_")
    }
    return {**kept, "PYTHONSAFEPATH": "1", "RUNFOLD_DATA": str(base / "data")}


def install(base: Path, wheel: Path) -> Path:
    """A second virtual environment holding the wheel; the folder of its commands."""
    run(sys.executable, "-m", "venv", base / "venv", cwd=base)
    commands = base / "venv" / "bin"
    run(
        commands / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "-c", ROOT / "constraints.txt", wheel,
        cwd=base, env=environment(base),
    )  # fmt: skip
    return commands


def expect(condition: bool, message: str) -> None:
    """Fail with the message unless the condition holds."""
    if not condition:
        raise Failed(message)


def smoke(base: Path, commands: Path) -> None:
    """What a user does first: help, schema, a run, its replay."""
    here = base / "empty"
    here.mkdir()
    env = environment(base)
    runfold = commands / "runfold"

    origin = run(commands / "python", "-c", "import runfold; print(runfold.__file__)", cwd=here, env=env)
    expect(origin.startswith(str(base)), f"runfold was imported from {origin}")

    expect("replay" in run(runfold, "--help", cwd=here, env=env), "--help names no replay command")
    schema = json.loads(run(runfold, "schema", "job", cwd=here, env=env))
    expect("entrypoint" in json.dumps(schema), "the job's schema names no entrypoint")

    (here / "tiny.py").write_text(TRAIN, encoding="utf-8")
    run(runfold, "run", "tiny.py:train", "--workers", "2", cwd=here, env=env)
    (archived,) = json.loads(run(runfold, "ls", "-o", "json", cwd=here, env=env))
    expect(archived["state"] == "finished", f"the run ended as {archived}")
    story = run(runfold, "replay", archived["run"], cwd=here, env=env)
    expect("finished" in story.lower(), f"the replay tells of no end:\n{story}")
    run(runfold, "audit", archived["run"], cwd=here, env=env)
    run(runfold, "verify", archived["run"], cwd=here, env=env)


def main() -> int:
    """Build, install, try."""
    with tempfile.TemporaryDirectory(prefix="runfold-wheel-") as folder:
        base = Path(folder)
        try:
            smoke(base, install(base, build(base)))
        except (Failed, subprocess.TimeoutExpired) as error:
            print(f"wheel: FAILED: {error}", file=sys.stderr)
            return 1
    print("wheel: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
