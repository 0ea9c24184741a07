"""The job as a script under torchrun: which job, where it notes what happens, whether it imports torch."""

import os
import sys
from pathlib import Path

import peer_jobs

if sys.argv[3] == "torch":
    import torch  # noqa: F401  # what is measured

peer_jobs.run(sys.argv[1], Path(sys.argv[2]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), None)
