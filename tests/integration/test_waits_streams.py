"""How long a broker keeps what nobody takes from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.events import limits
from runfold.events.nats.errors import BrokerError
from runfold.events.nats.names import Role
from runfold.events.nats.publish import Acked, publish_acked
from support.broker import ANSWER_TIMEOUT_S, BrokerForTest
from support.waiting import until

if TYPE_CHECKING:
    import pytest

    from runfold.events.nats.api import Api


async def messages(api: Api, stream: str) -> int:
    """Return how many messages a stream holds."""
    try:
        info = await api.stream_info(stream)
    except BrokerError:
        return -1
    return -1 if info is None else info.state.messages


async def test_facts_that_nobody_folds_and_refusals_that_nobody_reads_are_dropped_after_their_time(
    bare_broker: BrokerForTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INBOX_AGE_MAX_S", 1.0)
    monkeypatch.setattr(limits, "REFUSALS_AGE_MAX_S", 1.0)
    await bare_broker.provision()
    connection, api = await bare_broker.connect(Role.ADMIN), await bare_broker.api()
    names = bare_broker.names
    kept = {
        names.inbox: names.subjects.request("digits-1", "join"),
        names.refusals: names.subjects.refused(1),
        names.log: names.subjects.log("digits-1"),
    }
    for stream, subject in kept.items():
        answer = await publish_acked(connection, subject, b"{}", timeout_s=ANSWER_TIMEOUT_S)
        assert isinstance(answer, Acked), stream
    for stream in (names.inbox, names.refusals):

        async def gone(stream: str = stream) -> bool:
            return await messages(api, stream) == 0

        await until(gone)
    assert await messages(api, names.log) == 1, "the log is kept for as long as nobody removes it"
