"""The webhook: signed, tried again, with a key that never changes."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import runfold
from runfold.errors import UsageError
from runfold.events.fold import fold
from runfold.happenings import Happening
from runfold.observers import Observers
from runfold.webhook import RETRIES_MAX, WebhookError, is_signed
from support.runs import Run

SECRET = "squeamish ossifrage"


class Receiver:
    """A server that answers with these codes, one after another, then 204."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.bodies: list[bytes] = []
        self.keys: list[str] = []
        self.signatures: list[str] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.keys.append(self.headers["Idempotency-Key"])
                receiver.signatures.append(self.headers.get("Runfold-Signature", ""))
                self.send_response(receiver.codes.pop(0) if receiver.codes else 204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"


@contextmanager
def receiving(*codes: int) -> Iterator[Receiver]:
    receiver = Receiver(*codes)
    thread = threading.Thread(target=receiver.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()
        thread.join()


def happening(hook: str = "after_exception") -> Happening:
    return Happening(hook=hook, run="digits", n=7, k=1, t=1.5, at="2026-11-30T05:48:28Z", document={"rank": 1})


def hook(receiver: Receiver) -> runfold.Webhook:
    return runfold.Webhook(receiver.url, SECRET, retry_first_s=0.001, retries_max=2)


def test_what_happens_is_posted_signed_and_named() -> None:
    with receiving() as receiver:
        hook(receiver).on_event(happening())
        hook(receiver).on_event(happening("after_worker_group_start"))
    assert json.loads(receiver.bodies[0]) == {
        "v": 1,
        "event": "after_exception",
        "run": "digits",
        "n": 7,
        "k": 1,
        "t": 1.5,
        "at": "2026-11-30T05:48:28Z",
        "data": {"rank": 1},
    }
    assert receiver.keys == ["digits/7/1"], "the other is none of its events"
    body, header = receiver.bodies[0], receiver.signatures[0]
    assert is_signed(SECRET, body, header, now_s=time.time())
    assert not is_signed(SECRET, body + b" ", header, now_s=time.time())
    assert not is_signed("another", body, header, now_s=time.time())
    assert not is_signed(SECRET, body, header, now_s=time.time() + 1000)
    assert not is_signed(SECRET, body, "t=x,v1=y", now_s=0)


def test_what_was_not_taken_is_posted_again_with_the_same_key() -> None:
    with receiving(503, 429) as receiver:
        hook(receiver).on_event(happening())
    assert receiver.keys == ["digits/7/1"] * 3
    assert len(set(receiver.bodies)) == 1


def test_what_is_never_taken_raises_after_all_tries_and_what_is_refused_at_once() -> None:
    with receiving(500, 500, 500) as receiver, pytest.raises(WebhookError, match="tried 3 times: 500"):
        hook(receiver).on_event(happening())
    with receiving(400) as refusing, pytest.raises(WebhookError, match="refused digits/7/1: 400"):
        hook(refusing).on_event(happening())
    assert len(refusing.keys) == 1
    with socket.socket() as nobody:  # has the port, so that no other takes it, and does not listen
        nobody.bind(("127.0.0.1", 0))
        unheard_of = runfold.Webhook(
            f"http://127.0.0.1:{nobody.getsockname()[1]}/hook", SECRET, retry_first_s=0.001, retries_max=2
        )
        with pytest.raises(WebhookError, match="tried 3 times") as unheard:
            unheard_of.on_event(happening())
    assert "127.0.0.1" in str(unheard.value)
    assert "/hook" not in str(unheard.value), "its path may be a secret"


def test_it_can_be_made_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNFOLD_WEBHOOK_URL", raising=False)
    with pytest.raises(UsageError, match="http"):
        runfold.Webhook()
    with pytest.raises(UsageError, match="file:"):
        runfold.Webhook("file:///etc/passwd")
    with receiving() as receiver:
        monkeypatch.setenv("RUNFOLD_WEBHOOK_URL", receiver.url)
        runfold.Webhook().on_event(happening())
    assert receiver.signatures == [""]


def test_a_run_is_posted_in_order_with_keys_of_its_own(tmp_path: Path) -> None:
    run = Run(1).running()
    with receiving() as receiver:
        observers = Observers([hook(receiver)], tmp_path)
        state = None
        for entry in run.entries:
            state = fold(state, entry)
            observers.tell(entry, state)
    told = [json.loads(body) for body in receiver.bodies]
    assert [one["data"].get("current") for one in told] == [None, "scheduling", "running"]
    assert len(set(receiver.keys)) == 3
    assert observers.failures == {}


def test_a_webhook_is_tried_so_often_and_then_it_is_said() -> None:
    with receiving(*[503] * (RETRIES_MAX + 2)) as receiver:
        hook = runfold.Webhook(receiver.url, retry_first_s=0.001)
        with pytest.raises(WebhookError, match=r"did not take digits/7/1, tried 6 times: 503"):
            hook.on_event(happening())
        assert len(receiver.keys) == RETRIES_MAX + 1
        hook.on_event(happening())
    assert set(receiver.keys) == {"digits/7/1"}
