"""What a controller process is told: read once, from its arguments, its data directory and its environment."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from runfold.events.nats.errors import BrokerUnreachable
from runfold.events.nats.files import read_connection
from runfold.events.nats.names import Role
from runfold.events.subjects import DEFAULT_NAMESPACE


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """`host` is the first part of the seat (the machine's name unless told otherwise).

    `peer_variables` are the names of RAY_TRAIN_* variables set here, which nobody reads: runs are warned of them.
    """

    data_dir: Path
    url: str
    namespace: str = DEFAULT_NAMESPACE
    host: str = ""
    peer_variables: tuple[str, ...] = ()


def read_config(data_dir: Path, *, url: str | None = None, host: str | None = None) -> ControllerConfig:
    """Return the configuration of a controller of a data directory; `connection.json` says where the broker is.

    Raises `BrokerUnreachable` when neither a url nor that file is there.
    """
    connection = read_connection(data_dir)
    if url is None and connection is None:
        raise BrokerUnreachable(f"no service was ever started in {data_dir}: give a url, or start it with `runfold up`")
    return ControllerConfig(
        data_dir=data_dir,
        url=url if url is not None else connection.url_of(Role.CONTROLLER) if connection is not None else "",
        namespace=connection.namespace if connection is not None else DEFAULT_NAMESPACE,
        host=host if host is not None else socket.gethostname(),
        peer_variables=tuple(sorted(name for name in os.environ if name.startswith("RAY_TRAIN_"))),
    )
