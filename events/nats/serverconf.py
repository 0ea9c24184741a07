"""The text of nats-server configuration files, rendered from one source for the embedded and deployed broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from runfold.events.nats.names import Names, Role
from runfold.events.nats.permissions import rights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

MAX_PAYLOAD_BYTES: Final = 1024 * 1024
MAX_MEMORY_BYTES: Final = 256 * 1024 * 1024
LOG_FILE_MAX_BYTES: Final = 8 * 1024 * 1024
LOG_FILES_MAX_COUNT: Final = 4
STREAMS_MAX_COUNT: Final = 64
CONSUMERS_MAX_COUNT: Final = 16_384


def quoted(text: str) -> str:
    """Return a text as a quoted string of the configuration format."""
    return json.dumps(text, ensure_ascii=False)


def accounts(names: Names, password: Callable[[Role], str], *, max_file_bytes: int | None = None) -> str:
    """Render the account and its four users; `password` gives the text to stand for each user's password."""
    file_limit = f"max_file: {max_file_bytes}, " if max_file_bytes is not None else ""
    users = "\n".join(_user(role, names, password(role)) for role in Role)
    return (
        f"accounts {{\n"
        f"  {names.account}: {{\n"
        f"    jetstream: {{ {file_limit}max_streams: {STREAMS_MAX_COUNT}, max_consumers: {CONSUMERS_MAX_COUNT}, "
        f"max_bytes_required: true }}\n"
        f"    users: [\n{users}\n    ]\n"
        f"  }}\n"
        f"}}\n"
    )


def _user(role: Role, names: Names, password: str) -> str:
    allowed = rights(role, names)
    if allowed is None:
        return f"      {{ user: {role.value}, password: {password} }}"
    deny = f", deny: {_subjects(allowed.publish_deny)}" if allowed.publish_deny else ""
    return (
        f"      {{ user: {role.value}, password: {password}, permissions: {{\n"
        f"        publish: {{ allow: {_subjects(allowed.publish)}{deny} }}\n"
        f"        subscribe: {{ allow: {_subjects(allowed.subscribe)} }}\n"
        f"      }} }}"
    )


def _subjects(subjects: Iterable[str]) -> str:
    lines = ",\n".join(f"          {quoted(subject)}" for subject in subjects)
    return f"[\n{lines}\n        ]"


def embedded(
    *, name: str, names: Names, host: str, port: int, folder: Path, max_file_bytes: int, password: Callable[[Role], str]
) -> str:
    """Render the embedded broker's whole configuration: one node, every message synced; monitoring on loopback."""
    return (
        f"server_name: {quoted(name)}\n"
        f"listen: {quoted(f'{host}:{port}')}\n"
        f'http: "127.0.0.1:-1"\n'
        f"ports_file_dir: {quoted(str(folder))}\n"
        f"log_file: {quoted(str(folder / 'nats-server.log'))}\n"
        f"log_size_limit: {LOG_FILE_MAX_BYTES}\n"
        f"log_max_num: {LOG_FILES_MAX_COUNT}\n"
        f"max_payload: {MAX_PAYLOAD_BYTES}\n"
        f"jetstream {{\n"
        f"  store_dir: {quoted(str(folder / 'store'))}\n"
        f"  max_mem: {MAX_MEMORY_BYTES}\n"
        f"  max_file: {max_file_bytes}\n"
        f"  # Acknowledged is on the disk: without it a power cut forgets minutes of acknowledged entries.\n"
        f"  sync_interval: always\n"
        f"}}\n"
        f"{accounts(names, password)}"
    )


def deployed_accounts(names: Names) -> str:
    """Render `deploy/permissions.conf`: the same users and rights, their passwords taken from the environment."""
    return (
        "# Rendered by `python -m runfold.events.nats permissions`; a test keeps it so. The passwords come from the\n"
        "# environment of nats-server (letters first: the configuration would read digits as a number).\n"
        + accounts(names, lambda role: f"$RUNFOLD_{role.value.upper()}_PASSWORD")
    )
