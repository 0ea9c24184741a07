"""The client: everything that can be asked of a service over its broker, with the rights of the client user."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.brokerhealth import broker_trouble
from runfold.errors import (
    BrokerAwayError,
    NoAnswerError,
    NotAcceptedError,
    NotFoundError,
    UnreachableError,
    UsageError,
)
from runfold.events.job import RUN_ID, check_job, encode_job, job_digest
from runfold.events.limits import REQUEST_MAX_BYTES, REQUEST_TIMEOUT_S
from runfold.events.nats.api import Api
from runfold.events.nats.consume import Follower
from runfold.events.nats.errors import BrokerAway, BrokerError, BrokerUnreachable, StreamsMissing, Unanswered
from runfold.events.nats.names import Names, Role
from runfold.events.nats.publish import MSG_ID, Rejected, publish_acked
from runfold.events.requests import REQUEST_VERBS
from runfold.events.status import Status
from runfold.events.strict import Refused
from runfold.patience import Patience, connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from runfold.events.job import Job
    from runfold.events.nats.connection import Connection
    from runfold.events.nats.consume import Delivered
    from runfold.events.requests import Request
    from runfold.locate import Address

PUBLISH_TIMEOUT_S: Final = 5.0
LISTING_TIMEOUT_S: Final = 10.0
REQUEST_REPEAT_S: Final = 2.0
STATUS_POLL_S: Final = 0.1
ENDED_ALREADY: Final = "the run had ended already; nothing was changed"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The broker has the job: its run's id, its digest, its number among the jobs; `repeated`: it had it before."""

    run: str
    digest: str
    sequence: int
    repeated: bool


class Client:
    """A connection with the rights of a client; made by `open_client`."""

    def __init__(self, connection: Connection, address: Address, patience: Patience | None = None) -> None:
        self.connection = connection
        self.address = address
        self.patience = patience
        connection.patience = patience
        self.names = connection.names
        self.api = Api(connection)

    async def submit(self, job: Job) -> Receipt:
        """Publish a job that has an id; the acknowledgement is the receipt. Again the same job is the same run.

        Raises:
            Refused: it is no job; nothing was published.
            NotAcceptedError: the broker refused to store it.
            UnreachableError: the broker did not answer; what it says of its health is the reason.
        """
        check_job(job)
        if job.id is None:
            raise Refused("$.id", "the client gives each job an id before it publishes it")
        digest = job_digest(job)
        headers = {MSG_ID: f"{job.id}.{digest}"}
        try:
            answer = await publish_acked(
                self.connection, self.names.subjects.jobs, encode_job(job), headers, timeout_s=PUBLISH_TIMEOUT_S
            )
        except Unanswered as error:
            why = await broker_trouble(self.address.monitor) or str(error)
            raise UnreachableError(
                f"the job was not acknowledged: {why}\nIt may be stored all the same; then it is run {job.id}."
            ) from error
        if isinstance(answer, Rejected):
            raise NotAcceptedError(f"the broker did not take the job: {answer.description}. Nothing was started")
        return Receipt(job.id, digest, answer.sequence, answer.duplicate)

    async def status(self, run: str) -> Status | None:
        """Return a run's status, or None when the service has none; of what is no run's id it never has."""
        if not RUN_ID.fullmatch(run):
            return None  # a wildcard would find the status of any run
        bucket = self.names.status_bucket
        message = await self.api.last_message(self.names.stream_of(bucket), self.names.key_subject(bucket, run))
        return msgspec.json.decode(message.data, type=Status) if message is not None and message.data else None

    async def has_log(self, run: str) -> bool:
        """Return whether the service has a run's log; statuses are not synced, a broker that ends loses some."""
        from runfold.events.nats.collected import find_collected
        from runfold.events.nats.generations import generation_of

        if not RUN_ID.fullmatch(run) or not await generation_of(self.connection, run):
            return False
        return await find_collected(self.connection, run) is None

    async def statuses(self) -> list[Status]:
        """Return every run's status."""
        bucket = self.names.status_bucket
        found = await self.collect(self.names.stream_of(bucket), [self.names.key_subject(bucket, "*")])
        return [msgspec.json.decode(message.data, type=Status) for message in found if message.data]

    async def collect(self, stream: str, filters: Sequence[str], *, last_per_subject: bool = True) -> list[Delivered]:
        """Return what a stream holds on some subjects now."""
        found: list[Delivered] = []
        follower = Follower(self.connection, stream, filters, found.append, last_per_subject=last_per_subject)
        follower.start()
        since_s = asyncio.get_running_loop().time()
        try:
            while not await follower.wait_caught_up(LISTING_TIMEOUT_S):
                if not self.connection.is_up and await self.connection.is_awaited(since_s):
                    continue
                raise NoAnswerError(f"the broker did not list {stream} within {LISTING_TIMEOUT_S:g} s")
        finally:
            await follower.close()
        return found

    @asynccontextmanager
    async def following(
        self,
        stream: str,
        filters: Sequence[str],
        on_message: Callable[[Delivered], None],
        *,
        last_per_subject: bool = False,
    ) -> AsyncIterator[Follower]:
        """Follow some subjects of a stream for as long as the block lasts, from their beginning or from their last."""
        follower = Follower(self.connection, stream, filters, on_message, last_per_subject=last_per_subject)
        follower.start()
        try:
            yield follower
        finally:
            await follower.close()

    async def refusal(self, sequence: int) -> bytes | None:
        """Return what was recorded when a job was refused, or None."""
        message = await self.api.last_message(self.names.refusals, self.names.subjects.refused(sequence))
        return None if message is None else message.data

    async def request(self, run: str, request: Request, timeout_s: float = REQUEST_TIMEOUT_S) -> str:
        """Publish a request, and again with the same id, until the status shows its answer; return the answer.

        Raises:
            UsageError: no controller would take it, so large is it; nothing was published.
            NotFoundError: the service knows no such run; nothing was published.
            NotAcceptedError: the controller refused it.
            NoAnswerError: no answer in time, or none to be had of a quarantined run; the request stands on the broker
                and may still be done.
        """
        if (size := len(msgspec.json.encode(request))) > REQUEST_MAX_BYTES:
            raise UsageError(
                f"the request is {size} bytes, more than request_max_bytes ({REQUEST_MAX_BYTES}); nothing was published"
            )
        before = await self.status(run)
        if before is None and not await self.has_log(run):
            raise NotFoundError(f"the service knows no run {run!r}")
        if before is not None and (answer := before.requests.get(request.id)) is not None:
            return accepted(answer)  # asked before, over a connection that was lost
        if before is not None and before.terminal:
            return ENDED_ALREADY
        loop, heard = asyncio.get_running_loop(), self.connection.generation
        deadline = loop.time() + timeout_s
        publish_at = loop.time()
        while loop.time() < deadline or heard != self.connection.generation:
            if heard != self.connection.generation:  # the broker was away meanwhile: nobody could answer
                heard, deadline = self.connection.generation, loop.time() + timeout_s
            if loop.time() >= publish_at:
                publish_at = loop.time() + REQUEST_REPEAT_S
                await self._publish_request(run, request)
            status = await self.status(run)
            if status is not None and (answer := status.requests.get(request.id)) is not None:
                return accepted(answer)
            if status is not None and status.terminal:
                return ENDED_ALREADY  # it came too late to be looked at
            if status is not None and status.quarantined:
                raise NoAnswerError(quarantined_text(status))
            await asyncio.sleep(STATUS_POLL_S)
        raise NoAnswerError(
            f"no controller answered the request about {run} within {timeout_s:g} s\n"
            f"It stands on the broker and may still be done; `runfold get {run}` shows whether it was."
        )

    async def _publish_request(self, run: str, request: Request) -> None:
        verb = next(verb for verb, kind in REQUEST_VERBS.items() if kind is type(request))
        subject = self.names.subjects.request(run, verb)
        try:
            answer = await publish_acked(
                self.connection, subject, msgspec.json.encode(request), timeout_s=PUBLISH_TIMEOUT_S
            )
        except Unanswered:
            return  # the same id is published again
        if isinstance(answer, Rejected):
            raise NotAcceptedError(f"the broker did not take the request: {answer.description}")


