"""The part of Ray that is used, with types: Ray itself need not be installed.

Its calls that ask the cluster block: they are made in a thread of their own (`Ray.ask`).
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

import msgspec

from runfold.workers.config import quiet_ray
from runfold.workers.errors import RunfoldError
from runfold.workers.pools.ray.leftovers import remove_session, session_of
from runfold.workers.tpus import TPU

if TYPE_CHECKING:
    from pathlib import Path

_T = TypeVar("_T")

LOCAL_OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024
"""The shared memory of a cluster that is started here: nothing is kept there but what actors are told."""


HEAD: Final = "-head-"
"""What follows in the name of the placement group that has the head of a slice, after that of the whole's."""


class RayError(RunfoldError):
    """Ray cannot be used; the message says what to do."""


class RayNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the cluster as Ray knows it. `name` is how it is called."""

    id: str
    name: str
    addr: str
    alive: bool
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A placement group: its id, its name."""

    id: str
    name: str


class _Options(Protocol):
    def remote(self, *args: object) -> object: ...


class _Remote(Protocol):
    def options(self, **options: object) -> _Options: ...


class _Context(Protocol):
    def get_node_id(self) -> str: ...
    def get_accelerator_ids(self) -> dict[str, list[str]]: ...


class _Core(Protocol):
    def init(self, **options: object) -> object: ...
    def shutdown(self) -> None: ...
    def nodes(self) -> list[dict[str, object]]: ...
    def get_runtime_context(self) -> _Context: ...
    def remote(self, target: object, /) -> _Remote: ...
    def get_actor(self, name: str) -> object: ...
    def kill(self, actor: object, *, no_restart: bool = True) -> None: ...


class _PlacementGroup(Protocol):
    def ready(self) -> Awaitable[object]: ...


class _Util(Protocol):
    def placement_group(self, bundles: Sequence[Mapping[str, float]], **options: object) -> _PlacementGroup: ...
    def remove_placement_group(self, group: object, /) -> None: ...
    def placement_group_table(self, group: object | None = None, /) -> dict[str, object]: ...
    def list_named_actors(self) -> list[str]: ...


class Actor:
    """An actor that answers calls: every method is an attribute of its handle, with `remote`."""

    def __init__(self, handle: object) -> None:
        self.handle = handle

    async def call(self, method: str, *args: object) -> object:
        """Call a method and wait for its answer; `ActorLost` when there will be none."""
        bound = cast("_Options", getattr(self.handle, method))
        return await _answer(bound.remote(*args))


class ActorUnreachable(RunfoldError):
    """An actor did not answer, and may live."""


class ActorLost(RunfoldError):
    """An actor is gone, or could not be started; the message says how, as far as Ray knows."""


class GroupRefused(RunfoldError):
    """Ray does not take what was asked for."""


