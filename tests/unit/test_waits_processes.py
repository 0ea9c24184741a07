"""Processes that do not end, servers that do not answer, callbacks that never return: each is waited for so long.

What passes is either counted (a process that notes what it was waited for) or a limit made a fraction of a second.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from runfold import brokerhealth, children, health, locate, observers, run, salvaging, service, webhook
from runfold.children import Child, Children
from runfold.client import Client
from runfold.early import Early
from runfold.errors import ServiceError
from runfold.events.nats import broker
from runfold.events.nats.errors import BrokerError, BrokerStartFailed
from runfold.events.nats.files import CONNECTION_FILE, ConnectionFile, write_private
from runfold.events.nats.settings import Settings
from runfold.follow import Onlooker
from runfold.happenings import Happening
from runfold.locate import find
from runfold.observers import Observers, Watching
from runfold.service import Plan, Service
from support.virtual import run_virtual

SOON_S = 0.02
SETTINGS = Settings(name="test", namespace="runfold", storage_max_bytes=1, passwords={})


class Stubborn:
    """A process that ends by SIGKILL alone, or by nothing; `waited` is what was waited for it, `told` what it got."""

    pid = 4711
    stdin = None

    def __init__(self, *, killable: bool = True) -> None:
        self.told: list[str] = []
        self.waited: list[float | None] = []
        self._killable = killable
        self._ended = threading.Event()

    def poll(self) -> int | None:
        return -9 if self._ended.is_set() else None

    def terminate(self) -> None:
        self.told.append("terminate")

    def send_signal(self, number: int) -> None:
        self.told.append(f"signal {int(number)}")

    def kill(self) -> None:
        self.told.append("kill")
        if self._killable:
            self._ended.set()

    def let_go(self) -> None:
        """End it, so that no thread waits for it any more."""
        self._ended.set()

    def wait(self, timeout: float | None = None) -> int:
        self.waited.append(timeout)
        if timeout is not None and not self._ended.is_set():  # time passes at once for whoever sets a limit
            raise subprocess.TimeoutExpired("stubborn", timeout)
        self._ended.wait()
        return -9


def child(name: str, process: Stubborn, tmp_path: Path) -> Child:
    one = Child(name, tmp_path)
    one._process = cast("subprocess.Popen[bytes]", process)
    return one


def a_broker(process: Stubborn, folder: Path) -> broker.Broker:
    return broker.Broker(cast("subprocess.Popen[bytes]", process), folder, 1, SETTINGS, "")


# --- processes


def test_a_broker_that_does_not_end_is_killed_after_its_time(tmp_path: Path) -> None:
    process = Stubborn()
    assert a_broker(process, tmp_path).stop() == -9
    assert process.told == ["signal 15", "kill"]
    assert process.waited == [broker.STOP_TIMEOUT_S, broker.KILL_TIMEOUT_S]


def test_a_broker_that_nothing_ends_is_said_with_what_is_true_of_its_store(tmp_path: Path) -> None:
    process = Stubborn(killable=False)
    with pytest.raises(
        BrokerError, match=r"\(process 4711\) has not ended within 5 s after SIGKILL. Its store .* locked"
    ):
        a_broker(process, tmp_path).stop()
    assert process.waited == [broker.STOP_TIMEOUT_S, broker.KILL_TIMEOUT_S]


async def test_a_child_that_nothing_ends_is_said_and_the_others_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "KILL_TIMEOUT_S", SOON_S)
    for in_order in (True, False):
        supervisor, controller = Stubborn(killable=False), Stubborn()
        all_of_them = Children(tmp_path)
        all_of_them.supervisor = child("supervisor", supervisor, tmp_path)
        all_of_them.controllers = [child("controller", controller, tmp_path)]
        async with asyncio.timeout(30):
            with pytest.raises(
                ServiceError, match=r"the supervisor \(process 4711\) has not ended within 0.02 s after"
            ):
                await all_of_them.stop(SOON_S, SOON_S, in_order=in_order)
        supervisor.let_go()
        assert supervisor.told == controller.told == ["terminate", "kill"]


def test_a_child_that_ends_when_nobody_is_there_to_be_told_ends_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, said = Stubborn(), list[object]()
    monkeypatch.setattr(threading, "excepthook", said.append)
    before = set(threading.enumerate())

    async def waits() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "is_closed", lambda: False)  # as it was when it was last asked
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SOON_S):
                await child("controller", process, tmp_path).wait()

    asyncio.run(waits())
    (waiting,) = set(threading.enumerate()) - before
    process.let_go()
    waiting.join(30)
    assert not waiting.is_alive()
    assert said == []


@pytest.mark.parametrize("killable", [True, False])
async def test_a_service_ends_its_parts_each_in_its_time_and_the_broker_whatever_they_do(
    killable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("SUPERVISOR_PATIENCE_S", "CONTROLLER_PATIENCE_S"):
        monkeypatch.setattr(service, limit, SOON_S)
    if not killable:  # who can be killed is given its time: a busy machine takes it
        monkeypatch.setattr(children, "KILL_TIMEOUT_S", SOON_S)
    parts = Children(tmp_path)
    supervisor, controller, server = Stubborn(killable=killable), Stubborn(), Stubborn()
    parts.supervisor, parts.controllers = (
        child("supervisor", supervisor, tmp_path),
        [child("controller", controller, tmp_path)],
    )
    early = Early(parts, a_broker(server, tmp_path), lived_in=-1)
    running = Service(Plan(tmp_path, "runfold", slots=1), lambda _: None, early)
    async with asyncio.timeout(30):
        if killable:
            await running.stop()
        else:
            with pytest.raises(ServiceError, match="the supervisor"):
                await running.stop()
    supervisor.let_go()
    assert supervisor.told == controller.told == ["terminate", "kill"]
    assert server.waited == [service.BROKER_PATIENCE_S, broker.KILL_TIMEOUT_S]


async def test_the_log_of_a_run_that_was_stopped_is_closed_within_a_time_or_left_with_the_command_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(run, "CLOSING_TIMEOUT_S", SOON_S)
    monkeypatch.setattr(salvaging, "close_left", never)
    told: list[str] = []
    order = SimpleNamespace(job=SimpleNamespace(id="digits"), where=find(tmp_path), say=told.append)
    assert not await run._closed(cast("run.Order", order), lived_in=-1)
    (words,) = told
    assert "nor is its archive closed: it took longer than 0.02 s" in words
    assert f"`runfold salvage digits --data {tmp_path}`" in words


class Keeping:
    """An archiver that writes until it is cancelled, or ends by a bug; `cancelled` is whether it was."""

    def __init__(self, *, bug: bool = False) -> None:
        self.cancelled = False
        self._bug = bug

    async def keep(self, *_: object) -> None:
        if self._bug:
            raise ValueError("nobody knows why")
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled = True


def archived(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch, say: Callable[[str], None]
) -> AbstractAsyncContextManager[None]:
    monkeypatch.setattr("runfold.archiving.Archiver", lambda *_: keeping)
    return run.archived_meanwhile(cast("Client", None), "digits", Path("data"), say)


def test_the_archiver_of_a_run_that_is_over_is_waited_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    keeping, told = Keeping(), list[str]()

    async def story() -> float:
        async with archived(keeping, monkeypatch, told.append):
            await asyncio.sleep(1.0)
        return asyncio.get_running_loop().time()

    assert run_virtual(story()) == pytest.approx(1.0 + run.ARCHIVER_TIMEOUT_S)
    assert (keeping.cancelled, told) == (True, [])


def test_whoever_is_cancelled_while_the_archiver_is_waited_for_leaves_none_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keeping = Keeping()

    async def leaves() -> None:
        async with archived(keeping, monkeypatch, print):
            await asyncio.sleep(1.0)

    async def story() -> None:
        leaving = asyncio.ensure_future(leaves())
        await asyncio.sleep(1.0 + run.ARCHIVER_TIMEOUT_S / 2)
        leaving.cancel()
        await asyncio.wait({leaving})
        assert (leaving.cancelled(), keeping.cancelled) == (True, True)

    run_virtual(story())


def test_a_bug_of_the_archiver_is_raised_and_never_hides_what_ended_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    async def story(error: Exception | None) -> None:
        async with archived(Keeping(bug=True), monkeypatch, told.append):
            await asyncio.sleep(1.0)
            if error is not None:
                raise error

    with pytest.raises(ValueError, match="nobody knows why"):
        run_virtual(story(None))
    assert told == []
    with pytest.raises(ServiceError, match="the broker is gone"):
        run_virtual(story(ServiceError("the broker is gone")))
    assert told == ["the archive of digits was not written while it ran: nobody knows why"]


# --- a broker that starts


def script(tmp_path: Path) -> Path:
    path = tmp_path / "nats-server"
    path.write_text("#!/bin/sh\nexec sleep 600\n")
    path.chmod(0o755)
    return path


def test_a_broker_that_does_not_come_up_is_ended_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10_000, 10))
    monkeypatch.setattr(broker, "find_nats_server", lambda: script(tmp_path))
    clock = SimpleNamespace(monotonic=lambda: float(next(now)), sleep=lambda _: None)
    monkeypatch.setattr(broker, "time", clock)
    monkeypatch.setattr(broker, "FRESH_PORT_TRIES_MAX", 1)
    with pytest.raises(
        BrokerStartFailed, match=f"within {broker.READY_TIMEOUT_S:g} s and was stopped: it printed nothing"
    ):
        broker.start_broker(tmp_path / "data")


@pytest.fixture
def mute() -> Iterator[int]:
    """The port of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_what_does_not_greet_is_no_broker_yet(mute: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "PROBE_TIMEOUT_S", SOON_S)
    assert broker._greeting("127.0.0.1", mute) is None


