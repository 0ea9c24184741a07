"""Measures torchrun: a launcher, with one agent a node that starts all ranks again when one fails."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import peer_jobs
import psutil
from peer_common import HERE, PATIENCE_S, SETTLE_S, again, answer, arguments, folder, kill, measured, pid_of

PORT = 29477
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def command(job: str, where: Path, torch: bool, *options: str) -> list[str]:
    """The command line of a job."""
    script = [str(HERE / "peer_torchrun_job.py"), job, str(where), "torch" if torch else "-"]
    return [*TORCHRUN, "--max-restarts=3", *options, *script]


def start(job: str, where: Path, ranks: int, torch: bool) -> None:
    """Run a job to its end."""
    done = command(job, where, torch, "--standalone", f"--nproc-per-node={ranks}")
    subprocess.run(done, check=True, timeout=PATIENCE_S, capture_output=True)


def node_loss() -> None:
    """Kill one of three agents, of which two are enough, with its rank; the first holds the store at which all meet."""
    with folder() as where:
        elastic = ["--nnodes=2:3", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=peers"]
        words = command("train", where, False, *elastic, f"--rdzv-endpoint=127.0.0.1:{PORT}")
        agents = [_started(words)]
        time.sleep(SETTLE_S)
        agents += [_started(words) for _ in range(2)]
        try:
            peer_jobs.all_have(where, "entered", 1, 3, PATIENCE_S)
            time.sleep(SETTLE_S)
            for child in psutil.Process(agents[2].pid).children(recursive=True):
                child.kill()
            answer([again(where, kill(agents[2].pid))], "two of three agents go on; the third is not replaced")
        except TimeoutError:
            answer(
                [], f"the other agents notice nothing within {PATIENCE_S:g} s; a collective would fail, by its timeout"
            )
        finally:
            (where / "stop").touch()
            _end(agents)


def controller() -> None:
    """Kill the agent, which is all the control that there is."""
    with folder() as where:
        agent = _started(command("train", where, False, "--standalone", "--nproc-per-node=2"))
        try:
            pid_of(where, 0)
            moment = kill(agent.pid)
            time.sleep(2 * SETTLE_S)
            said = peer_jobs.after(where, 2, moment)
        finally:
            (where / "stop").touch()
            _end([agent])
        answer([], f"the agent killed: {said}; nobody watches them or starts them again, and its result is lost")


def _started(words: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _end(agents: list[subprocess.Popen[bytes]]) -> None:
    """Wait for those that end by themselves, and end the others."""
    for agent in agents:
        ending = threading.Timer(SETTLE_S * 2, agent.kill)
        ending.start()
        agent.wait()
        ending.cancel()


if __name__ == "__main__":
    measure, count = arguments()
    match measure:
        case "node":
            node_loss()
        case "controller":
            controller()
        case _:
            measured(start, measure, count)
