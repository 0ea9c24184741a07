"""How soon all ranks are in user code again after one has raised. `python benchmarks/warmth.py` prints it alone.

The run has trained for a second, so that its runner has had the time to see what its ranks import. The last two rows
need torch; in an environment without it they say so.
"""

import asyncio
import importlib.util
import statistics
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import floors
import measures
import msgspec
from replaying import Row

from runfold.events.config import BackendConfig

RESTARTS_COUNT: Final = 7
RESTART_S_MAX: Final = 0.05
PLAIN: Final = Path(__file__).with_name("functions.py")
TORCH: Final = Path(__file__).with_name("functions_torch.py")
_WHAT: Final = "rank raises after a second → both ranks in user code again"


async def rows() -> AsyncIterator[Row]:
    """Measure everything, against a service of its own."""
    async with measures.bench() as started:
        least = statistics.median(floors.bare_fork() for _ in range(RESTARTS_COUNT))
        floor = (_ms(least), "a bare fork")
        found = await _restarts(started, PLAIN, "none")
        yield _row(_WHAT, found, floor)
        if importlib.util.find_spec("torch") is None:
            yield Row(f"{_WHAT}, with `import torch`", "–", "torch is not installed here", "–", "", True)
            return
        warm = await _restarts(started, TORCH, "none")
        yield _row(f"{_WHAT}, with `import torch`", warm, floor)
        group = await _restarts(started, TORCH, "torch")
        own = statistics.median(one.entered for one in group) - statistics.median(one.entered for one in warm)
        row = _row(f"{_WHAT}, with the backend torch", group, floor)
        # Without a limit: a process group takes the time that it takes.
        yield Row(row.what, "–", f"{row.measured}; of this the process group's own time {_ms(own)}", *floor, True)


async def _restarts(started: measures.Bench, file: Path, backend: str) -> list[measures.Restart]:
    return [
        await measures.restart(started, f"{file}:fail_later", BackendConfig(kind=backend))
        for _ in range(RESTARTS_COUNT)
    ]


def _row(what: str, found: list[measures.Restart], floor: tuple[str, str]) -> Row:
    whole = [one.whole for one in found]
    middle = statistics.median(whole)
    parts = ", ".join(
        f"{name} {_ms(statistics.median(values))}"
        for name, values in (
            ("told", [one.told for one in found]),
            ("decided", [one.decided for one in found]),
            ("ranks ended, others loaded", [one.loaded for one in found]),
            ("met", [one.entered for one in found]),
        )
    )
    measured = f"{_ms(middle)} [{_ms(min(whole))} .. {_ms(max(whole))}]: {parts}"
    return Row(what, f"{RESTART_S_MAX * 1000:g} ms", measured, *floor, middle <= RESTART_S_MAX)


def _ms(value_s: float) -> str:
    return f"{value_s * 1000:.1f} ms"


async def main() -> None:
    """Print each row as it is measured."""
    async for row in rows():
        print(msgspec.json.format(msgspec.json.encode(row)).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
