"""What the fields of a job mean, with their units and what null says; `runfold schema job` prints it with each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from runfold.events.base import Json

FIELDS: Final[dict[str, dict[str, str]]] = {
    "Job": {
        "id": "The run's id; null: made of its name, or its number. The same job again is the same run.",
        "name": "What the run is called; null: after its entry point.",
        "entrypoint": "module:function, path/file.py:function or blob:sha256:<digest>, in working_dir first.",
        "config": "What the training function is called with.",
        "scaling": "How many ranks, and what each needs.",
        "failure": "How many failures of each kind the run may spend.",
        "checkpoint": "Which checkpoints are kept, and how they are uploaded.",
        "timeouts": "Every wait of the run, in seconds.",
        "backend": "What sets up the ranks' communication.",
        "storage_path": "Where checkpoints go: a directory or URL that all nodes reach; null: the pool's own.",
        "storage_name": "Its directory within storage_path; null: its name, or its id. Runs that share it continue.",
        "storage_options": "Given to fsspec. They stand in the log: secrets belong into secret_env.",
        "storage_filesystem": "The blob of a pickled filesystem, as Trainer makes it; null: found by storage_path.",
        "metrics_ranks": "Whose metrics the log keeps: of rank 0, or of all.",
        "validation": "How checkpoints are validated; null: they are not.",
        "hooks": "Callbacks of the user's.",
        "datasets": "The blob of pickled data sets, as Trainer makes it; null: none.",
        "warm_restarts": "Whether ranks of later attempts are forked from a process that has imported their libraries.",
        "pool": "The pool that the run is placed in.",
        "runtime_env": "What a Ray cluster prepares on each node.",
        "env": "Environment variables of the ranks, over those of the supervisor.",
        "secret_env": "Names of variables that are taken from the supervisor's environment and never written down.",
        "working_dir": "Where the ranks run and code is looked for; null: where `runfold up` was started.",
        "labels": "For people: kept in the log, not read.",
        "priority": "Who goes first when slots are short: the higher number.",
        "requested_by": "Who asks, for people.",
    },
    "ScalingConfig": {
        "num_workers": "How many ranks; [min, max] for a run whose size may change.",
        "use_gpu": "Whether each rank has a GPU.",
        "resources_per_worker": 'Amounts by name, as {"CPU": 2}; null: one CPU, or the GPU or TPU that is used.',
        "placement_strategy": "Whether ranks stand together or apart; STRICT_: that, or nowhere.",
        "accelerator_type": "The kind of accelerator that a node must have; null: any.",
        "label_selector": "Labels that a node must have; a list has an item for each rank; null: any node.",
        "use_tpu": "Whether each rank has TPUs.",
        "topology": "The topology of a TPU slice; null: ranks are placed one by one.",
        "elastic_resize_monitor_interval_s": "Seconds that a group keeps its size before another is looked for.",
        "replica_group_size": "So many ranks hold the model whole, and are replaced together; null: all of them do.",
    },
    "FailureConfig": {
        "max_failures": "Failures of ranks or nodes that the run may spend; -1: unlimited.",
        "controller_failure_limit": "Failures to start a group that it may spend; -1: unlimited.",
        "max_preemption_failures": "Attempts that it may lose to nodes taken back; -1: unlimited.",
        "max_hangs": "Attempts that it may lose to ranks that make no progress; -1: unlimited.",
        "relax_collectives_on_preemption": "Of no effect: what ranks do while nodes are taken back is no collective.",
        "preemption_grace_s": "Seconds that the other ranks may run on after the moment at which nodes are taken back.",
        "backoff_s": "Seconds before the first restart; each next one waits twice as long.",
        "backoff_max_s": "Seconds that a restart waits at most.",
        "reset_after_progress": "Steps of progress after which the worker budget is whole again; null: never.",
        "repeat_limit": "So many times the same error at the same step end the run; null: no limit.",
        "node_exclude_after": "So many failures of a node keep later attempts off it; null: it stays in use.",
    },
    "CheckpointConfig": {
        "num_to_keep": "How many committed checkpoints are kept; null: all.",
        "checkpoint_score_attribute": "The metric by which the best are kept; null: the newest are.",
        "checkpoint_score_order": "Whether a higher or a lower score is better.",
        "upload_threads_max": "Files of a report that are uploaded at a time.",
        "upload_chunk_bytes": "Bytes of a piece of a file, of which upload_threads_max are in memory.",
        "upload_queue_max": "Asynchronous uploads that may wait; report waits then.",
        "upload_retries_max": "How often a file is tried again.",
        "upload_failure_limit": "Failed uploads in a row that are passed over; null: 0, asynchronous 3.",
        "verify_on_download": "Whether digests are checked.",
        "resume_doubtful": "Whether a run begins from checkpoints whose files may not belong together.",
    },
    "Timeouts": {
        "beat_every_s": "Seconds between a runner's signs of life.",
        "report_flush_s": "Seconds that reports wait for others to go with.",
        "unreachable_after_s": "Seconds of silence after which it is shown.",
        "lost_after_s": "Seconds of silence, of the supervisor too, after which a node is lost.",
        "lost_alone_after_s": "Seconds of a runner's silence alone after which its node is lost.",
        "start_timeout_s": "Seconds that runners have to start, and TPU slices to be had.",
        "import_timeout_s": "Seconds that ranks have to load the training function.",
        "stop_grace_s": "Seconds that ranks have to end after SIGTERM.",
        "restart_grace_s": "The same, when another attempt waits for their places.",
        "shutdown_deadline_s": "Seconds that the pool has to release a group.",
        "checkpoint_timeout_s": "Seconds after which ranks that hold a checkpoint up are named.",
        "hook_timeout_s": "Seconds that a gate has to answer.",
        "adopt_within_s": "Seconds that a runner waits for another supervisor when its own died.",
        "coalesce_s": "Seconds in which further notices of nodes to be taken back are one with the first.",
        "resize_wait_s": "Seconds that a resize waits for a checkpoint.",
        "collective_timeout_s": "Seconds that a collective has to come about; null: for ever.",
        "progress_timeout_s": "Seconds without a report after which ranks hang; null: never.",
        "final_wait_s": "Seconds that the end of a run waits for validations; null: for ever.",
    },
    "BackendConfig": {
        "kind": "none, torch, torchft, or one of your own: module:name or file.py:name.",
        "options": "Options of the backend, as timeout_s of torch.",
    },
    "ValidationSpec": {
        "entrypoint": "What is called with a checkpoint, and returns metrics.",
        "arguments": "What it is called with beside.",
        "timeout_s": "Seconds that one validation may take; null: for ever.",
        "max_concurrent": "Validations that run at a time.",
        "resources": "Amounts by name that each needs.",
    },
    "HooksConfig": {
        "callbacks": "Entry points of callbacks: module:name or blob:sha256:<digest>.",
        "gates": "Hooks that are asked, and whether one that fails fails the run or is warned of.",
        "in_ranks": "Whether some have hooks for the ranks.",
    },
}
"""Class → field → what it means."""


def described(schema: dict[str, Json]) -> dict[str, Json]:
    """Return a schema whose fields say what they mean, where that is known."""
    definitions = cast("dict[str, dict[str, Json]]", schema.get("$defs", {}))
    for name, fields in FIELDS.items():
        properties = cast("dict[str, dict[str, Json]]", definitions.get(name, {}).get("properties", {}))
        for field, text in fields.items():
            if field in properties:
                properties[field] = {"description": text, **properties[field]}
    return schema
