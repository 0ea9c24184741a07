"""What the contract suite of the log needs of an implementation: the log, and ways to hurt it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from runfold.events.entry import GENESIS, Entry, encode_entry, hash_entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runfold.events.log import Log
    from runfold.events.nats.client import RawMessage
    from runfold.events.nats.connection import Connection
    from support.broker import BrokerForTest

from runfold.events.nats.errors import Unanswered
from runfold.events.nats.layout import stream_configs
from runfold.events.nats.log import JetStreamLog
from runfold.events.nats.names import Role
from runfold.events.nats.publish import Acked, publish_acked

ANSWER_TIMEOUT_S = 30.0


class Chain:
    """Entries of one run, linked; `by` tells rivals' apart."""

    def __init__(self, run: str = "r", by: str = "ctl-a") -> None:
        self.run = run
        self.by = by

    def entry(self, n: int, prev: str = GENESIS) -> bytes:
        """Return the bytes of an entry."""
        return encode_entry(
            Entry(
                v=1,
                run=self.run,
                n=n,
                t=float(n),
                at="2026-11-30T05:48:28.123456Z",
                by=self.by,
                epoch=1,
                cursor=None,
                inputs=(),
                transitions=(),
                prev=prev,
            )
        )

    def entries(self, count: int) -> list[tuple[bytes, str]]:
        """Return the first entries, each with its `prev`."""
        chain: list[tuple[bytes, str]] = []
        prev = GENESIS
        for n in range(count):
            data = self.entry(n, prev)
            chain.append((data, prev))
            prev = hash_entry(data)
        return chain


class LogRig(Protocol):
    """One implementation of the log under test."""

    def log(self, run: str = "r") -> Log:
        """Return a handle on a run's log, as another controller would make it."""
        ...

    def deaf(self, run: str = "r") -> Log:
        """Return a handle whose next append stands, but whose answer is lost."""
        ...

    def mute(self, run: str = "r") -> Log:
        """Return a handle whose next append never arrives, and so is not answered."""
        ...

    async def stray(self, data: bytes, run: str = "r") -> int:
        """Put bytes on the log's subject past the port; return their sequence."""
        ...

    async def cut(self, keep: int) -> None:
        """Lose all but the first messages, as damaged storage does."""
        ...

    async def fill(self) -> None:
        """Leave the store without room for an entry."""
        ...


class _Faulty:
    """A connection that loses one question, or one answer, of the next append."""

    def __init__(self, connection: Connection, *, lands: bool) -> None:
        self._connection = connection
        self._lands = lands
        self._armed = True

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    async def request(
        self, subject: str, data: bytes, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> RawMessage:
        if self._armed and not subject.startswith("$JS"):
            self._armed = False
            if self._lands:
                await self._connection.request(subject, data, timeout_s=timeout_s, headers=headers)
            raise Unanswered(subject, "lost on purpose")
        return await self._connection.request(subject, data, timeout_s=timeout_s, headers=headers)


class JetStreamRig:
    """The log on a real broker."""

    def __init__(self, broker: BrokerForTest, admin: Connection, controller: Connection) -> None:
        self._broker = broker
        self._admin = admin
        self._controller = controller

    @classmethod
    async def make(cls, broker: BrokerForTest) -> JetStreamRig:
        """Connect."""
        return cls(broker, await broker.connect(Role.ADMIN), await broker.connect(Role.CONTROLLER))

    def log(self, run: str = "r") -> Log:
        """See the port."""
        return JetStreamLog(self._controller, run, append_timeout_s=ANSWER_TIMEOUT_S)

    def deaf(self, run: str = "r") -> Log:
        """See the port."""
        return self._faulty(run, lands=True)

    def mute(self, run: str = "r") -> Log:
        """See the port."""
        return self._faulty(run, lands=False)

    def _faulty(self, run: str, *, lands: bool) -> Log:
        faulty = _Faulty(self._controller, lands=lands)
        return JetStreamLog(faulty, run, append_timeout_s=ANSWER_TIMEOUT_S)  # type: ignore[arg-type]  # its double

    async def stray(self, data: bytes, run: str = "r") -> int:
        """See the port."""
        subject = self._broker.names.subjects.log(run)
        answer = await publish_acked(self._admin, subject, data, timeout_s=ANSWER_TIMEOUT_S)
        assert isinstance(answer, Acked)
        return answer.sequence

    async def cut(self, keep: int) -> None:
        """Make the stream anew with its first messages alone."""
        kept = [stored.data async for stored in self.log().read()][:keep]
        await self._remake()
        for data in kept:
            await self.stray(data)

    async def fill(self) -> None:
        """Make the stream anew with hardly any room."""
        await self._remake(max_bytes=64)

    async def _remake(self, max_bytes: int | None = None) -> None:
        import msgspec

        names = self._broker.names
        api = await self._broker.api()
        config = stream_configs(names, storage_max_bytes=1 << 30)[0]
        assert config.name == names.log
        if max_bytes is not None:
            config = msgspec.structs.replace(config, max_bytes=max_bytes)
        await self._admin.request(f"$JS.API.STREAM.DELETE.{names.log}", b"", timeout_s=ANSWER_TIMEOUT_S)
        await api.create_stream(config)
