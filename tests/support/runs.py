"""A small language for runs in tests: what sources say, and what the controller makes of it.

    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(1))
    assert run.name == "scheduling"

Every entry goes through decide, the encoder, the decoder and the fold, as in production.
"""

from __future__ import annotations

from typing import Final, Literal, TypedDict, TypeVar

from msgspec.structs import replace

from runfold.controller.decide import decide
from runfold.controller.policies import DEFAULT, Policies
from runfold.controller.timers import due_timers
from runfold.events.base import WIRE_VERSION, Json
from runfold.events.conclusions import ControllerStarted, Decider, JobTaken
from runfold.events.config import (
    BackendConfig,
    CheckpointConfig,
    FailureConfig,
    HooksConfig,
    Timeouts,
    ValidationSpec,
)
from runfold.events.edges import state_name
from runfold.events.entry import GENESIS, AnyInput, Entry, Head, decode_entry, encode_entry, hash_entry
from runfold.events.facts import (
    CapacityChanged,
    CheckpointSealed,
    Fact,
    Placed,
    PlacementFailed,
    PlaceOffer,
    PlaceReplaced,
    PreemptionCancelled,
    PreemptionNoticed,
    Queued,
    RankExited,
    RankFailed,
    RankReturned,
    RankStarted,
    Released,
    Reported,
    RunnerLost,
    RunnerReady,
    TaskEnded,
)
from runfold.events.failures import FailureKind
from runfold.events.fold import fold
from runfold.events.job import Job, job_digest
from runfold.events.requests import Join
from runfold.events.state import Group, RunState, Unborn
from runfold.events.tasks import TaskOutcome
from runfold.events.transitions import AnyTransition, ControllerChanged, StateChanged
from support.asked import error, job, unborn

POOL: Final = "pool-local"
AT: Final = "2026-11-30T05:48:28.000000Z"
DECIDER: Final = Decider(version="0.1.0", policies=DEFAULT.names)
CLOCK_S: Final = 1000.0
"""What the sources' own clocks say when the run's says 0."""

FactT = TypeVar("FactT", bound=Fact)
T = TypeVar("T")


class Said(TypedDict):
    """What every fact says; the numbers are filled in when it is said."""

    source: str
    incarnation: int
    number: int
    attempt: int


def born_of(asked: Job, controller: str = "ctl") -> tuple[AnyInput, ...]:
    """Return the inputs of entry 0 of a job."""
    return (JobTaken(digest=job_digest(asked)), ControllerStarted(controller=controller, decider=DECIDER))


