"""Jobs become runs: each once, whatever is repeated, and at whatever step this process ends.

Own the run, write entry 0 (by its loop), only then acknowledge the job. What cannot become a run is kept as refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import dataclass
from typing import Final

import msgspec

from runfold.controller.host import Host, Setting
from runfold.controller.patience import GaveUp, Patience
from runfold.controller.ports import JobDelivery, Unavailable
from runfold.controller.safe import root_of, shown, shown_error
from runfold.controller.seed import NewRun, Quarantined, Unwritten
from runfold.controller.showing import decoded
from runfold.controller.takeover import BeginningLost, has_ended, read_acceptance
from runfold.controller.territory import shown_storage
from runfold.events.base import Origin
from runfold.events.conclusions import JobTaken
from runfold.events.job import RUN_ID, Job, check_run_id, decode_job, job_digest, resolve_job
from runfold.events.limits import REFUSAL_EXCERPT_MAX_BYTES
from runfold.events.refusal import JobRefused
from runfold.events.state import Unborn
from runfold.events.status import Status
from runfold.events.strict import Refused
from runfold.events.transitions import RunAccepted

LET_GO_TIMEOUT_S: Final = 5.0
LET_GO_POLL_S: Final = 0.1
"""How long a run that is over is waited for to let its storage go, and how often that is looked at."""

AGAIN_AFTER_S: Final = 0.5
"""How long to wait before the queue is asked again when the broker did not answer."""

TAKEN_AT_ONCE_MAX: Final = 8
"""How many jobs may be on their way to their first entry at the same time."""

REFUSE_TIMEOUT_S: Final = 10.0
"""How long the record of a refusal is tried to be kept; the job is terminated all the same."""

REASON_MAX_COUNT: Final = 2000
"""Longest path or reason kept of a refusal, in characters: both may quote what was published."""

PEER_PREFIX: Final = "RAY_TRAIN_"

_log = logging.getLogger(__name__)
_statuses: Final = msgspec.json.Decoder(Status)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job as published: the run it asks for, its resolved form, its digest and number in JOBS."""

    run: str
    job: Job
    digest: str
    sequence: int

    def is_run_of(self, accepted: RunAccepted) -> bool:
        """Whether a run that exists is what this job asks for."""
        return accepted.digest == self.digest or accepted.jobs_sequence == self.sequence


def read_wanted(data: bytes, sequence: int) -> Wanted:
    """Return what a published job asks for; raise `Refused` for anything that is not exactly a job."""
    published = decode_job(data)
    job = resolve_job(published, sequence)
    run = job.id or ""
    check_run_id(run)
    return Wanted(run=run, job=job, digest=job_digest(published), sequence=sequence)


NOTHING_ASKED: Final = (
    "hooks.callbacks are named, and nothing of them is called by the run: hooks.gates names the hooks that are asked, "
    "hooks.in_ranks says that some are called in the ranks"
)
"""Also said where all are observers, which a run does not call: nobody here can see what they are."""


