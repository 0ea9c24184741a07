"""The floors: the least that each figure can cost on this machine, measured the same minute."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec

from runfold.events.nats.api import Api, StreamConfig
from runfold.events.nats.broker import start_broker
from runfold.events.nats.connection import Connection
from runfold.events.nats.publish import Acked, publish_acked

SENDS_COUNT = 20_000
ANSWER_TIMEOUT_S = 10.0
FLOOR_STREAM = "BENCH_FLOOR"


async def prepare(admin: Connection) -> None:
    """Create the stream that the synced publishes go to."""
    api = Api(admin)
    if await api.stream_info(FLOOR_STREAM) is None:
        await api.create_stream(StreamConfig(name=FLOOR_STREAM, subjects=("bench.floor",), max_bytes=64 * 1024**2))


async def synced_publishes(admin: Connection, in_a_row: int) -> float:
    """How long so many synced publishes in a row take, in seconds."""
    began = time.perf_counter()
    for _ in range(in_a_row):
        answer = await publish_acked(admin, "bench.floor", b"x" * 600, timeout_s=ANSWER_TIMEOUT_S)
        if not isinstance(answer, Acked):
            raise RuntimeError(f"the broker refused: {answer}")
    return time.perf_counter() - began


def bare_fork() -> float:
    """From a fork until the child's code runs, in seconds."""
    reading, writing = os.pipe()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.write(writing, repr(time.monotonic()).encode())
        os._exit(0)
    entered = float(os.read(reading, 64))
    os.waitpid(pid, 0)
    os.close(reading)
    os.close(writing)
    return entered - began


def interpreter_and_broker() -> float:
    """An interpreter that does nothing and a broker that comes up, one after the other, in seconds."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-c", ""], check=True)
    with tempfile.TemporaryDirectory(prefix="runfold-bench-") as folder:
        broker = start_broker(Path(folder), die_with_parent=True)
        took = time.perf_counter() - began
        broker.stop()
    return took


def encode_and_send() -> list[int]:
    """Encode a report and write it to a socket that somebody reads, in nanoseconds each."""
    ours, theirs = socket.socketpair()

    def read() -> None:
        while theirs.recv(65_536):
            pass

    reader = threading.Thread(target=read)
    reader.start()
    took: list[int] = []
    for step in range(SENDS_COUNT):
        metrics = {"loss": 1.0 / (step + 1)}
        began = time.perf_counter_ns()
        ours.send(msgspec.msgpack.encode(metrics))
        took.append(time.perf_counter_ns() - began)
        if step % 100 == 0:
            time.sleep(0.001)
    ours.close()
    reader.join()
    theirs.close()
    return took
