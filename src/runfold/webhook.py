"""A webhook: posts what happens in a run to a URL, signed, tried again, each thing with an id that never changes."""

from __future__ import annotations

import hashlib
import hmac
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from runfold.config import read_settings
from runfold.errors import UsageError
from runfold.events.values import pack
from runfold.workers.callbacks import Callback

if TYPE_CHECKING:
    from runfold.happenings import Happening

DEFAULT_EVENTS: Final = (
    "after_controller_start",
    "after_controller_state_update",
    "after_exception",
    "after_controller_finish",
)
TIMEOUT_S: Final = 10.0
RETRIES_MAX: Final = 5
RETRY_FIRST_S: Final = 0.5
RETRY_AT_MOST_S: Final = 30.0
SIGNATURE_HEADER: Final = "Runfold-Signature"
KEY_HEADER: Final = "Idempotency-Key"
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500


class WebhookError(Exception):
    """What was to be posted was not taken."""


class Webhook(Callback):
    """Posts JSON to `url` for each of `events` (names of observers' hooks).

    `Runfold-Signature: t=<seconds since 1970>,v1=<hex>` is the HMAC-SHA256 of `<t>.<body>` under `secret`.
    `Idempotency-Key: <run>/<entry>/<place>` is the same whenever and by whomever the same thing is told, so that a
    receiver can pass over repeats. No answer, 429 and 5xx are tried again, each time later. Without `url` it takes
    RUNFOLD_WEBHOOK_URL and RUNFOLD_WEBHOOK_SECRET.
    """

    def __init__(
        self,
        url: str | None = None,
        secret: str | bytes | None = None,
        *,
        events: Sequence[str] = DEFAULT_EVENTS,
        timeout_s: float = TIMEOUT_S,
        retries_max: int = RETRIES_MAX,
        retry_first_s: float = RETRY_FIRST_S,
    ) -> None:
        settings = read_settings()
        url = url or settings.webhook_url
        if url is None or not url.startswith(("http://", "https://")):
            raise UsageError(f"webhook: needs a URL that begins with http:// or https://, not {url!r}")
        secret = secret if secret is not None else settings.webhook_secret
        self._url = url
        # Who knows the whole of it may post there: some services keep their secret in its path.
        self._shown = f"the webhook at {urlsplit(url).hostname or '?'}"
        self._secret = secret.encode() if isinstance(secret, str) else secret
        self._events = frozenset(events)
        self._timeout_s = timeout_s
        self._retries_max = retries_max
        self._retry_first_s = retry_first_s

    def on_event(self, happening: Happening) -> None:
        """Post it, if it is one of the events; raise `WebhookError` when it was not taken."""
        if happening.hook not in self._events:
            return
        body = msgspec.json.encode(
            {
                "v": 1,
                "event": happening.hook,
                "run": happening.run,
                "n": happening.n,
                "k": happening.k,
                "t": happening.t,
                "at": happening.at,
                "data": pack(happening.document, "data"),
            }
        )
        key = f"{happening.run}/{happening.n}/{happening.k}"
        why = ""
        for tried in range(self._retries_max + 1):
            try:
                self._post(body, key)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code != _TOO_MANY and error.code < _SERVER_ERROR:
                    raise WebhookError(f"{self._shown} refused {key}: {error.code} {error.reason}") from None
                why = f"{error.code} {error.reason}"
            except OSError as error:
                why = str(error)
            else:
                return
            if tried < self._retries_max:
                time.sleep(min(self._retry_first_s * 2**tried, RETRY_AT_MOST_S))
        raise WebhookError(f"{self._shown} did not take {key}, tried {self._retries_max + 1} times: {why}")

    def _post(self, body: bytes, key: str) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "runfold", KEY_HEADER: key}
        if self._secret is not None:
            headers[SIGNATURE_HEADER] = signature(self._secret, body, int(time.time()))
        request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")  # noqa: S310  # http(s) only, checked when it was made
        with urllib.request.urlopen(request, timeout=self._timeout_s):  # noqa: S310  # as above
            pass


def signature(secret: bytes, body: bytes, at_s: int) -> str:
    """Return what `Runfold-Signature` says of a body posted at a time."""
    digest = hmac.new(secret, f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


def is_signed(secret: str | bytes, body: bytes, header: str, *, now_s: float, tolerance_s: float = 300.0) -> bool:
    """Whether a posted body was signed with this secret, not longer ago than `tolerance_s`; for receivers."""
    at = header.partition(",")[0].removeprefix("t=")
    if not at.isdigit() or abs(now_s - int(at)) > tolerance_s:
        return False
    key = secret.encode() if isinstance(secret, str) else secret
    return hmac.compare_digest(signature(key, body, int(at)), header)
