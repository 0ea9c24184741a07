"""An elastic run of real processes through two recorded spot fleets, squeezed in time and scaled to eight places."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.sim.traces import FOLDER

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the traces stand beside the repository (../shared/traces), and are not here"
)

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "spot_fleets.py"
WITHIN_S = 30.0
BACKSTOP_S = 240.0
CHANGES_COUNT = 100
RESUMED_COUNT = 5
PLACES_COUNT = 8


@pytest.mark.timeout(BACKSTOP_S + 30.0)
def test_it_follows_both_fleets_and_loses_nothing_that_was_committed() -> None:
    words = ["--traces", str(FOLDER), "--within", str(WITHIN_S), "--places", str(PLACES_COUNT), "-o", "json"]
    command = [sys.executable, str(SCRIPT), *words]
    done = subprocess.run(command, check=False, capture_output=True, timeout=BACKSTOP_S, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"goodput {found['goodput']:.1%} of {found['seconds']} s, {found['attempts']} attempts")
    assert found["changes"] >= CHANGES_COUNT
    assert (found["finished"], found["faults"]) == (True, [])
    assert found["resumed"] >= RESUMED_COUNT
    assert 1 <= min(found["sizes"]) <= max(found["sizes"]) <= PLACES_COUNT
    assert len(found["sizes"]) > 1