class Ray:
    """A connection to a cluster, one a process. Made by `connect`, ended by `close`."""

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self._thread = thread
        self._core = cast("_Core", _imported("ray"))
        self._util = cast("_Util", _imported("ray.util"))
        self._session: Path | None = None

    @classmethod
    async def connect(cls, *, address: str | None, namespace: str, cpus_count: int) -> Ray:
        """Connect to the cluster at an address, or without one start a small one here that ends with this process."""
        quiet_ray()
        ray = cls(ThreadPoolExecutor(1, "ray"))
        mine: dict[str, object] = (
            {"address": address}
            if address is not None
            else {
                "num_cpus": cpus_count,
                "include_dashboard": False,
                "object_store_memory": LOCAL_OBJECT_STORE_BYTES,
                # Not one that happens to run on this machine.
                "address": "local",
            }
        )
        try:
            begun = await ray.ask(
                lambda: ray._core.init(
                    **mine,
                    namespace=namespace,
                    log_to_driver=False,
                    configure_logging=False,
                    logging_level=logging.WARNING,
                )
            )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            ray._thread.shutdown(wait=False)
            where = f"the Ray cluster at {address}" if address is not None else "a Ray cluster of this machine's own"
            raise RayError(f"{where} cannot be used: {error}") from error
        ray._session = session_of(begun) if address is None else None
        return ray

    async def ask(self, question: Callable[[], _T]) -> _T:
        """Ask the cluster something, one question after the other."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, question)

    async def close(self) -> None:
        """Leave the cluster: what is detached goes on. One that was started here ends, and leaves nothing behind."""
        await self.ask(self._core.shutdown)
        if (session := self._session) is not None:
            await self.ask(lambda: remove_session(session))
        self._thread.shutdown(wait=False)

    # --- nodes

    async def nodes(self) -> list[RayNode]:
        """Return the nodes that are or were there."""
        return [_node(one) for one in await self.ask(self._core.nodes)]

    async def own_node(self) -> str:
        """Return the node (its id) by which this process has joined the cluster."""
        return await self.ask(lambda: self._core.get_runtime_context().get_node_id())

    async def draining(self) -> dict[str, float | None]:
        """Return the nodes that are to be given back, with the time (Unix, seconds) by which if there is one."""
        state = cast("_State", getattr(_imported("ray._private.state"), "state"))  # noqa: B009  # no types are installed
        found = await self.ask(state.get_draining_nodes)
        return {node: deadline_ms / 1000 or None for node, deadline_ms in found.items()}

    async def free(self) -> dict[str, dict[str, float]]:
        """Return what nobody has reserved on each node (its id)."""
        state = _imported("ray._private.state")
        ask = cast("Callable[[], dict[str, dict[str, float]]]", getattr(state, "available_resources_per_node"))  # noqa: B009  # as above
        return await self.ask(ask)

    # --- placement groups

    async def create_group(
        self, name: str, bundles: Sequence[Mapping[str, float]], strategy: str, selectors: Sequence[Mapping[str, str]]
    ) -> tuple[Group, Awaitable[object]]:
        """Ask for a detached placement group; return it, and what ends when all of it is reserved.

        Raises:
            GroupRefused: it can never be.
        """

        def create() -> tuple[Group, Awaitable[object]]:
            made = self._util.placement_group(
                bundles,
                strategy=strategy,
                name=name,
                lifetime="detached",
                **({"bundle_label_selector": list(selectors)} if selectors else {}),
            )
            number = cast("_Id", getattr(made, "id")).hex()  # noqa: B009  # as above
            return Group(id=number, name=name), _answer(made.ready())

        try:
            return await self.ask(create)
        except (TypeError, ValueError) as error:
            raise GroupRefused(f"Ray does not take the placement group {name}: {error}") from error

    async def bundles(self, group: Group) -> list[str | None]:
        """Return the node that each bundle is on; None for one that has none."""
        table = await self.ask(lambda: self._util.placement_group_table(_placement_group(group.id)))
        where = cast("dict[int, str]", table.get("bundles_to_node_id", {}))
        return [where[index] or None for index in sorted(where)]

    async def groups(self, suffix: str) -> list[Group]:
        """Return the placement groups that stand and whose names end so."""
        table = await self.ask(self._util.placement_group_table)
        found = [(number, cast("dict[str, str]", one)) for number, one in table.items()]
        return [
            Group(id=number, name=one["name"])
            for number, one in found
            if one["name"].endswith(suffix) and one["state"] != "REMOVED"
        ]

    async def remove_group(self, group: Group) -> None:
        """Give a placement group back: what is in it ends."""
        await self.ask(lambda: self._util.remove_placement_group(_placement_group(group.id)))

    # --- actors

    async def create_actor(
        self, kind: type[object], name: str, group: Group, bundle: int, runtime_env: Mapping[str, object]
    ) -> Actor:
        """Ask for a detached actor that holds nothing itself, on the node of a bundle."""

        def create() -> Actor:
            options = self._core.remote(kind).options(
                name=name,
                lifetime="detached",
                num_cpus=0,
                max_restarts=0,
                scheduling_strategy=_in_bundle(group, bundle),
                **({"runtime_env": dict(runtime_env)} if runtime_env else {}),
            )
            return Actor(options.remote())

        try:
            return await self.ask(create)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ActorLost(f"Ray does not take it: {error}") from error

    async def accelerators(
        self, function: object, group: Group, bundle: int, gpus: float, tpus: float = 0
    ) -> list[str]:
        """Return what a function says in a bundle that has so many GPUs, or TPUs: which ones they are."""
        options = self._core.remote(function).options(
            num_cpus=0,
            num_gpus=gpus,
            scheduling_strategy=_in_bundle(group, bundle),
            **({"resources": {TPU: tpus}} if tpus > 0 else {}),
        )
        return cast("list[str]", await _answer(options.remote()))

    async def actors(self) -> list[str]:
        """Return the names of the actors of this connection's namespace."""
        return await self.ask(self._util.list_named_actors)

    async def actor(self, name: str) -> Actor | None:
        """Return an actor by its name; None when there is none any more."""
        try:
            return Actor(await self.ask(lambda: self._core.get_actor(name)))
        except ValueError:
            return None

    async def kill(self, actor: Actor) -> None:
        """End an actor."""
        await self.ask(lambda: self._core.kill(actor.handle, no_restart=True))


