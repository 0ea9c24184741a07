"""The streams on the broker: created by admin on an empty store, checked everywhere else, never made anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from runfold.events import limits
from runfold.events.nats.api import CONSUMER_NOT_MADE, NS_PER_S, StreamConfig
from runfold.events.nats.errors import ApiRefused, BrokerError, StreamMismatch, StreamsMissing
from runfold.events.nats.files import write_private
from runfold.events.nats.layout import leases_config, stream_configs
from runfold.events.nats.names import JOBS_CONSUMER, Names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from runfold.events.nats.api import Api, StreamInfo

_FREE_FIELDS: Final = frozenset({"max_bytes", "num_replicas"})
"""What an operator may set as they like: how much is kept, and how often."""


class CreatedMarker(msgspec.Struct, frozen=True):
    """What is kept outside the store of the streams' creation: which LOG it was."""

    log_created: str


async def provision(
    api: Api,
    names: Names,
    *,
    storage_max_bytes: int | None = None,
    replicas: int = 1,
    marker: Path | None = None,
) -> None:
    """Create what is not there yet (as admin), on an empty store only; an existing one is checked.

    LOG is created first, so that a creation cut short is known by an empty LOG and finished the next time.
    `marker` is a file outside the store that says that the streams were once created.

    Raises:
        StreamMismatch: a stream exists with another configuration; nothing is changed.
        StreamsMissing: a stream is gone that held, or stood beside, entries of runs; nothing is created.
    """
    configs = stream_configs(names, storage_max_bytes=storage_max_bytes, replicas=replicas)
    found = {config.name: await api.stream_info(config.name) for config in configs}
    marked = _read_marker(marker)
    _refuse_losses(names, found, marked)
    differences = _differences(configs, found)
    if differences:
        raise StreamMismatch(differences)
    for config in configs:
        if found[config.name] is None:
            await api.create_stream(config)
    await ensure_leases(api, names)
    await _ensure_jobs_consumer(api, names)
    log = await api.stream_info(names.log)
    if marker is not None and log is not None and marked != CreatedMarker(log_created=log.created):
        write_private(marker, CreatedMarker(log_created=log.created))


async def check(api: Api, names: Names) -> None:
    """See that every stream is there and configured as this version needs.

    Raises:
        StreamMismatch: the differences, field by field.
        StreamsMissing: which are not there.
    """
    configs = stream_configs(names)
    found = {config.name: await api.stream_info(config.name) for config in configs}
    missing = [name for name, info in found.items() if info is None]
    if missing:
        raise StreamsMissing(missing, "the broker was not prepared for runfold, or lost them")
    differences = _differences(configs, found)
    if differences:
        raise StreamMismatch(differences)


async def ensure_leases(api: Api, names: Names) -> None:
    """Create the lease bucket when it is not there: it lives in memory and does not survive the broker."""
    config = leases_config(names)
    info = await api.stream_info(config.name)
    if info is None:
        info = await api.create_stream(config)
    differences = _differences([config], {config.name: info})
    if differences:
        raise StreamMismatch(differences)


async def _ensure_jobs_consumer(api: Api, names: Names) -> None:
    config = {
        "durable_name": JOBS_CONSUMER,
        "ack_policy": "explicit",
        "ack_wait": int(limits.JOBS_ACK_WAIT_S * NS_PER_S),
        "max_deliver": -1,
    }
    try:
        await api.create_consumer(names.jobs, JOBS_CONSUMER, config)
    except ApiRefused as error:
        # It is written anew each time, for which a full disk has no room; the one that stands there is as good.
        if error.err_code != CONSUMER_NOT_MADE or not await api.has_consumer(names.jobs, JOBS_CONSUMER):
            raise


def _refuse_losses(names: Names, found: Mapping[str, StreamInfo | None], marker: CreatedMarker | None) -> None:
    missing = [name for name, info in found.items() if info is None]
    log = found[names.log]
    if log is None:
        if len(missing) < len(found):
            raise StreamsMissing([names.log], "other streams of this namespace are there")
        if marker is not None:
            raise StreamsMissing(missing, f"they were created on {marker.log_created} and the store is empty now")
        return
    if marker is not None and marker.log_created != log.created:
        raise StreamsMissing(
            [names.log], f"the one there was created on {log.created}, this directory's on {marker.log_created}"
        )
    if missing and (marker is not None or log.state.last_seq > 0):
        raise StreamsMissing(missing, "they stood beside the log of runs")


def _read_marker(marker: Path | None) -> CreatedMarker | None:
    if marker is None or not marker.exists():
        return None
    try:
        return msgspec.json.decode(marker.read_bytes(), type=CreatedMarker)
    except msgspec.DecodeError as error:
        raise BrokerError(
            f"{marker} is damaged ({error}); nothing was created. It says which log of runs belongs here: put it back "
            f"from a copy, or remove it to take the log that is in the store for the right one"
        ) from error


def _differences(configs: list[StreamConfig], found: Mapping[str, StreamInfo | None]) -> list[str]:
    lines: list[str] = []
    for wanted in configs:
        info = found.get(wanted.name)
        if info is not None:
            lines += _stream_differences(wanted, info.config)
    return lines


def _stream_differences(wanted: StreamConfig, there: StreamConfig) -> list[str]:
    lines: list[str] = []
    for field in StreamConfig.__struct_fields__:
        expected, actual = getattr(wanted, field), getattr(there, field)
        if field == "subjects":
            expected, actual = sorted(expected), sorted(actual)
        if field in _FREE_FIELDS or expected == actual or _left_to_server(field, expected, there):
            continue
        lines.append(f"{wanted.name}: {field} is {actual!r}, needed {expected!r}")
    if there.max_bytes <= 0:
        lines.append(f"{wanted.name}: max_bytes is not set; without it a full disk stops the broker")
    return lines


def _left_to_server(field: str, expected: object, there: StreamConfig) -> bool:
    """Say whether a difference comes from a default that the server fills in."""
    if field == "duplicate_window":
        return expected == 0
    # A replicated stream cannot have it.
    return field == "persist_mode" and there.num_replicas > 1