def quarantined_text(status: Status) -> str:
    """Return why nobody decides for a run now, and what to do."""
    return (
        f"{status.run} is quarantined, and nobody decides for it: {status.quarantined}\n"
        f"`runfold restore {status.run} --from ARCHIVE` brings its log back; the request stands on the broker, and is "
        f"looked at then. `runfold abort {status.run} --force --reason TEXT` stops its group now."
    )


def accepted(answer: str) -> str:
    """Return the answer to a request; raise `NotAcceptedError` when it is a refusal."""
    if answer.startswith("refused"):
        raise NotAcceptedError(answer)
    return answer


@asynccontextmanager
async def open_client(address: Address) -> AsyncIterator[Client]:
    """Connect as a client for as long as the block lasts.

    The broker of a service that runs is waited for while it is started again, now and whenever it is asked something.

    Raises:
        BrokerAwayError: it was waited for in vain.
        UnreachableError: no broker answered, or it went away meanwhile.
    """
    patience = Patience(address.data_dir) if address.data_dir is not None else None
    try:
        connection = await connected(address.url, Role.CLIENT, "runfold client", Names(address.namespace), patience)
    except BrokerAway as error:
        raise BrokerAwayError(str(error)) from error
    except BrokerUnreachable as error:
        raise UnreachableError(str(error)) from error
    try:
        yield Client(connection, address, patience)
    except StreamsMissing as error:
        raise UnreachableError(f"the broker at {connection.server} was not prepared for runfold: {error}") from error
    except BrokerAway as error:
        raise BrokerAwayError(str(error)) from error
    except BrokerError as error:
        raise UnreachableError(f"the broker at {connection.server} did not answer: {error}") from error
    finally:
        await connection.close()
