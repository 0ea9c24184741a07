"""What the commands share that ask something of a run: the question, and how its answer is printed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from runfold.asking import ask
from runfold.cli.show import print_json, print_text

if TYPE_CHECKING:
    from runfold.cli.command import Format
    from runfold.events.requests import Request
    from runfold.locate import Where


def ask_and_show(where: Where, run: str, request: Request, output: Format) -> None:
    """Ask a run's controller, and print its answer."""
    answer = asyncio.run(ask(where, run, request))
    if output == "json":
        print_json({"run": run, "request": request.id, "answer": answer})
    else:
        print_text(f"{run}: {answer}")
