"""Every limit that is not a setting of a job: its name, its unit, its value.

Reaching one is an error that names it; nothing is lost by it.
"""

from __future__ import annotations

from typing import Final

JOB_MAX_BYTES: Final = 256 * 1024
FACT_MESSAGE_MAX_BYTES: Final = 256 * 1024
ENTRY_MAX_BYTES: Final = 768 * 1024
ASSIGNMENT_MAX_BYTES: Final = 768 * 1024
STATUS_MAX_BYTES: Final = 768 * 1024
REFUSAL_EXCERPT_MAX_BYTES: Final = 1024
REFUSAL_PATH_MAX_CHARS: Final = 256
REFUSAL_REASON_MAX_CHARS: Final = 1024
REQUEST_MAX_BYTES: Final = 16 * 1024
REQUEST_DEPTH_MAX_COUNT: Final = 64
"""Levels of objects and lists in a request, a job included; each value in it may have `VALUE_DEPTH_MAX_COUNT`."""
OUTPUT_BATCH_MAX_BYTES: Final = 64 * 1024
OUTPUT_BATCHES_PER_S_MAX: Final = 4
OUTPUT_TAIL_MAX_BYTES: Final = 1024 * 1024
LAST_LINES_MAX_BYTES: Final = 4 * 1024
COLLECTIVE_MAX_BYTES: Final = 64 * 1024 * 1024
SPOOL_MAX_BYTES: Final = 64 * 1024 * 1024
ERROR_INLINE_MAX_BYTES: Final = 16 * 1024
ERRORS_INLINE_MAX_COUNT: Final = 16
VALUE_DEPTH_MAX_COUNT: Final = 32
VALUE_INLINE_MAX_BYTES: Final = 64 * 1024
WORLD_SIZE_MAX: Final = 4096
REQUEST_IDS_MAX: Final = 256
CHECKPOINTS_TRACKED_MAX_COUNT: Final = 1000
"""Committed checkpoints that the state knows of; what is beyond stays in the storage and in the log."""
CHECKPOINTS_GATHERING_MAX_COUNT: Final = 64
"""Checkpoints that wait for ranks; the oldest beyond is given up."""
CHECKPOINTS_LEFT_MAX_COUNT: Final = 256
MARKS_MAX_COUNT: Final = 64
"""Reports of which it is remembered where the ranks were in their data."""
WARNINGS_MAX_COUNT: Final = 32
HOOKS_DUE_MAX_COUNT: Final = 64
"""Questions to gates that the run does not wait for, not asked yet; the oldest beyond is not asked."""
SOURCES_MAX_COUNT: Final = 8192
REPLACED_BOOTS_MAX_COUNT: Final = 8
PREEMPTION_WITHIN_S: Final = 120.0
PREEMPTION_WITHIN_MAX_S: Final = 30 * 86_400.0
"""How soon a node is taken back when a notice does not say."""
AWAY_MAX_COUNT: Final = 1024
"""Nodes that were taken back and are stayed off; the oldest beyond are forgotten."""
LATE_EVIDENCE_MAX: Final = 64
LATE_EVIDENCE_S: Final = 300.0
INPUTS_PER_TURN_MAX: Final = 256
METRICS_LINGER_S: Final = 0.5
REQUEST_TIMEOUT_S: Final = 10.0
APPEND_TIMEOUT_S: Final = 2.0
RESEND_AFTER_S: Final = 5.0
FOLDED_EVERY_S: Final = 1.0
STATUS_EVERY_S: Final = 0.2
LEASE_TTL_S: Final = 1.0
TAKEOVER_GAP_MAX_S: Final = 60.0
SNAPSHOT_EVERY_COUNT: Final = 10_000
SNAPSHOT_TAIL_EVERY_COUNT: Final = 1000
SNAPSHOT_MAX_BYTES: Final = 768 * 1024
JOBS_ACK_WAIT_S: Final = 5.0
JOBS_PULL_EXPIRES_S: Final = 1.0
INBOX_AGE_MAX_S: Final = 86_400.0
REFUSALS_AGE_MAX_S: Final = 30 * 86_400.0
STARTUP_BACKOFF_S: Final = 1.0
STARTUP_BACKOFF_MAX_S: Final = 60.0
ARCHIVE_SEGMENT_MAX_BYTES: Final = 4 * 1024 * 1024
ARCHIVE_EVERY_LOCAL_S: Final = 1.0
ARCHIVE_EVERY_REMOTE_S: Final = 30.0
"""How often a run's new entries are archived: in a directory of this machine, elsewhere."""
