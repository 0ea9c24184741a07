"""Every stream and bucket, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from runfold.events import limits
from runfold.events.nats.api import NS_PER_S, StreamConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runfold.events.nats.names import Names

GIB: Final = 1024**3
HEADERS_MAX_BYTES: Final = 4 * 1024
"""Room for the headers, which count into a stream's `max_msg_size`."""
DEDUPE_S: Final = 120
OUTPUT_BATCHES_KEPT_MAX: Final = 1024
LOG_MAX_BYTES: Final = 4 * GIB
JOBS_MAX_BYTES: Final = GIB // 4
INBOX_MAX_BYTES: Final = 2 * GIB
ASSIGNMENTS_MAX_BYTES: Final = GIB // 2
OWNERS_MAX_BYTES: Final = GIB // 16
BLOBS_MAX_BYTES: Final = 2 * GIB
REFUSALS_MAX_BYTES: Final = GIB // 16
OUTPUT_MAX_BYTES: Final = 2 * GIB
STATUS_MAX_BYTES: Final = GIB // 2
SNAPSHOTS_MAX_BYTES: Final = GIB // 2
LEASES_MAX_BYTES: Final = 8 * 1024**2
# The server counts what streams may hold against its limit when they are made.
STORAGE_USED_RATIO: Final = 0.9


def stream_configs(names: Names, *, storage_max_bytes: int | None = None, replicas: int = 1) -> list[StreamConfig]:
    """Return the configuration of every stream, LOG first; the lease bucket is apart.

    With `storage_max_bytes` the streams' sizes are scaled down so that all of them fit in it together.
    """
    configs = [*_spoken(names, replicas), *_kept(names, replicas), *_dropped(names, replicas)]
    if storage_max_bytes is None:
        return configs
    share = min(1.0, storage_max_bytes * STORAGE_USED_RATIO / sum(config.max_bytes for config in configs))
    return [msgspec.structs.replace(config, max_bytes=int(config.max_bytes * share)) for config in configs]


def leases_config(names: Names) -> StreamConfig:
    """Return the configuration of the lease bucket, the one stream that a controller may create."""
    shared = {"discard": "new", "storage": "memory", "allow_msg_ttl": True}
    return _bucket(names, names.leases_bucket, LEASES_MAX_BYTES, shared)


def _spoken(names: Names, replicas: int) -> list[StreamConfig]:
    """What is said and decided: synced, and refused loudly when there is no room."""
    prefix = f"{names.namespace}.run.*"
    refuse = {"discard": "new", "num_replicas": replicas}
    return [
        # Not `deny_purge`, which can never be undone: the right to purge is withheld by permissions.
        _stream(
            names.log,
            (f"{prefix}.log.*",),
            LOG_MAX_BYTES,
            refuse,
            deny_delete=True,
            allow_direct=True,
            duplicate_window=DEDUPE_S * NS_PER_S,
            max_msg_size=limits.ENTRY_MAX_BYTES + HEADERS_MAX_BYTES,
        ),
        _stream(
            names.jobs,
            (names.subjects.jobs,),
            JOBS_MAX_BYTES,
            refuse,
            retention="workqueue",
            duplicate_window=DEDUPE_S * NS_PER_S,
            max_msg_size=limits.JOB_MAX_BYTES + HEADERS_MAX_BYTES,
        ),
        _stream(
            names.inbox,
            (f"{prefix}.fact.>", f"{prefix}.request.*"),
            INBOX_MAX_BYTES,
            refuse,
            max_age=int(limits.INBOX_AGE_MAX_S) * NS_PER_S,
            max_msg_size=limits.FACT_MESSAGE_MAX_BYTES + HEADERS_MAX_BYTES,
        ),
    ]


def _kept(names: Names, replicas: int) -> list[StreamConfig]:
    """Last values and blobs that runs depend on: synced, and refused loudly when there is no room."""
    refuse = {"discard": "new", "num_replicas": replicas}
    return [
        _stream(
            names.assignments,
            (names.subjects.assignment("*"),),
            ASSIGNMENTS_MAX_BYTES,
            refuse,
            max_msgs_per_subject=1,
            max_msg_size=limits.ASSIGNMENT_MAX_BYTES + HEADERS_MAX_BYTES,
        ),
        _bucket(names, names.owners_bucket, OWNERS_MAX_BYTES, refuse),
        _stream(
            names.blobs,
            (f"$O.{names.blobs_bucket}.C.>", f"$O.{names.blobs_bucket}.M.>"),
            BLOBS_MAX_BYTES,
            refuse,
            allow_rollup_hdrs=True,
            allow_direct=True,
        ),
    ]


def _dropped(names: Names, replicas: int) -> list[StreamConfig]:
    """What drops its oldest. All but the refusals can be rebuilt, or missed, and does not wait for the disk."""
    forget = {"discard": "old", "num_replicas": replicas}
    # Only an unreplicated stream can be told so.
    unsynced = {**forget, "persist_mode": "async"} if replicas == 1 else forget
    return [
        _stream(
            names.refusals,
            (names.subjects.refused("*"),),
            REFUSALS_MAX_BYTES,
            forget,
            max_age=int(limits.REFUSALS_AGE_MAX_S) * NS_PER_S,
            allow_direct=True,
        ),
        _stream(
            names.output,
            (f"{names.namespace}.run.*.out.*.*",),
            OUTPUT_MAX_BYTES,
            unsynced,
            max_msgs_per_subject=OUTPUT_BATCHES_KEPT_MAX,
            max_msg_size=limits.OUTPUT_BATCH_MAX_BYTES + HEADERS_MAX_BYTES,
            allow_direct=True,
        ),
        _bucket(
            names,
            names.status_bucket,
            STATUS_MAX_BYTES,
            unsynced,
            max_msg_size=limits.STATUS_MAX_BYTES + HEADERS_MAX_BYTES,
        ),
        _bucket(names, names.snapshots_bucket, SNAPSHOTS_MAX_BYTES, unsynced),
    ]


def _stream(
    name: str, subjects: tuple[str, ...], max_bytes: int, shared: Mapping[str, object], **options: object
) -> StreamConfig:
    fields = {"name": name, "subjects": subjects, "max_bytes": max_bytes, **shared, **options}
    return msgspec.convert(fields, StreamConfig)


def _bucket(names: Names, bucket: str, max_bytes: int, shared: Mapping[str, object], **options: object) -> StreamConfig:
    """Return the configuration of a key-value bucket that keeps one value a key."""
    return _stream(
        names.stream_of(bucket),
        (f"$KV.{bucket}.>",),
        max_bytes,
        shared,
        max_msgs_per_subject=1,
        allow_rollup_hdrs=True,
        deny_delete=True,
        **options,
    )