async def _answer(called: object) -> object:
    try:
        return await cast("Awaitable[object]", called)
    except _errors("ActorUnavailableError") as error:
        raise ActorUnreachable(_in_a_line(error)) from None
    except _errors("RayError") as error:
        raise ActorLost(_in_a_line(error)) from None


class _State(Protocol):
    def get_draining_nodes(self) -> dict[str, int]: ...


class _Id(Protocol):
    def hex(self) -> str: ...


def bad_selector(selector: Mapping[str, str]) -> str | None:
    """Return what Ray has against a label selector; None for nothing."""
    labels = _imported("ray._private.label_utils")
    check = cast("Callable[[Mapping[str, str]], str | None]", getattr(labels, "validate_label_selector"))  # noqa: B009  # as above
    return check(dict(selector)) or None


def own_group() -> str | None:
    """Return the id of the placement group that this actor is in."""
    util = _imported("ray.util")
    found: object = cast("Callable[[], object]", getattr(util, "get_current_placement_group"))()  # noqa: B009  # as above
    return None if found is None else cast("_Id", getattr(found, "id")).hex()  # noqa: B009  # as above


def remove_group(number: str) -> None:
    """Give a placement group back, and the heads of its slices before it; this actor's own ends this actor."""
    util = cast("_Util", _imported("ray.util"))
    table = {number: cast("dict[str, str]", one) for number, one in util.placement_group_table().items()}
    groups = [Group(id=number, name=one["name"]) for number, one in table.items() if one["state"] != "REMOVED"]
    for head in heads_of(table[number]["name"], groups) if number in table else ():
        util.remove_placement_group(_placement_group(head.id))
    util.remove_placement_group(_placement_group(number))


def heads_of(name: str, groups: Iterable[Group]) -> list[Group]:
    """Return the placement groups that have the heads of a group's TPU slices, by what they are called."""
    stem, _, identity = name.rpartition("-")
    return [one for one in groups if one.name.startswith(f"{stem}{HEAD}") and one.name.endswith(f"-{identity}")]


def own_chips() -> list[str]:
    """Return the ids of the TPU chips that are given to this task."""
    context = cast("_Core", _imported("ray")).get_runtime_context()
    return list(context.get_accelerator_ids().get(TPU, []))


def own_gpus() -> list[str]:
    """Return the ids of the GPUs that are given to this task."""
    ids = cast("Callable[[], list[object]]", getattr(_imported("ray"), "get_gpu_ids"))()  # noqa: B009  # as above
    return [str(one) for one in ids]


def _in_bundle(group: Group, bundle: int) -> object:
    strategies = _imported("ray.util.scheduling_strategies")
    make = cast("Callable[..., object]", getattr(strategies, "PlacementGroupSchedulingStrategy"))  # noqa: B009  # as above
    return make(placement_group=_placement_group(group.id), placement_group_bundle_index=bundle)


def _placement_group(number: str) -> object:
    ids, groups = _imported("ray._raylet"), _imported("ray.util.placement_group")
    make_id = cast("Callable[[bytes], object]", getattr(ids, "PlacementGroupID"))  # noqa: B009  # as above
    make = cast("Callable[[object], object]", getattr(groups, "PlacementGroup"))  # noqa: B009  # as above
    return make(make_id(bytes.fromhex(number)))


def _node(found: Mapping[str, object]) -> RayNode:
    number, addr = str(found["NodeID"]), str(found["NodeManagerAddress"])
    # Both parts: for people, and so that a machine that comes again is another node.
    called = "".join(
        c if c.isascii() and (c.isalnum() or c == "-") else "-" for c in str(found.get("NodeName") or addr)
    )
    return RayNode(
        id=number,
        name=f"{called[:NODE_NAME_MAX]}-{number[:8]}",
        addr=addr,
        alive=bool(found["Alive"]),
        resources=cast("dict[str, float]", found.get("Resources") or {}),
        labels=cast("dict[str, str]", found.get("Labels") or {}),
    )


NODE_NAME_MAX: Final = 40


def _errors(name: str) -> type[Exception]:
    return cast("type[Exception]", getattr(_imported("ray.exceptions"), name))


def _in_a_line(error: Exception) -> str:
    """Return what an error of Ray's says, its many lines in one: the reason stands in the last ones."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines)[:REASON_MAX]


REASON_MAX: Final = 600


def _imported(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RayError(f"{error}: install runfold with the extra ray (pip install 'runfold[ray]')") from error