def test_a_broker_that_does_not_say_where_it_is_watched_has_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "PROBE_TIMEOUT_S", SOON_S)
    with pytest.raises(BrokerStartFailed, match="4711 did not say where its monitoring listens"):
        broker._monitor_url(tmp_path, 4711, 4222)


# --- what is asked of others


async def test_a_broker_that_says_nothing_of_its_health_is_not_waited_for(
    mute: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokerhealth, "HEALTH_TIMEOUT_S", SOON_S)
    async with asyncio.timeout(30):
        assert await brokerhealth.broker_trouble(f"http://127.0.0.1:{mute}") is None


@contextmanager
def deaf() -> Iterator[int]:
    """Give the port of a server whose queue of connections is full: a further one is not taken."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            yield port


def test_a_service_that_takes_no_connection_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "PROBE_TIMEOUT_S", SOON_S)
    with deaf() as port:
        url = f"nats://127.0.0.1:{port}"
        write_private(tmp_path / CONNECTION_FILE, ConnectionFile(url=url, server=url))
        assert locate.answering(tmp_path) is None


def test_a_program_that_does_not_say_its_version_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "VERSION_TIMEOUT_S", SOON_S)
    monkeypatch.setattr(health, "find_nats_server", lambda: script(tmp_path))
    found = health._nats_server()
    assert found.verdict == "problem"
    assert "timed out after 0.02 seconds" in found.found


def test_a_webhook_that_does_not_answer_is_left_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def urlopen(request: object, *, timeout: float) -> object:
        limits.append(timeout)
        raise TimeoutError("timed out")

    monkeypatch.setattr("runfold.webhook.urllib.request.urlopen", urlopen)
    happening = Happening(hook="after_exception", run="digits-1", n=4, k=0, t=0.0, at="", arguments=(), document={})
    with pytest.raises(webhook.WebhookError, match="did not take digits-1/4/0, tried 2 times: timed out"):
        webhook.Webhook("http://receiver/hook", retries_max=1, retry_first_s=0.0).on_event(happening)
    assert limits == [webhook.TIMEOUT_S] * 2


def test_a_callback_that_does_not_return_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released, entered = threading.Event(), threading.Event()

    class Stuck:
        def on_event(self, happening: Happening) -> None:
            entered.set()
            released.wait()

    monkeypatch.setattr(observers, "DRAIN_TIMEOUT_S", SOON_S)
    watching = Watching(Observers([Stuck()], tmp_path), cast("Onlooker", SimpleNamespace()))
    watching.finish(Happening(hook="after_exception", run="x", n=4, k=0, t=0.0, at="", arguments=(), document={}))
    assert entered.wait(30)
    with caplog.at_level(logging.ERROR):
        watching.close()
    released.set()
    watching._thread.join(30)
    assert caplog.messages == ["callbacks have not come to an end within 0.02 s: they are left alone"]
