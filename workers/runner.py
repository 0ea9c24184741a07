"""The runner: one process a run on each node. It holds the broker's link, speaks for its ranks, owns their processes.

It is forked from the supervisor's zygote, forks its rank spawner before anything else, and ends when its
assignment or its supervisor says so, or when the supervisor is gone and no heir comes. Nothing it started outlives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
import time
from collections.abc import Sequence
from typing import Final

from runfold.events.assignment import Assignment
from runfold.events.facts import PreemptionNoticed, RunnerReady
from runfold.events.nats.blobs import Blobs
from runfold.events.nats.connection import Connection, connect
from runfold.events.nats.errors import BrokerError, BrokerUnreachable
from runfold.events.nats.names import Names, Role
from runfold.events.tasks import STACKS
from runfold.workers import child, processes
from runfold.workers.chores import ON_LEAVING_MAX_S, Chores, StorageDoer
from runfold.workers.config import forget_secrets, values_of
from runfold.workers.devices import VISIBLE, gpus_by_slot
from runfold.workers.errors import LinkError, RunfoldError
from runfold.workers.facts import Facts
from runfold.workers.follow import follow_assignments
from runfold.workers.group import RankGroup
from runfold.workers.hand import Hand
from runfold.workers.lighthouse import Lighthouse
from runfold.workers.logs import log_to_stderr
from runfold.workers.lookout import Lookout
from runfold.workers.pipe import EXIT_CANNOT, EXIT_TAKEN, RunnerSpec, StopNow, SupervisorPipe
from runfold.workers.places import PlaceTakenError
from runfold.workers.plan import EndRank, Leave, Ordered, Plan, StartRank, may_have_tasks, plan
from runfold.workers.pulse import BEAT_EVERY_MIN_S, BEAT_EVERY_S, beat
from runfold.workers.spawner import Spawner
from runfold.workers.spool import about
from runfold.workers.storages import Storages
from runfold.workers.ties import Ties, tie
from runfold.workers.tpus import POD_HOST, POD_NAME, pod_said

EXIT_DONE: Final = 0
CONNECT_TIMEOUT_S: Final = 2.0
CONNECT_RETRY_S: Final = 0.5
LEAVE_TIMEOUT_S: Final = 5.0
"""How long the last output and the last facts may take to be kept before the runner ends anyway."""
REPORT_FLUSH_S: Final = 0.5
_LOG: Final = logging.getLogger("runfold.workers")


class Runner:
    """One run on one node, from the spec to the end."""

    def __init__(self, spec: RunnerSpec, spawner: Spawner, connection: Connection, ties: Ties) -> None:
        self._spec = spec
        self._spawner = spawner
        self._connection = connection
        self._wake = asyncio.Event()
        self._assignment: Assignment | None = None
        self._ties = ties
        self.facts = Facts(
            connection,
            run=spec.run,
            source=spec.source,
            boot=secrets.token_hex(8),
            flush_s=REPORT_FLUSH_S,
            on_change=self._spool_changed,
        )
        blobs = Blobs(connection)
        storages = Storages(spec, blobs)
        self.group = RankGroup(spec, spawner, blobs, connection, self.facts, storages, self._wake.set)
        self._hand = Hand(spawner)
        self._lighthouse = Lighthouse(spawner, spec.addr, self.group.note)
        doer = StorageDoer(spec.run, self._hand, storages.of)
        self.chores = Chores(spec.source, doer, self.facts.say, lambda: self.group.attempts, self._wake.set)
        self.chores.register(STACKS, Lookout(lambda: self.group.lives, blobs))
        self._leave_by_s: float | None = None

    async def serve(self, listening: asyncio.Task[None], reclaimed: asyncio.Event) -> int:
        """Do what the assignments say until they, or the supervisor, say to end; return the exit code."""
        self._ties.on_stop = lambda _: self._wake.set()
        self.facts.start()
        self._say_ready()
        follower = follow_assignments(self._connection, self._hear, run=self._spec.run)
        every_s = self._beat_every_s
        watched = [
            listening,
            asyncio.create_task(self._tell_reclaimed(reclaimed), name="reclaimed"),
            asyncio.create_task(beat(self._connection, self._spec, self.facts, self.group, every_s), name="beat"),
            asyncio.create_task(follower.wait_ended(), name="assignments"),
        ]
        for task in watched:
            task.add_done_callback(lambda _: self._wake.set())
        try:
            return await self._turns(watched)
        finally:
            for task in watched:
                task.cancel()
            await asyncio.gather(*watched, return_exceptions=True)
            await self._leave()
            await follower.close()

    async def _leave(self) -> None:
        now = time.monotonic()
        for one in self.group.held:
            self.group.end(one.rank, kill=True, now=now)
        await self.chores.close()
        await self._hand.close()
        await self._lighthouse.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self.group.close()
                if self.facts.spool.incarnation is not None:
                    await self.facts.settled(LEAVE_TIMEOUT_S)
        await self.facts.close()

    def _has_chores(self, now: float) -> bool:
        """Whether there is work left in the storage, or may be, and time for it: none when this is urgent."""
        patient = self._assignment is not None and not _hurried(self._assignment, self._ordered)
        if self._leave_by_s is None:
            self._leave_by_s = now + (ON_LEAVING_MAX_S if patient else 0.0)
        return (self.chores.busy or may_have_tasks(self._assignment, self._ordered)) and now < self._leave_by_s

    def _raise_trouble(self, watched: Sequence[asyncio.Task[None]]) -> None:
        """Raise what nobody here can go on without: a bug of ours, or assignments that come no more."""
        for task in watched:
            if task.done():
                task.result()
        for crashed in (self.facts.crashed, self.group.crashed, self.chores.crashed):
            if crashed is not None:
                raise crashed

    async def _turns(self, watched: Sequence[asyncio.Task[None]]) -> int:
        while True:
            self._wake.clear()
            self._raise_trouble(watched)
            now = time.monotonic()
            for attempt, names in self.group.unfinished():
                self.chores.collect(attempt, names)
            self.chores.look()
            todo = plan(self._spec.source, self._assignment, self._ordered, self.group.held, self.group.newest, now)
            for step in todo.steps:
                match step:
                    case StartRank(attempt=attempt, laid=laid):
                        if self._assignment is not None:
                            self.group.start(self._assignment, attempt, laid)
                    case EndRank(rank=number, kill=kill):
                        self.group.end(number, kill=kill, now=now)
                    case Leave(reason=reason):
                        if self._has_chores(now):
                            todo = Plan(wake_at=self._leave_by_s)
                            break
                        _LOG.info("%s: the runner on %s ends: %s", self._spec.run, self._spec.node, reason)
                        return EXIT_DONE
            if self._spawner.lost and not self.group.held:
                _LOG.error("%s: the rank spawner on %s is gone; its runner ends", self._spec.run, self._spec.node)
                return EXIT_CANNOT
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if todo.wake_at is None else max(0.0, todo.wake_at - now)):
                    await self._wake.wait()

    def _hear(self, assignment: Assignment) -> None:
        self._assignment = assignment
        if assignment.job is not None:
            self._ties.adopt_within_s = assignment.job.timeouts.adopt_within_s
        self.facts.hear(assignment)
        self.group.hear(assignment)
        self._lighthouse.hear(assignment)
        self.chores.hear(assignment)
        if self.facts.superseded:
            self._ties.order(StopNow(reason="a newer process speaks under this runner's name", grace_s=0.0))
        self._wake.set()

    def _beat_every_s(self) -> float:
        work = self._assignment.job if self._assignment is not None else None
        return max(BEAT_EVERY_MIN_S, work.timeouts.beat_every_s) if work is not None else BEAT_EVERY_S

    @property
    def _ordered(self) -> Ordered | None:
        """The supervisor's word to stop."""
        stop = self._ties.stop
        if stop is None:
            return None
        return Ordered(reason=stop.reason, grace_s=stop.grace_s, said_by=stop.said_by)

    async def _tell_reclaimed(self, reclaimed: asyncio.Event) -> None:
        """Say that this node will be taken back, each time it is said to be."""
        while True:
            await reclaimed.wait()
            reclaimed.clear()
            _LOG.warning("%s: SIGTERM, which runfold never sends: taken for a notice of preemption", self._spec.run)
            node, attempt = self._spec.node, self.group.attempt or self._spec.attempt
            reason = f"SIGTERM to the runner on {node}"
            self.facts.say(PreemptionNoticed(**about(attempt, time.monotonic()), nodes=(node,), reason=reason))

    def _say_ready(self) -> None:
        told = (self._spec.pod, self._spec.pod_host)
        pod, pod_host = pod_said(self._spec.resources, told, values_of((POD_NAME, POD_HOST)))
        self.facts.say(
            RunnerReady(
                **about(self._spec.attempt, time.monotonic()),
                node=self._spec.node,
                addr=self._spec.addr,
                port=self.group.port,
                spare_port=self._lighthouse.port,
                gpus=gpus_by_slot(self._spec.env.get(VISIBLE), self._spec.slots),
                pod=pod,
                pod_host=pod_host,
            )
        )

    def _spool_changed(self) -> None:
        self._wake.set()
        full = self.facts.spool.full
        if full:
            _LOG.warning(
                "%s: %d bytes of facts are not folded yet (spool_max_bytes); reports wait, nothing is lost",
                self._spec.run,
                self.facts.spool.size_bytes,
            )
        self.group.pause(full)


