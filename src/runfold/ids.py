"""New ids: of runs, made from a name, and of requests."""

from __future__ import annotations

import secrets
from typing import Final

ID_CHARS_MAX: Final = 63
SUFFIX_CHARS: Final = 5
_ALPHABET: Final = "23456789abcdefghjkmnpqrstuvwxyz"


def new_run_id(name: str) -> str:
    """Return a run id of a name: what is legal of it, and a short suffix that no other run has."""
    legal = "".join(c if c.isascii() and (c.isalnum() or c == "-") else "-" for c in name.lower()).strip("-") or "run"
    suffix = "".join(secrets.choice(_ALPHABET) for _ in range(SUFFIX_CHARS))
    return f"{legal[: ID_CHARS_MAX - 1 - SUFFIX_CHARS].rstrip('-')}-{suffix}"


def new_request_id() -> str:
    """Return an id for a request."""
    return secrets.token_hex(8)