class Run:
    """A run's log and state, and the sources that speak to it.

    A fact is made by the method that names it, takes its source's next number, and is said by `says`, many in one
    entry if need be. `workers` ranks stand on `nodes`, the first ones on the first.
    """

    def __init__(
        self,
        workers: int | tuple[int, int] = 2,
        *,
        nodes: tuple[str, ...] = ("local",),
        failure: FailureConfig | None = None,
        timeouts: Timeouts | None = None,
        checkpoint: CheckpointConfig | None = None,
        storage: str | None = None,
        validation: ValidationSpec | None = None,
        gates: dict[str, Literal["fail", "warn"]] | None = None,
        policies: Policies = DEFAULT,
        joined: bool = True,
        dwell_s: float = 60.0,
        replica_size: int | None = None,
        backend: BackendConfig | None = None,
    ) -> None:
        self.nodes = nodes
        self.policies = policies
        self.entries: list[Entry] = []
        self.bytes: list[bytes] = []
        self.said: tuple[AnyTransition, ...] = ()
        self.wake_at: float | None = None
        self.t = 0.0
        self.numbers: dict[str, int] = {}
        asked = job(workers, failure=failure, timeouts=timeouts)
        asked = replace(asked, checkpoint=checkpoint or CheckpointConfig(), storage_path=storage)
        scaling = replace(asked.scaling, elastic_resize_monitor_interval_s=dwell_s)
        asked = replace(asked, scaling=scaling, validation=validation, hooks=HooksConfig(gates=gates or {}))
        scaling = replace(asked.scaling, replica_group_size=replica_size)
        asked = replace(asked, scaling=scaling, backend=backend or BackendConfig())
        self._state: Unborn | RunState = unborn(asked)
        self._write(born_of(asked))
        if joined:
            self.join(POOL, *nodes)
        if joined and isinstance(workers, tuple):
            self.says(self.capacity(**{nodes[0]: workers[1]}))

    # --- the log

    @property
    def state(self) -> RunState:
        """The state after the last entry."""
        assert isinstance(self._state, RunState)
        return self._state

    @property
    def name(self) -> str:
        """The name of the state; a plain string, so that asserting it twice does not read as a contradiction."""
        return state_name(self.state.phase)

    @property
    def group(self) -> Group:
        """The group of the present attempt."""
        assert self.state.group is not None
        return self.state.group

    @property
    def head(self) -> Head:
        """The head of the log."""
        return Head(n=self.entries[-1].n, hash=hash_entry(self.bytes[-1]))

    @property
    def path(self) -> list[str]:
        """The states that the last entry went through, `a>b` each."""
        return [f"{said.from_state}>{said.to_state}" for said in self.said if isinstance(said, StateChanged)]

    def the(self, kind: type[T]) -> T:
        """The one transition of a kind in the last entry."""
        found = [said for said in self.said if isinstance(said, kind)]
        assert len(found) == 1, f"{len(found)} of {kind.__name__} in {[type(said).__name__ for said in self.said]}"
        return found[0]

    def none(self, kind: type[AnyTransition]) -> bool:
        """Whether the last entry holds no transition of a kind."""
        return not any(isinstance(said, kind) for said in self.said)

    def says(self, *inputs: AnyInput, after_s: float = 0.1) -> Run:
        """Let an entry be written on these inputs, so much later, the timers that are due by then among them."""
        self.t = round(self.t + after_s, 6)
        return self._write((*inputs, *due_timers(self.state, self.t)))

    def waits(self, seconds: float) -> Run:
        """Let time pass, and the timers that are due by then fire."""
        return self.says(after_s=seconds)

    def _write(self, inputs: tuple[AnyInput, ...]) -> Run:
        before = self._state
        decision = decide(before, inputs, self.t, self.policies)
        epoch = before.epoch if isinstance(before, RunState) else 1
        data = encode_entry(
            Entry(
                v=WIRE_VERSION,
                run="digits",
                n=len(self.entries),
                t=self.t,
                at=AT,
                by="ctl",
                epoch=next((said.epoch for said in decision.transitions if isinstance(said, ControllerChanged)), epoch),
                cursor=("inbox", len(self.entries)),
                inputs=inputs,
                transitions=decision.transitions,
                prev=hash_entry(self.bytes[-1]) if self.bytes else GENESIS,
            )
        )
        entry = decode_entry(data)
        self.entries.append(entry)
        self.bytes.append(data)
        self._state = fold(before, entry)
        self.said, self.wake_at = entry.transitions, decision.wake_at
        assert all(said.reason for said in self.said), "a transition without a reason"
        assert not decide(self.state, (), self.t, self.policies).transitions, "deciding twice changes something"
        return self

    # --- who speaks

    def join(self, *sources: str, boot: str = "b1") -> Run:
        """Let sources ask for an incarnation."""
        for source in sources:
            self.numbers[source] = 0
        return self.says(*(Join(id=f"{source}-{boot}", source=source, boot=f"{source}-{boot}") for source in sources))

    def number(self, fact: FactT) -> FactT:
        """Give a fact its source's next number and present incarnation."""
        self.numbers[fact.source] = self.numbers.get(fact.source, 0) + 1
        source = self.state.sources.get(fact.source)
        incarnation = source.incarnation if source is not None else 1
        return replace(fact, incarnation=incarnation, number=self.numbers[fact.source])

    def _of(self, attempt: int | None) -> int:
        return self.state.attempt if attempt is None else attempt

    # --- the supervisor

    def queued(self, ahead: int = 0, free: int = 0, needed: int = 2, *, contested: bool = False) -> Queued:
        return self.number(Queued(**self._by_pool(), ahead=ahead, free=free, needed=needed, contested=contested))

    def placed(self, *slots: int, attempt: int | None = None) -> Placed:
        """So many slots on each node; without numbers, the ranks spread evenly."""
        size, nodes = self.group.num_workers, len(self.nodes)
        each = slots or tuple(size // nodes + (i < size % nodes) for i in range(nodes))
        offers = tuple(PlaceOffer(node=node, slots=count) for node, count in zip(self.nodes, each, strict=False))
        return self.number(Placed(**self._by_pool(attempt), places=offers))

    def placement_failed(self, *, never: bool = False, reason: str = "no room") -> PlacementFailed:
        return self.number(PlacementFailed(**self._by_pool(), verdict="never" if never else "busy", reason=reason))

    def runner_lost(self, node: str = "local", attempt: int | None = None, signal: int | None = 9) -> RunnerLost:
        return self.number(RunnerLost(**self._by_pool(attempt), node=node, signal=signal))

    def capacity(self, **slots: int) -> CapacityChanged:
        return self.number(CapacityChanged(**self._by_pool(), slots={k.replace("_", "-"): v for k, v in slots.items()}))

    def room(self, fits: int | None = None, *, slices: int | None = None, **room: int) -> CapacityChanged:
        """What the pool has room for: the largest group, or how many ranks each node could hold."""
        by_node = {node.replace("_", "-"): count for node, count in room.items()}
        told = self.number(CapacityChanged(**self._by_pool(), slots=by_node))
        return replace(
            told, whole=by_node or None, room=by_node if by_node or fits is None else None, fits=fits, slices=slices
        )

    def noticed(self, *nodes: str, within_s: float | None = 30.0, reason: str = "") -> PreemptionNoticed:
        return self.number(PreemptionNoticed(**self._by_pool(), nodes=nodes, within_s=within_s, reason=reason))

    def cancelled(self, *nodes: str) -> PreemptionCancelled:
        return self.number(PreemptionCancelled(**self._by_pool(), nodes=nodes))

    def place_again(self, number: int, node: str, slots: int, attempt: int | None = None) -> PlaceReplaced:
        offer, left = PlaceOffer(node=node, slots=slots), {i: one.left for i, one in enumerate(self.group.places)}
        return self.number(PlaceReplaced(**self._by_pool(attempt), place=number, offer=offer, left=left.get(number)))

    def released(self, attempt: int | None = None) -> Released:
        return self.number(Released(**self._by_pool(attempt)))

    def _by_pool(self, attempt: int | None = None) -> Said:
        return {"source": POOL, "incarnation": 0, "number": 0, "attempt": self._of(attempt)}

    # --- runners

    def ready(
        self, node: str = "local", port: int = 4711, offset_s: float = 0.0, attempt: int | None = None
    ) -> RunnerReady:
        said = RunnerReady(**self._by(node, attempt), node=node, addr="127.0.0.1", port=port, clock_s=self.clock_s)
        return self.number(replace(said, clock_offset_s=offset_s))

    def started(
        self, rank: int, *, attempt: int | None = None, life: int | None = None, next_port: int = 4712
    ) -> RankStarted:
        base = self._by(self.node_of(rank), attempt)
        life = self.life_of(rank) if life is None else life
        return self.number(RankStarted(**base, rank=rank, life=life, pid=100 + rank, next_port=next_port))

    def reported(self, rank: int, index: int, *, attempt: int | None = None, loss: float = 1.0) -> Reported:
        base = self._by(self.node_of(rank), attempt)
        metrics: dict[str, Json] | None = {"loss": loss} if rank == 0 else None
        return self.number(
            Reported(**base, rank=rank, life=self.life_of(rank), index=index, step=index * 10, metrics=metrics)
        )

    def shard(
        self, rank: int, index: int, name: str | None = None, *, attempt: int | None = None, **said: bool
    ) -> Reported:
        """A report with files; in the directory that runfold names unless another one is named."""
        of = self._of(attempt)
        default = f"checkpoint_{self.state.checkpoints.base + index:06d}_{of}"
        report = self.reported(rank, index, attempt=attempt)
        return replace(report, checkpoint=name or default, named=name is not None, **said)

    def sealed(self, name: str, metrics: dict[str, Json] | None = None, *, node: str = "local") -> CheckpointSealed:
        """A seal that stands."""
        base = self._by(node, None)
        return self.number(
            CheckpointSealed(**base, name=name, index=0, manifest_digest=f"d-{name}", size_bytes=10, metrics=metrics)
        )

    def task_ended(
        self, task: str, outcome: TaskOutcome = "done", *, value: Json = None, why: str = "", node: str = "local"
    ) -> TaskEnded:
        """A task that is over."""
        base = self._by(node, None)
        told = error(why, "storage", "StorageError") if why else None
        return self.number(TaskEnded(**base, task=task, outcome=outcome, value=value, error=told))

    def returned(self, rank: int, value: int = 7) -> RankReturned:
        base = self._by(self.node_of(rank), None)
        return self.number(RankReturned(**base, rank=rank, life=self.life_of(rank), reports=0, value=value))

    def failed(
        self,
        rank: int,
        message: str = "boom",
        kind: FailureKind = "user",
        *,
        attempt: int | None = None,
        ago_s: float = 0.0,
    ) -> RankFailed:
        base = self._by(self.node_of(rank), attempt)
        clock_s = self.clock_s - ago_s
        return self.number(
            RankFailed(**base, rank=rank, life=self.life_of(rank), error=error(message, kind), clock_s=clock_s)
        )

    def exited(
        self,
        rank: int,
        code: int | None = None,
        *,
        signal: int | None = None,
        asked: bool = False,
        oom: bool = False,
        attempt: int | None = None,
        last_lines: str = "",
    ) -> RankExited:
        base = self._by(self.node_of(rank), attempt)
        return self.number(
            RankExited(
                **base,
                rank=rank,
                life=self.life_of(rank),
                exit_code=code,
                signal=signal,
                asked=asked,
                oom=oom,
                clock_s=self.clock_s,
                last_lines=last_lines,
            )
        )

    @property
    def clock_s(self) -> float:
        """What the sources' own clocks say."""
        return CLOCK_S + self.t

    def node_of(self, rank: int) -> str:
        """The node of a rank; of none, the first."""
        ranks = self.group.ranks
        return ranks[rank].node if 0 <= rank < len(ranks) else self.nodes[0]

    def life_of(self, rank: int) -> int:
        """The present life of a rank; of none, the first."""
        ranks = self.group.ranks
        return ranks[rank].life if 0 <= rank < len(ranks) else 1

    def _by(self, source: str, attempt: int | None) -> Said:
        return {"source": source, "incarnation": 0, "number": 0, "attempt": self._of(attempt)}

    # --- whole stretches

    def places(self) -> Run:
        """Let the group be placed."""
        return self.says(self.placed())

    def lays_out(self) -> Run:
        """Let the group be placed and every runner be ready."""
        self.places()
        return self.says(*(self.ready(node) for node in self.nodes))

    def starts(self) -> Run:
        """Let every rank of a group that is laid out start."""
        return self.says(*(self.started(rank.rank) for rank in self.group.ranks if not rank.started))

    def running(self) -> Run:
        """Let the group be placed, laid out and started."""
        return self.lays_out().starts()

    def finishing(self) -> Run:
        """Let every rank return."""
        return self.says(*(self.returned(rank.rank) for rank in self.group.ranks))
