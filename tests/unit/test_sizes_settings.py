"""What a data directory chooses for its broker, and what a slice may be, is within its limits."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import threading
from typing import TYPE_CHECKING, NamedTuple, cast

import pytest

from runfold.events.nats import broker, leases, settings
from runfold.events.nats.cells import Clash, Written
from runfold.events.nats.errors import BrokerStartFailed, Unanswered
from runfold.events.nats.leases import TRIES_MAX, Lease
from runfold.events.nats.names import Names
from runfold.events.nats.settings import PORT_MAX, PORT_MIN, PORT_TRIES_MAX, STORAGE_MAX_BYTES, choose_port
from runfold.events.slices import DIMENSION_MAX, slice_of

if TYPE_CHECKING:
    from pathlib import Path

    from runfold.events.nats.connection import Connection


class Usage(NamedTuple):
    """What `shutil.disk_usage` says."""

    free: int


@pytest.mark.parametrize(
    ("free", "chosen"), [(STORAGE_MAX_BYTES, STORAGE_MAX_BYTES // 2), (8 * STORAGE_MAX_BYTES, STORAGE_MAX_BYTES)]
)
def test_a_broker_takes_half_of_what_is_free_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, chosen: int
) -> None:
    usage = Usage(free)

    def disk_usage(_: Path) -> Usage:
        return usage

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    assert settings.load_or_choose(tmp_path, "runfold").storage_max_bytes == chosen
    usage = Usage(1)
    assert settings.load_or_choose(tmp_path, "runfold").storage_max_bytes == chosen, "kept from then on"


@pytest.mark.parametrize(("drawn", "port"), [(0, PORT_MIN), (PORT_MAX - PORT_MIN, PORT_MAX)])
def test_ports_are_chosen_from_the_lowest_to_the_highest(
    monkeypatch: pytest.MonkeyPatch, drawn: int, port: int
) -> None:
    def randbelow(count: int) -> int:
        assert drawn < count == PORT_MAX - PORT_MIN + 1
        return drawn

    def is_free(_: int) -> bool:
        return True

    monkeypatch.setattr(settings, "is_free", is_free)
    monkeypatch.setattr(secrets, "randbelow", randbelow)
    assert choose_port() == port


@pytest.mark.parametrize("taken", [PORT_TRIES_MAX - 1, PORT_TRIES_MAX])
def test_so_many_ports_are_tried(monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    tried: list[int] = []

    def is_free(port: int) -> bool:
        tried.append(port)
        return len(tried) > taken

    monkeypatch.setattr(settings, "is_free", is_free)
    if taken == PORT_TRIES_MAX:
        with pytest.raises(BrokerStartFailed, match="no free port found among 64 tried from 20000 to 32767"):
            choose_port()
    else:
        assert choose_port() == tried[-1]
    assert len(tried) == PORT_TRIES_MAX


def test_who_talks_without_end_at_the_port_is_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else has taken the port: it is read up to a limit, and not taken for ours."""
    monkeypatch.setattr(broker, "PROBE_TIMEOUT_S", 30.0)
    sent: list[int] = []

    def talk() -> None:
        link, _ = server.accept()
        with link, contextlib.suppress(OSError):
            while True:
                sent.append(link.send(b"x" * 4096))

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        talking = threading.Thread(target=talk, daemon=True)
        talking.start()
        assert broker._greeting("127.0.0.1", port) is None
        talking.join(30.0)
        assert not talking.is_alive()
    assert sum(sent) >= broker.INFO_LINE_MAX_BYTES


class _InTheWay:
    """A bucket in which something else stands at each of the first `times` writes, and is gone when it is looked at."""

    def __init__(self, times: int) -> None:
        self.times: int = times

    def subject(self, key: str) -> str:
        return f"leases.{key}"

    async def put(self, key: str, data: bytes, **_: object) -> Written | Clash:
        self.times -= 1
        return Clash("wrong last sequence") if self.times >= 0 else Written(sequence=7)

    async def get(self, key: str) -> None:
        return None


class _Nowhere:
    names = Names()


@pytest.mark.parametrize("times", [TRIES_MAX - 1, TRIES_MAX])
async def test_a_lease_is_tried_so_often_and_then_nobody_knows(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    def lease_cells(_: object) -> _InTheWay:
        return _InTheWay(times)

    monkeypatch.setattr(leases, "lease_cells", lease_cells)
    lease = Lease(cast("Connection", _Nowhere()), "ctl-0", "b1")
    if times == TRIES_MAX:
        with pytest.raises(Unanswered, match="it was in the way 4 times"):
            await lease.renew()
    assert await lease.renew() == "gained"


def test_a_topology_is_no_longer_than_it_may_be_in_any_direction() -> None:
    assert slice_of(f"4x{DIMENSION_MAX}", "v5e").chips == 4 * DIMENSION_MAX
    with pytest.raises(ValueError, match=f"each dimension of '4x{DIMENSION_MAX + 1}' must be 1 to {DIMENSION_MAX}"):
        slice_of(f"4x{DIMENSION_MAX + 1}", "v5e")
