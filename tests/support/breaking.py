"""What the catalogue of failures trains, written out as files of a user's: every way to fail, each a function."""

BROKEN = '''\
import ctypes
import itertools
import math
import os
import resource
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path

import psutil

import runfold
from runfold.workers import files

_PORT = 19_911  # none that a connection is given, nor a broker


def rank():
    return runfold.get_context().get_world_rank()


def save(step, size_bytes=100, **how):
    with tempfile.TemporaryDirectory(dir=".") as folder:
        Path(folder, f"state-{rank()}").write_bytes(bytes(size_bytes))
        runfold.report({"step": step}, checkpoint=runfold.Checkpoint.from_directory(folder), **how)


def at_work(config):
    """Say which process this is, and report until somebody says that it is enough."""
    told = Path(f"{config['case']}-{rank()}")
    told.with_suffix(".new").write_text(str(os.getpid()))
    told.with_suffix(".new").rename(told)
    step = 0
    while not Path(f"{config['case']}-enough").exists():
        runfold.report({"step": step})
        step += 1
        time.sleep(0.05)


def raises():
    runfold.report({"step": 0})
    runfold.barrier()
    if rank() == 3:
        raise ValueError("batch 17 has labels outside [0, 10)")
    runfold.barrier()


def segfaults():
    runfold.barrier()
    if rank() == 1:
        ctypes.CDLL(None).memset(0, 0, 1)
    runfold.barrier()


def needs_memory():
    runfold.barrier()
    if rank() == 1:
        limit = 2 * 1024**3
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        bytearray(4 * 1024**3)
    runfold.barrier()


def deadlocks():
    runfold.report({"step": 0})
    lock = threading.Lock()
    with lock:
        if rank() == 1:
            lock.acquire()
        runfold.barrier()


def spins():
    runfold.report({"step": 0})
    if rank() == 1:
        sum(itertools.repeat(0))
    runfold.barrier()


def reports_less():
    for step in range(2 if rank() == 1 else 3):
        save(step)


def saves():
    for step in range(3):
        save(step, size_bytes=100_000)


def saves_slowly(config):
    if rank() == 1:
        put = files._LocalFiles.put

        def slow_put(self, *arguments, **options):
            while not Path(f"{config['case']}-enough").exists():
                time.sleep(0.05)
            return put(self, *arguments, **options)

        files._LocalFiles.put = slow_put
    save(0)


def resumes():
    checkpoint = runfold.get_checkpoint()
    if checkpoint is None:
        save(0)
    else:
        checkpoint.to_directory("restored")


def validates():
    save(0, validation=True)


def crashes(checkpoint):
    ctypes.string_at(0)


def meets():
    runfold.barrier()
    with socket.socket() as server:
        if rank() == 0:
            server.bind(("127.0.0.1", _PORT))
        runfold.barrier()
        if rank() == 1:
            server.bind(("127.0.0.1", _PORT))
        runfold.barrier()


def diverges():
    for step in range(5):
        loss = float("nan") if rank() == 0 and step == 3 else 1 / 2**step
        if math.isnan(loss):
            raise FloatingPointError(f"loss is nan at step {step}")
        runfold.report({"step": step, "loss": loss})
        runfold.barrier()


def breaks_a_node():
    """Twice the node of rank 1 is lost."""
    runfold.barrier()
    if runfold.get_context().get_attempt() <= 2:
        if rank() == 1:
            next(one for one in psutil.Process().parents() if one.name() == "runfold-runner").kill()
        signal.pause()


def loses_its_peer(config):
    """Ranks with a connection of their own: the end of rank 1 is an error of rank 0."""
    runfold.report({"step": 0})
    with socket.socket(socket.AF_UNIX) as own:
        if rank() == 0:
            own.bind("ring.socket")
            own.listen()
        runfold.barrier()
        if rank() == 1:
            own.connect("ring.socket")
            at_work(config)
            raise RuntimeError("the data loader's worker 3 died")
        other, _ = own.accept()
        at_work(config)
        with other:
            if not other.recv(1):
                time.sleep(0.5)  # as libraries do that try again before they give up
                raise ConnectionError("connection closed by rank 1")


def once_more(config):
    if runfold.get_context().get_attempt() == 1:
        at_work(config)


def misses_a_setting(config):
    return config["learning_rate"]
'''

IMPORTS = """\
import os
import sys

sys.path.insert(0, f"node-{os.environ['RUNFOLD_NODE_RANK']}")

import driver_of_this_node


def train():
    return driver_of_this_node.VERSION
"""
