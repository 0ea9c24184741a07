"""The limits of the process layer: how long is waited, how much is held; an error names the one it met."""

from __future__ import annotations

from typing import Final

from runfold.events.limits import COLLECTIVE_MAX_BYTES

SPAWN_SPEC_MAX_BYTES: Final = 64 * 1024
"""The argument of a forked process; what is larger goes over the process's own link."""
SPAWN_FDS_MAX_COUNT: Final = 16
SPAWN_TIMEOUT_S: Final = 10.0
"""From the command to fork until the process id is known."""
SPAWNER_START_TIMEOUT_S: Final = 30.0
"""From starting a fork server until its imports are done."""
WARM_START_TIMEOUT_S: Final = 300.0
"""From forking a warm process until it has imported what the ranks import."""
WARM_WAIT_S: Final = 30.0
"""How long a rank that is to start waits for such imports, which began before it could begin its own."""
WARM_MODULES_MIN_COUNT: Final = 16
"""Fewer than these are imported by each rank as fast as it is forked."""
SPARES_AFTER_S: Final = 0.25
"""How long ranks have been forked until processes for their successors are."""
FORESEEN_FILES_MAX_COUNT: Final = 100
"""So many of the user's own files are read to see what they import."""
FORESEEN_SOURCE_MAX_BYTES: Final = 1024 * 1024
"""How much of one."""
WARM_STAMPS_FRESH_S: Final = 1.0
"""So long the files of imported libraries are taken to be what they were when they were last looked at."""
SPAWNER_CLOSE_TIMEOUT_S: Final = 10.0
REAP_TIMEOUT_S: Final = 5.0
"""How long a fork server that ends waits for the processes it has killed."""

LINK_FRAME_MAX_BYTES: Final = COLLECTIVE_MAX_BYTES + 64 * 1024
"""Rank to runner."""
GATHER_MAX_BYTES: Final = 4 * COLLECTIVE_MAX_BYTES
"""The values of all ranks together in one `all_gather`."""
REPLY_FRAME_MAX_BYTES: Final = GATHER_MAX_BYTES + 1024 * 1024
"""Runner to rank, and hub to runner."""
LINK_START_TIMEOUT_S: Final = 30.0
"""How long a rank waits for the runner to say what it should run."""
LINK_STALL_WARN_S: Final = 30.0
"""How long a `report` may wait for the runner before it says so on stderr; it goes on waiting."""
LINK_DRAIN_TIMEOUT_S: Final = 1.0
"""How long a dead rank's link and output are read on: a grandchild may hold them open."""
REPLY_MARGIN_S: Final = 30.0
"""How much longer than its timeout a rank waits for a collective's answer before it gives up by itself."""

RETURN_BLOB_MAX_BYTES: Final = COLLECTIVE_MAX_BYTES
ERROR_FULL_MAX_BYTES: Final = 16 * 1024 * 1024
FRAMEWORK_VERSION_MAX_BYTES: Final = 64

HUB_CONNECT_TIMEOUT_S: Final = 10.0
HUB_CONNECT_RETRY_S: Final = 0.1
HUB_HANDSHAKE_TIMEOUT_S: Final = 5.0
HANDSHAKE_FRAME_MAX_BYTES: Final = 64 * 1024
