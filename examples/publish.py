"""Start a run from Python with nats-py alone: a job is one JSON message on one subject.

Needs a service (`runfold up`), RUNFOLD_DATA naming its data directory, and this repository as the working directory.
"""

import asyncio
import json
import os
from pathlib import Path

import nats

JOB = {"entrypoint": "examples/digits.py:train", "working_dir": str(Path.cwd()), "scaling": {"num_workers": 2}}


async def main() -> None:
    """Publish the job; the acknowledgement is the receipt, its sequence the number of the run."""
    connection = json.loads((Path(os.environ["RUNFOLD_DATA"]) / "connection.json").read_text())
    broker = await nats.connect(connection["url"])
    receipt = await broker.jetstream().publish("runfold.jobs.submit", json.dumps(JOB).encode())
    await broker.close()
    print(f"job-{receipt.seq}")


asyncio.run(main())
