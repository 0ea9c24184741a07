"""Training functions that tests write to a file of the user's."""

TRAINING = """\
import os, signal, sys, time
import runfold


def rank():
    return runfold.get_context().get_world_rank()


def ok(config):
    for step in range(config.get("steps", 3)):
        runfold.report({"step": step, "loss": 1 / (step + 1), "rank": rank()})
    print("rank", rank(), "has printed this")
    return {"rank": rank(), "world_size": runfold.get_context().get_world_size()}


def wait():
    while True:
        runfold.report({"waiting": True})
        time.sleep(0.05)


def boom(config):
    runfold.report({"step": 0})
    runfold.barrier()
    if rank() == 1 and runfold.get_context().get_attempt() <= config.get("times", 1):
        raise RuntimeError("the user's own error")
    runfold.barrier()


def collect():
    runfold.barrier()
    everyone = runfold.all_gather(rank())
    first = runfold.broadcast_from_rank_zero({"from": rank()})
    return {"everyone": everyone, "first": first}


def prints_much():
    line = "x" * 99
    for _ in range(1_000_000):
        print(line)


def exits_zero():
    sys.exit(0)


def exits_at_once():
    os._exit(3)


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("this cannot be pickled")


def raises_unpicklable():
    raise Unpicklable("still told")


def raises_much():
    raise ValueError("y" * 5_000_000)


not_a_function = 3
"""