def _hurried(assignment: Assignment, ordered: Ordered | None) -> bool:
    return any(stop is not None and stop.grace_s <= 0 for stop in (assignment.stop, ordered))


async def _run(sock: socket.socket, spawner: Spawner) -> int:
    # Ended by word alone: a SIGTERM is somebody's notice that the node goes.
    reclaimed = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, reclaimed.set)
    pipe = await SupervisorPipe.open(sock)
    ties: Ties | None = None
    try:
        spec = await pipe.spec()
        ties = await tie(spec, pipe)
        code = await _serve(spec, spawner, ties, reclaimed)
        if code == EXIT_DONE:
            ties.release()
    except PlaceTakenError as error:
        _LOG.error("%s", error)
        return EXIT_TAKEN
    except (BrokerError, RunfoldError, LinkError) as error:
        _LOG.error("a runner cannot go on: %s", error)  # for people: the message says it all
        return EXIT_CANNOT
    else:
        return code
    finally:
        (ties or pipe).close()
        await spawner.close()


async def _serve(spec: RunnerSpec, spawner: Spawner, ties: Ties, reclaimed: asyncio.Event) -> int:
    listening = asyncio.create_task(ties.listen(), name="supervisor")
    starting = asyncio.ensure_future(spawner.start())
    try:
        connection = await _connected(spec, ties)
        if connection is None:
            return EXIT_DONE
        try:
            await starting
            return await Runner(spec, spawner, connection, ties).serve(listening, reclaimed)
        finally:
            await connection.close()
    finally:
        listening.cancel()
        await asyncio.gather(listening, starting, return_exceptions=True)


