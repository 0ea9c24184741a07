"""What `make demo` shows: a training run on two ranks, one in which a rank fails once, and that one's replay."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ["--data", sys.argv[1]] if len(sys.argv) > 1 else []
"""A data directory of the demo's own, seen from the repository, so that the user's own shows nothing of it."""
RUNFOLD = Path(sys.executable).with_name("runfold")
TRAIN = ["run", "examples/digits.py:train", "--workers", "2"]
FAIL_ONCE = ["--set", "failure.max_failures=1", "--set", "config.fail_rank=1", "--set", "config.fail_epoch=4"]


def say(title: str) -> None:
    """Print a heading."""
    print(f"\n\033[1m{title}\033[0m" if sys.stdout.isatty() else f"\n{title}", flush=True)


def runfold(*arguments: str) -> None:
    """Show a command, and run it where the examples can be found."""
    words = [*arguments, *DATA]
    print(f"$ runfold {shlex.join(words)}\n", flush=True)
    subprocess.run([RUNFOLD, *words], cwd=ROOT, check=True)


def newest_run() -> str:
    """Return the id of the run that was started last."""
    listed = subprocess.run([RUNFOLD, "ls", "-o", "json", *DATA], cwd=ROOT, check=True, capture_output=True)
    return str(json.loads(listed.stdout)[0]["run"])


def main() -> int:
    """Run the three commands, one after the other."""
    say("1. A real training run: handwritten digits, data parallel on two ranks")
    runfold(*TRAIN)
    say("2. The same, but rank 1 raises in its fifth epoch; one failure is allowed, so the group starts again")
    runfold(*TRAIN, *FAIL_ONCE)
    say("3. What happened there, from the log alone: the broker of that run is gone")
    runfold("replay", newest_run())
    program = RUNFOLD.relative_to(ROOT) if RUNFOLD.is_relative_to(ROOT) else RUNFOLD
    listing = shlex.join([str(program), "ls", *DATA])
    say(f"Next: `{listing}` lists both; `{program} up` starts a service that runs jobs side by side")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
