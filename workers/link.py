"""The messages between a rank and its runner.

```text
rank → runner   Hello, Loaded, Entered, Imported, (Report, Uploading, Asked, Collect, Inquire)*, then Returned or Failed
runner → rank   Start, Go or Stop, Collected or Refused for each Collect, Listed for Inquire, Wish and Noticed at times
```

Both ends are forks of one program, so the format may change from one version to the next.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from runfold.events.base import Json
from runfold.events.checkpoints import CheckpointState, ValidationWish
from runfold.events.config import BackendConfig, CheckpointConfig
from runfold.events.failures import ErrorInfo
from runfold.workers.layout import StorageSpec
from runfold.workers.load import Code

CollectiveKind = Literal["start", "barrier", "broadcast_from_rank_zero", "all_gather"]
"""`start` is number 0: the runners hold their ranks until every place is ready."""
RefusalKind = Literal["mismatch", "peer", "too_large", "timeout"]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages on the link; fields are written in their order, without names."""


# --- rank to runner


class Hello(Message, frozen=True):
    """The rank process runs and waits for `Start`."""

    pid: int


class Loaded(Message, frozen=True):
    """The entry point is loaded: digest of its file or blob, versions of the frameworks it imported."""

    digest: str | None
    versions: dict[str, str]


class Entered(Message, frozen=True):
    """The rank is about to call the training function; `clock_s` is this machine's monotonic clock."""

    clock_s: float


class Report(Message, frozen=True):
    """One report: index from 0, step if the metrics name one, metrics packed.

    `checkpoint` is the directory where its files are, `named` by the user; or there should have been one, and
    `upload_error` says why there is none. `cursor`: where the rank is in its data. `spent_s`: seconds that the rank has
    waited since its report before, by what for.
    """

    index: int
    clock_s: float
    step: int | None
    metrics: dict[str, Json]
    checkpoint: str | None = None
    named: bool = False
    upload_error: str | None = None
    validation: ValidationWish | None = None
    cursor: str | None = None
    spent_s: dict[str, float] = {}


class Uploading(Message, frozen=True):
    """The rank begins to upload files to a checkpoint's directory; report `index` follows, unless it ends before."""

    name: str
    index: int


class Paused(Message, frozen=True):
    """The rank will make no report for a while, or is about to again."""

    paused: bool


class Asked(Message, frozen=True):
    """The training function has asked for the checkpoint to begin from; said once."""


class Imported(Message, frozen=True):
    """The installed modules that the rank has imported by itself, in their order; `loading`: before user code."""

    modules: list[str]
    loading: bool


class Collect(Message, frozen=True):
    """The rank takes part in its `number`-th collective, counted from 1, and waits for the answer."""

    number: int
    kind: CollectiveKind
    value: bytes | None
    timeout_s: float | None


class Inquire(Message, frozen=True):
    """Which checkpoints are there, once this rank's first `reports` reports are dealt with? Numbered like collectives.

    `validated`: and once nothing is being validated. After `timeout_s` what is known is told.
    """

    number: int
    reports: int
    validated: bool
    timeout_s: float | None


class Returned(Message, frozen=True):
    """The training function returned: its value packed, or pickled when it cannot be packed."""

    clock_s: float
    reports: int
    value: Json
    blob: bytes | None


class Failed(Message, frozen=True):
    """The entry point could not be loaded, or the function raised; `full` is the whole text if `error` is cut."""

    clock_s: float
    reports: int
    error: ErrorInfo
    full: bytes | None


# --- runner to rank


class Start(Message, frozen=True, kw_only=True):
    """Who the rank is and what it runs. A `blob:` entry point comes with its bytes or as a file.

    `arguments` are those that a gate gave this rank; `addr` is where rank 0's node is reached, `own_addr` this one.
    `resources`: what each rank has; `gpus`: the ids of the GPUs that are this rank's own.
    `slot`: which of its node's slots it has. `replica_first`, `replica_size`: the ranks that it meets with.
    `warm`: it may come from a process that has imported for it.
    """

    run: str
    name: str
    attempt: int
    rank: int
    life: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    entrypoint: str
    config: dict[str, Json] = {}
    env: dict[str, str] = {}
    working_dir: str | None = None
    blob: bytes | None = None
    blob_path: str | None = None
    collective_timeout_s: float | None = None
    node: str = ""
    storage: StorageSpec | None = None
    checkpointing: CheckpointConfig = CheckpointConfig()
    validates: bool = False
    arguments: dict[str, Json] = {}
    callbacks: list[Code] = []
    datasets: bytes | None = None
    backend: BackendConfig = BackendConfig()
    addr: str = ""
    own_addr: str = ""
    slot: int = 0
    replica_group: int | None = None
    replica_groups: int = 1
    replica_first: int = 0
    replica_size: int = 0
    lighthouse: str = ""
    resources: dict[str, float] = {}
    gpus: tuple[str, ...] = ()
    warm: bool = True


class Go(Message, frozen=True):
    """All places are ready: enter the training function; begin from `checkpoint`, count reports from `first_index`.

    `first`: the number of the first report within the attempt, when others have reported before.
    """

    checkpoint: str | None = None
    first_index: int = 0
    first: int = 0


class Wish(Message, frozen=True):
    """Somebody wants a checkpoint at the next chance (the id of the wish), or nobody does any more (None)."""

    id: str | None


class Noticed(Message, frozen=True):
    """Nodes of the group will be taken back: the ranks on each, by node; when, in Unix milliseconds if that is known.

    No nodes: none will be, or not any more.
    """

    nodes: dict[str, list[int]] = {}
    deadline_ms: int | None = None


class Stop(Message, frozen=True):
    """Do not enter it after all: end."""

    reason: str


class Collected(Message, frozen=True):
    """A collective came about: no value, the value of rank 0, or one value a rank in their order."""

    number: int
    values: list[bytes]


class Refused(Message, frozen=True):
    """A collective did not come about: the same answer for all ranks that took part in it."""

    number: int
    kind: CollectiveKind
    error: RefusalKind
    message: str
    missing_ranks: tuple[int, ...] = ()


class Listed(Message, frozen=True):
    """The run's checkpoints, best last: name and what came of a validation."""

    number: int
    checkpoints: list[tuple[str, CheckpointState]]


FromRank = (
    Hello | Loaded | Entered | Imported | Report | Uploading | Asked | Collect | Inquire | Paused | Returned | Failed
)
FromRunner = Start | Go | Stop | Wish | Noticed | Collected | Refused | Listed
FROM_RANK: Final[msgspec.msgpack.Decoder[FromRank]] = msgspec.msgpack.Decoder(FromRank)
FROM_RUNNER: Final[msgspec.msgpack.Decoder[FromRunner]] = msgspec.msgpack.Decoder(FromRunner)