async def _connected(spec: RunnerSpec, ties: Ties) -> Connection | None:
    """Connect, trying for as long as it takes: an outage ends no runner. None when told to stop meanwhile."""
    told = False
    while not ties.stopping.is_set():
        try:
            return await connect(
                spec.url,
                role=Role.WORKER,
                name=f"runner {spec.run}",
                names=Names(spec.namespace),
                connect_timeout_s=CONNECT_TIMEOUT_S,
            )
        except BrokerUnreachable as error:
            if not told:
                _LOG.warning("%s: the runner on %s tries on: %s", spec.run, spec.node, error)
                told = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_RETRY_S):
                await ties.stopping.wait()
    return None


def main(spec: bytes, fds: dict[str, int]) -> int:  # noqa: ARG001  # the signature of a forked process; the spec comes by pipe
    """Run as a runner, as the child of the supervisor's zygote; `fds` holds `pipe`."""
    processes.name_process("runfold-runner")
    # Before anything is set up here that ranks would inherit: loggers, credentials.
    forget_secrets()
    spawner = Spawner.fork(child.main)
    log_to_stderr("%(asctime)s runner %(message)s")
    try:
        return asyncio.run(_run(socket.socket(fileno=fds["pipe"]), spawner))
    except Exception:
        _LOG.exception("the runner failed; its ranks end with it")
        return processes.EXIT_BUG
