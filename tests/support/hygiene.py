"""What a kept log may not tell: paths, addresses and names of the machine that it was recorded on."""

from __future__ import annotations

import json
import re
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ABSOLUTE_PATH = re.compile(r"(?:^|[\s\"'(=:,])(?:/[\w.-]+/|~/|[A-Za-z]:\\)")
ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
NODES = ("local", "local-0", "local-1", "")


def traces_of_the_machine(lines: Iterable[bytes]) -> list[str]:
    """Return every text of a log that tells of a machine."""
    found: list[str] = []
    host = re.compile(rf"\b{re.escape(socket.gethostname())}\b")
    for line in lines:
        document = json.loads(line)
        for text in strings(document):
            if ABSOLUTE_PATH.search(text) or (host.search(text) and socket.gethostname() not in NODES):
                found.append(text)
            found += [address for address in ADDRESS.findall(text) if address != "127.0.0.1"]
        found += [str(node) for node in values(document, "node") if node not in NODES]
        found += [str(by) for by in values(document, "by") if by not in ("local-0", "demo", "")]
        found += [str(user) for user in values(document, "requested_by") if user != "demo"]
    return found


def strings(value: object) -> Iterator[str]:
    """Yield every text in a JSON value, names of fields too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def values(value: object, name: str) -> Iterator[object]:
    """Yield every value of a field of this name, at any depth."""
    if isinstance(value, dict):
        if name in value:
            yield value[name]
        for item in value.values():
            yield from values(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from values(item, name)
