"""`make bench`: measure, and print each figure with the least that it could be on this machine beside it."""

import asyncio
import os
import statistics
import sys
from dataclasses import dataclass

import checkpoints
import floors
import measures
import msgspec

from runfold.events.nats.names import Role

RUNS_COUNT = 7


@dataclass(frozen=True)
class Figure:
    """One line of the table; figures and floor in the same unit."""

    what: str
    limit: str
    measured: str
    floor: str
    what_floor: str
    kept: bool


def at(values: list[float], share: float) -> float:
    """The value that this share of all does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def seconds(value: float) -> str:
    """A duration as people read it."""
    return f"{value:.3f} s" if value >= 0.1 else f"{value * 1000:.1f} ms"


async def starts(started: measures.Bench) -> Figure:
    """From a job's receipt to user code."""
    values = [await measures.submit_to_user_code(started) for _ in range(RUNS_COUNT)]
    admin = await measures.connection(started, Role.ADMIN)
    await floors.prepare(admin)
    publishes = [await floors.synced_publishes(admin, 5) for _ in range(RUNS_COUNT)]
    least = statistics.median(publishes) + floors.bare_fork()
    await admin.close()
    return Figure(
        "job acknowledged → both ranks in user code, `up` running", "0.3 s", spread(values), seconds(least),
        "5 synced publishes in a row and a fork", statistics.median(values) <= 0.3,
    )  # fmt: skip


def cold() -> Figure:
    """`runfold run`, cold."""
    values = [measures.cold_run() for _ in range(RUNS_COUNT)]
    least = statistics.median(floors.interpreter_and_broker() for _ in range(RUNS_COUNT))
    return Figure(
        "`runfold run` of an empty function, cold, broker included", "1.2 s", spread(values), seconds(least),
        "an interpreter and a broker that come up", statistics.median(values) <= 1.2,
    )  # fmt: skip


async def restarts(started: measures.Bench) -> tuple[Figure, str]:
    """From an exception to user code again, and where the time goes."""
    found = [await measures.restart(started) for _ in range(RUNS_COUNT)]
    whole = [one.whole for one in found]
    least = statistics.median(floors.bare_fork() for _ in range(RUNS_COUNT))
    parts = {
        "exception → told to the runner": statistics.median(one.told for one in found),
        "→ decision durable in the log": statistics.median(one.decided for one in found),
        "→ new ranks forked, entry point loaded": statistics.median(one.loaded for one in found),
        "→ all ranks met, user code entered": statistics.median(one.entered for one in found),
    }
    where = "\n".join(f"    {name:<42} {seconds(value)}" for name, value in parts.items())
    figure = Figure(
        "rank raises → both ranks in user code again", "0.1 s", spread(whole), seconds(least), "a bare fork",
        statistics.median(whole) <= 0.1,
    )  # fmt: skip
    return figure, where


async def reports(started: measures.Bench) -> Figure:
    """What `report` costs its caller."""
    took = [float(value) for value in await measures.report_times(started)]
    least = [float(value) for value in floors.encode_and_send()]
    p50, p99 = at(took, 0.5) / 1000, at(took, 0.99) / 1000
    return Figure(
        '`report({"loss": x})`', "10 µs p50, 100 µs p99", f"{p50:.1f} µs p50, {p99:.1f} µs p99",
        f"{at(least, 0.5) / 1000:.1f} µs p50, {at(least, 0.99) / 1000:.1f} µs p99", "encode and write to a socket",
        p50 <= 10 and p99 <= 100,
    )  # fmt: skip


async def decisions(started: measures.Bench) -> Figure:
    """From a fact to its durable entry."""
    worker = await measures.connection(started, Role.WORKER)
    admin = await measures.connection(started, Role.ADMIN)
    # The floor is measured in turn with the figure: both see the same machine.
    took, least = await measures.fact_to_decision(started, worker, lambda: floors.synced_publishes(admin, 2))
    await worker.close()
    await admin.close()
    p50, p99, floor50, floor99 = at(took, 0.5), at(took, 0.99), at(least, 0.5), at(least, 0.99)
    return Figure(
        "fact published → decision durable", "1.5 × the floor", f"{seconds(p50)} p50, {seconds(p99)} p99",
        f"{seconds(floor50)} p50, {seconds(floor99)} p99", "two synced publishes in a row", p50 <= 1.5 * floor50,
    )  # fmt: skip


async def saves(started: measures.Bench) -> list[Figure]:
    """What checkpoints cost: in the caller, until they count, and many of them."""
    least = checkpoints.median(checkpoints.copies())
    floor = "read, digest and write 1 MB to the disk"
    figures: list[Figure] = []
    for asynchronous, how in ((False, "synchronous"), (True, "asynchronous")):
        took = (await checkpoints.save(started, asynchronous=asynchronous)).took
        measured = f"{seconds(at(took, 0.5))} p50, {seconds(at(took, 0.99))} p99"
        figures.append(Figure(f"`report` with a checkpoint of 1 MB, {how}", "–", measured, seconds(least), floor, True))
    admin = await measures.connection(started, Role.ADMIN)
    await floors.prepare(admin)
    latencies = checkpoints.commit_latencies(await checkpoints.save(started, workers=2, size_bytes=1000))
    publishes = [await floors.synced_publishes(admin, 5) for _ in range(RUNS_COUNT)]
    await admin.close()
    measured = f"{seconds(at(latencies, 0.5))} p50, {seconds(at(latencies, 0.99))} p99"
    what, floor = "last rank's report → checkpoint committed", "5 synced publishes in a row"
    figures.append(Figure(what, "–", measured, seconds(statistics.median(publishes)), floor, True))
    count, kept = checkpoints.MANY_COUNT, checkpoints.KEPT_COUNT
    many = await checkpoints.save(started, count=count, size_bytes=1000, keep=kept)
    left = len(many.state.checkpoints.kept)
    state_bytes = len(msgspec.json.encode(msgspec.structs.replace(many.state, return_value=None)))
    return [
        *figures,
        Figure(
            f"{count} checkpoints of 1 kB, the last {kept} kept", "–",
            f"{seconds(many.whole_s)}, {seconds(many.whole_s / count)} each; {left} left, "
            f"the state has {state_bytes} bytes",
            seconds(count * least), f"as many times: {floor}", left == kept,
        ),
    ]  # fmt: skip


def spread(values: list[float]) -> str:
    """Median and range of a few runs."""
    return f"{seconds(statistics.median(values))} [{seconds(min(values))} .. {seconds(max(values))}]"


async def main() -> int:
    """Measure everything and print the table; 1 when a figure is over its limit."""
    import bearing
    import replaying
    import warmth

    rows = [*await replaying.rows(), *await bearing.rows(), *[row async for row in warmth.rows()]]
    figures = [cold(), *(Figure(**vars(row)) for row in rows)]
    async with measures.bench() as started:
        figures.append(await starts(started))
        restart, where = await restarts(started)
        figures += [restart, await reports(started), await decisions(started), *await saves(started)]
    print(f"{os.cpu_count()} CPUs; median [range] of {RUNS_COUNT} runs where no percentile is named\n")
    for figure in figures:
        mark = "ok  " if figure.kept else "OVER"
        print(f"{mark} {figure.what}\n       {figure.measured}   (at most {figure.limit})")
        print(f"       floor {figure.floor}: {figure.what_floor}")
        if figure is restart:
            print(f"    where the time goes:\n{where}")
    return int(not all(figure.kept for figure in figures))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
