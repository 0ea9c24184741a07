"""Who may say and hear what: the one source of the broker's users, embedded or deployed.

These rights prevent accidents and keep each part to its business. They do not separate hostile tenants:
all four users share one account, and who may read streams can have the server send what is stored to any
subject. Give tenants that do not trust each other a broker, or an account and namespace, each.
"""

from __future__ import annotations

from dataclasses import dataclass

from runfold.events.nats.names import JOBS_CONSUMER, Names, Role


@dataclass(frozen=True, slots=True)
class Rights:
    """The subjects a user may publish and subscribe to; denial wins."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    publish_deny: tuple[str, ...] = ()


def rights(role: Role, names: Names) -> Rights | None:
    """Return what a user may do; None is everything (admin)."""
    match role:
        case Role.ADMIN:
            return None
        case Role.CONTROLLER:
            return _controller(names)
        case Role.WORKER:
            return _worker(names)
        case Role.CLIENT:
            return _client(names)


def _reading(*streams: str) -> tuple[str, ...]:
    """The API subjects needed to read streams: information, single messages, ephemeral consumers."""
    each = [
        (
            f"$JS.API.STREAM.INFO.{stream}",
            f"$JS.API.STREAM.MSG.GET.{stream}",
            f"$JS.API.DIRECT.GET.{stream}",
            f"$JS.API.DIRECT.GET.{stream}.>",
            f"$JS.API.CONSUMER.CREATE.{stream}.>",
            f"$JS.API.CONSUMER.INFO.{stream}.*",
            f"$JS.API.CONSUMER.DELETE.{stream}.*",
        )
        for stream in streams
    ]
    return ("$JS.API.INFO", *(subject for subjects in each for subject in subjects), "$JS.FC.>")


def _controller(names: Names) -> Rights:
    buckets = (names.status_bucket, names.leases_bucket, names.owners_bucket, names.snapshots_bucket)
    leases = names.stream_of(names.leases_bucket)
    prefix = names.namespace
    return Rights(
        publish=(
            f"{prefix}.run.*.log.*",
            f"{prefix}.run.*.assignment",
            f"{prefix}.run.*.folded",
            f"{prefix}.jobs.refused.*",
            *(f"$KV.{bucket}.>" for bucket in buckets),
            *_reading(
                names.log,
                names.inbox,
                names.assignments,
                names.refusals,
                names.blobs,
                *(names.stream_of(bucket) for bucket in buckets),
            ),
            f"$JS.API.STREAM.INFO.{names.jobs}",
            f"$JS.API.CONSUMER.INFO.{names.jobs}.{JOBS_CONSUMER}",
            f"$JS.API.CONSUMER.MSG.NEXT.{names.jobs}.{JOBS_CONSUMER}",
            f"$JS.ACK.{names.jobs}.{JOBS_CONSUMER}.>",
            # What is folded is removed from the inbox, and a lease that is handed over from its bucket; the bucket
            # lives in memory and is made anew.
            f"$JS.API.STREAM.PURGE.{names.inbox}",
            f"$JS.API.STREAM.PURGE.{leases}",
            f"$JS.API.STREAM.CREATE.{leases}",
        ),
        subscribe=(f"{Role.CONTROLLER.inbox}.>", f"{prefix}.run.*.beat.>", f"{prefix}.pool.*.beat"),
    )


def _worker(names: Names) -> Rights:
    prefix = names.namespace
    return Rights(
        publish=(
            f"{prefix}.run.*.fact.>",
            f"{prefix}.run.*.beat.>",
            f"{prefix}.run.*.request.join",
            f"{prefix}.run.*.out.*.*",
            f"{prefix}.pool.*.beat",
            f"{prefix}.pool.*.answer",
            f"$O.{names.blobs_bucket}.>",
            *_reading(names.assignments, names.blobs),
            # Ranks ask which checkpoints there are.
            f"$JS.API.STREAM.MSG.GET.{names.stream_of(names.status_bucket)}",
        ),
        subscribe=(f"{Role.WORKER.inbox}.>", f"{prefix}.run.*.folded", f"{prefix}.pool.*.request.*"),
    )


def _client(names: Names) -> Rights:
    prefix = names.namespace
    buckets = (names.status_bucket, names.leases_bucket, names.owners_bucket, names.snapshots_bucket)
    return Rights(
        publish=(
            f"{prefix}.jobs.submit",
            f"{prefix}.run.*.request.*",
            f"{prefix}.pool.*.request.*",
            f"$O.{names.blobs_bucket}.>",
            *_reading(
                names.log,
                names.inbox,
                names.assignments,
                names.output,
                names.refusals,
                names.blobs,
                *(names.stream_of(bucket) for bucket in buckets),
            ),
            f"$JS.API.STREAM.INFO.{names.jobs}",
            f"$JS.API.STREAM.MSG.GET.{names.jobs}",
            f"$JS.API.CONSUMER.INFO.{names.jobs}.{JOBS_CONSUMER}",
            "$JS.API.STREAM.NAMES",
            "$JS.API.STREAM.LIST",
            "$JS.API.CONSUMER.NAMES.*",
            "$JS.API.CONSUMER.LIST.*",
            # What the `nats` program uses to page through a stream.
            *(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*" for stream in (names.log, names.inbox, names.output)),
        ),
        publish_deny=(f"{prefix}.run.*.request.join",),
        subscribe=(f"{Role.CLIENT.inbox}.>", f"{prefix}.>"),
    )
