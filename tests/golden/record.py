"""Record the golden logs anew: the demo's two runs, as exported files.

    .venv/bin/python tests/golden/record.py [FOLDER]

They are recorded from the repository's root with a relative entry point, working directory `.` and node `local`, so
that nothing in them tells of the machine. A golden log is replaced only on purpose: that old logs stay readable is
what they are for.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from runfold.replay.export import export_lines
from runfold.replay.source import load

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ("run", "examples/digits.py:train", "--workers", "2", "--set", "working_dir=.", "--set", "requested_by=demo")
RUNS = {
    "golden-digits": (),
    "golden-digits-retry": (
        *("--set", "failure.max_failures=1"),
        *("--set", "config.fail_rank=1"),
        *("--set", "config.fail_epoch=4"),
    ),
}
RUN_TIMEOUT_S = 300


def record(run: str, settings: tuple[str, ...], folder: Path) -> Path:
    """Train once, and keep the log of it."""
    runfold = Path(sys.executable).with_name("runfold")
    with tempfile.TemporaryDirectory(prefix="runfold-golden-") as data:
        command = [str(runfold), *TRAIN, *settings, "--set", f"id={run}", "--data", data]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNFOLD_")}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=RUN_TIMEOUT_S)
        path = folder / f"{run}.jsonl"
        path.write_bytes(b"".join(export_lines(load(run, data_dir=data))))
    return path


def main() -> int:
    """Record every run into the folder given, or into this file's own."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for run, settings in RUNS.items():
        print(record(run, settings, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
