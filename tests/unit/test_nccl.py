"""What NCCL's RAS says, read from reports as its documentation records them; and a little server that answers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from runfold.workers.nccl import REPORT_MAX_BYTES, ask_ras, read_report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HEALTHY = """\
NCCL version 2.24.3 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         8         4         1         4        32   RUNNING      OK
"""
BEHIND = """\
Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  MISMATCH

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 2 -- GPU 2 managed by process 483074 on node 172.16.64.210
  Rank 3 -- GPU 3 managed by process 483075 on node 172.16.64.210
  Rank 4 -- GPU 4 managed by process 483076 on node 172.16.64.210
  Rank 5 -- GPU 5 managed by process 483077 on node 172.16.64.210
  Rank 7 -- GPU 7 managed by process 483079 on node 172.16.64.210
"""
ONE_BEHIND = """\
#0-0 (78db921d1c117b4a) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 64
  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1650386 on node node1
  Communicator ranks have different Broadcast operation counts
  7 ranks have launched up to operation 2
  Rank 7 has not launched any operations -- GPU 3 managed by process 1650386 on node node1
"""
LEAVING = """\
#0-0 (9e17999afaa87dbb) MISMATCH
  Communicator ranks have different status
  26 ranks have status UNKNOWN
  4 ranks have status RUNNING
  Rank 0 -- GPU 0 managed by process 507285 on node 172.16.64.210
  Rank 8 -- GPU 0 managed by process 1598388 on node 172.16.64.212
  Rank 16 -- GPU 0 managed by process 3500071 on node 172.16.64.213
  Rank 24 -- GPU 0 managed by process 2405067 on node 172.16.64.222
  2 ranks have status FINALIZE
  Rank 4 -- GPU 4 managed by process 507289 on node 172.16.64.210
  Rank 20 -- GPU 4 managed by process 3500075 on node 172.16.64.213
"""
DEAD = """\
Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEALTHY, "NCCL finds its communicators as they should be"),
        ("", "NCCL finds its communicators as they should be"),
        (
            BEHIND,
            (
                "NCCL: communicator #0-0 (27a079b828ff1a75) MISMATCH, different collective operation counts: "
                "26 ranks at operation 6650, ranks 0, 2, 3, 4 and 2 more at operation 6649"
            ),
        ),
        (
            ONE_BEHIND,
            (
                "NCCL: communicator #0-0 (78db921d1c117b4a) MISMATCH, different AllReduce operation counts: 7 ranks at "
                "operation 64, rank 7 at operation 60; communicator #0-0 (78db921d1c117b4a) MISMATCH, "
                "different Broadcast operation counts: 7 ranks at operation 2, rank 7 with none launched"
            ),
        ),
        (
            LEAVING,
            (
                "NCCL: communicator #0-0 (9e17999afaa87dbb) MISMATCH, different status: 26 ranks UNKNOWN, "
                "ranks 0, 8, 16, 24 RUNNING, ranks 4, 20 FINALIZE"
            ),
        ),
        (
            DEAD,
            (
                "NCCL: process 3487984 on node 172.16.64.213 (GPU 5) DEAD; communicator #0-0 (cf264af53edbe986) "
                "INCOMPLETE, nothing is heard of rank 21"
            ),
        ),
    ],
    ids=["healthy", "empty", "behind", "one behind", "leaving", "dead"],
)
def test_a_report_in_one_line(text: str, words: str) -> None:
    assert read_report(text).words == words


def test_many_communicators_are_a_count() -> None:
    report = read_report("\n".join(BEHIND.replace("#0-0", f"#0-{k}") for k in range(9)))
    assert len(report.communicators) == 9
    assert report.words.endswith("and 5 more")
    assert len(read_report(BEHIND * 500).communicators) == 64


def test_what_is_no_report_is_no_error() -> None:
    for text in (
        "Rank 3 -- GPU 0",
        "#0-0 (zz) MISMATCH\n  9 ranks have x",
        "\x00\xff",
        "#0-0 (a) MISMATCH\n  Rank 1 -- GPU 2",
    ):
        assert read_report(text).communicators == ()


@asynccontextmanager
async def answering(*pieces: bytes, hangs: bool = False) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that takes a line, and answers with these."""
    heard: list[bytes] = []
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readline())
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if hangs:
            await over.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", heard
        over.set()


async def test_who_answers_is_asked_for_all_it_knows() -> None:
    data = BEHIND.encode()
    async with answering(data[:100], data[100:]) as (address, heard):
        report = await ask_ras(address)
    assert heard == [b"verbose status\n"]
    assert report is not None
    assert (report.text, len(report.communicators)) == (BEHIND, 1)


async def test_who_does_not_answer_says_nothing() -> None:
    async with answering(BEHIND.encode(), hangs=True) as (address, _):
        assert await ask_ras(address, timeout_s=0.2) is None
    assert await ask_ras(address) is None, "nobody listens there any more"
    for address in ("nonsense", "localhost:", "localhost:99999999", ""):
        assert await ask_ras(address) is None
    async with answering() as (address, _):
        assert await ask_ras(address) is None


async def test_no_more_is_read_than_a_limit() -> None:
    async with answering(b"x" * (2 * REPORT_MAX_BYTES)) as (address, _):
        report = await ask_ras(address)
    assert report is not None
    assert len(report.text) == REPORT_MAX_BYTES