def warnings_of(job: Job, environment: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a person should know of a job that is taken all the same."""
    places = dict.fromkeys(environment, "the service's environment")
    places |= {name: "the job's env" for name in job.env if name.startswith(PEER_PREFIX)}
    unread = tuple(
        f"{name} is set in {place}: runfold does not read RAY_TRAIN_* variables; each has a config field (see the docs)"
        for name, place in sorted(places.items())
    )
    hooks = job.hooks
    return (*unread, NOTHING_ASKED) if hooks.callbacks and not hooks.gates and not hooks.in_ranks else unread


class _Turn:
    """A job's turn, from its being pulled until its run is claimed: one after another, so that they begin in order."""

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self._held = False

    async def begin(self) -> None:
        """Wait for it."""
        await self._lock.acquire()
        self._held = True

    def end(self) -> None:
        """Let the next one begin; nothing happens when it did."""
        if self._held:
            self._held = False
            self._lock.release()


class Intake:
    """Takes jobs from the queue, in order. `unrecorded_count` refusals could not be kept."""

    def __init__(self, host: Host, setting: Setting, environment: tuple[str, ...] = ()) -> None:
        self.unrecorded_count = 0
        self._host, self._setting, self._environment = host, setting, environment
        self._jobs = setting.ports.jobs
        self._patience = Patience("the queue of jobs")
        self._turns = asyncio.Lock()

    async def serve(self) -> None:
        """Take jobs until cancelled."""
        await self._host.ready.wait()
        async with asyncio.TaskGroup() as owner:
            for _ in range(TAKEN_AT_ONCE_MAX):
                owner.create_task(self._serve_one(), name="take jobs")

    async def _serve_one(self) -> None:
        while True:
            turn = _Turn(self._turns)
            await turn.begin()
            try:
                job = await self._pull()
                if job is not None:
                    await self._take_safely(job, turn)
            finally:
                turn.end()

    async def _pull(self) -> JobDelivery | None:
        try:
            return await self._jobs.pull()
        except Unavailable as error:
            _log.warning("the queue of jobs cannot be read: %s", shown(error))
            await asyncio.sleep(AGAIN_AFTER_S)
            return None

    async def _take_safely(self, job: JobDelivery, turn: _Turn) -> None:
        """Take a job; one that trips a bug of ours is refused, and the next one is taken."""
        (failure,) = await asyncio.gather(self._take(job, turn), return_exceptions=True)
        if isinstance(failure, Exception) and not isinstance(failure, Unavailable | GaveUp):
            _log.error("job %d could not be taken\n%s", job.sequence, shown_error(failure))
            await self._refuse(job, Refused("$", f"an error in the controller: {root_of(failure)}"))

    async def _take(self, job: JobDelivery, turn: _Turn) -> None:
        try:
            wanted = read_wanted(job.data, job.sequence)
            settled = await self._settle(wanted, turn)
        except Refused as refusal:
            await self._refuse(job, refusal)
            return
        if settled:
            # An answer that is lost brings the job again: it is the same run then.
            await job.ack()

    async def _settle(self, wanted: Wanted, turn: _Turn) -> bool:
        """Make the job a run; whether it may be acknowledged. Raises `Refused`."""
        if await self._exists(wanted):
            await self._see_to(wanted.run)
            return True
        with self._host.claiming(wanted.run):
            holder = await self._claim(wanted.run)
            turn.end()
            if holder != self._setting.me.controller:
                _log.warning("job %d: run %s is held by controller %s", wanted.sequence, wanted.run, shown(holder))
                return False
            is_first = self._host.find(wanted.run) is None
            await self._reserve(wanted, is_first=is_first)
            is_first = self._host.find(wanted.run) is None
            hosted = self._host.start(wanted.run, self._new_run(wanted))
        if await hosted.begun():
            return is_first or await self._exists(wanted)
        if isinstance(hosted.ending, Unwritten):
            # It was being taken over, from a key that a former life of ours left before it wrote entry 0.
            return await self._settle(wanted, turn)
        if is_first and isinstance(hosted.ending, Quarantined):
            reason = hosted.ending.reason
            self._host.forget(wanted.run)
            await self._patience.ask(lambda: self._host.let_go(wanted.run, wanted.job))
            raise Refused("$", f"the run could not be begun: {reason}")
        return False

    async def _reserve(self, wanted: Wanted, *, is_first: bool) -> None:
        """Have the storage path for this run; raise `Refused` while another one is live there."""
        key = await self._host.key_of(wanted.job)
        if key is None:
            return
        deadline = self._setting.monotonic() + LET_GO_TIMEOUT_S
        while (holder := await self._patience.ask(lambda: self._holder_of(key, wanted))) != wanted.run:
            await asyncio.sleep(LET_GO_POLL_S)
            if self._setting.monotonic() > deadline or not await self._is_ending(holder):
                break
        else:
            return
        if is_first:
            await self._patience.ask(lambda: self._host.owners.release(wanted.run))
        raise Refused(
            "$.storage_path",
            f"run {holder!r} writes to {shown_storage(wanted.job)}, and is not over; wait for its end, or choose "
            "another name or storage_path",
        )

    async def _is_ending(self, run: str) -> bool:
        """Whether a run that still has its storage is over: then it is about to let it go."""
        ports = self._setting.ports.run(run)
        data, _ = await self._patience.ask(ports.status.read)
        status = decoded(_statuses, data)
        if status is not None and status.terminal:
            return True
        # Who follows the log knows of the end before the status shows it, and may ask for the next run at once.
        return await self._patience.ask(lambda: has_ended(ports.log, run))

    async def _claim(self, run: str) -> str:
        return await self._patience.ask(lambda: self._host.owners.claim(run))

    async def _see_to(self, run: str) -> None:
        """See that a run that exists has a controller.

        It has none when it is over; or when its first entry arrived late, after its key was given up as unused.
        """
        if self._host.find(run) is None and await self._claim(run) == self._setting.me.controller:
            self._host.resume(run)

    async def _holder_of(self, key: str, wanted: Wanted) -> str:
        # A run whose storage nobody named has its own id for a name, and no key.
        alone = wanted.job.storage_name or ""
        if wanted.job.storage_path is None and RUN_ID.fullmatch(alone) and await self._host.owners.is_held(alone):
            return alone
        return await self._host.owners.reserve(key, wanted.run)

    async def _exists(self, wanted: Wanted) -> bool:
        """Whether the log holds the run that is asked for; raise `Refused` when it holds another by that id."""
        if not await self._patience.ask(lambda: self._setting.ports.generation(wanted.run)):
            return False
        log = self._setting.ports.run(wanted.run).log
        try:
            accepted = await self._patience.ask(lambda: read_acceptance(log, wanted.run))
        except BeginningLost as lost:
            raise Refused("$.id", f"{lost}; choose another id") from None
        if accepted is None:
            return False
        if not wanted.is_run_of(accepted):
            raise Refused(
                "$.id",
                f"run {wanted.run!r} exists already and was asked for with other content "
                f"(job {accepted.jobs_sequence}); choose another id",
            )
        return True

    def _new_run(self, wanted: Wanted) -> NewRun:
        state = Unborn(job=wanted.job, digest=wanted.digest, jobs_sequence=wanted.sequence)
        warnings = warnings_of(wanted.job, self._environment)
        return NewRun(
            state=state,
            taken=JobTaken(digest=wanted.digest, warnings=warnings, origin=Origin(jobs=wanted.sequence)),
        )

    async def _refuse(self, job: JobDelivery, refusal: Refused) -> None:
        """Keep what was refused and why, then take the job out of the queue."""
        _log.warning("job %d refused: %s", job.sequence, shown(refusal))
        record = msgspec.json.encode(self._record(job, refusal))
        try:
            async with asyncio.timeout(REFUSE_TIMEOUT_S):
                await self._patience.ask(lambda: self._jobs.refuse(job.sequence, record))
        except (TimeoutError, GaveUp):
            self.unrecorded_count += 1
            _log.error("job %d: its refusal could not be kept (%d so far)", job.sequence, self.unrecorded_count)
        try:
            await job.term()
        except Unavailable as error:
            _log.warning("job %d: refused, but it may come again: %s", job.sequence, shown(error))

    def _record(self, job: JobDelivery, refusal: Refused) -> JobRefused:
        return JobRefused(
            sequence=job.sequence,
            run=_asked_id(job.data),
            path=refusal.path[:REASON_MAX_COUNT],
            reason=refusal.reason[:REASON_MAX_COUNT],
            sha256=hashlib.sha256(job.data).hexdigest(),
            size_bytes=len(job.data),
            excerpt=job.data[:REFUSAL_EXCERPT_MAX_BYTES].decode("utf-8", "backslashreplace"),
            at=self._setting.at(),
            by=self._setting.me.controller,
        )


class _Named(msgspec.Struct):
    id: str | None = None


def _asked_id(data: bytes) -> str | None:
    """Return the run id that a refused job asked for, where it can be read and is one."""
    try:
        run = msgspec.json.decode(data, type=_Named).id
        check_run_id(run or "")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Refused):
        return None
    return run
