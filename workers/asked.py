"""Asking a gate: what its hooks are given, in the words of the peer, and what their answers come to."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Mapping, Sequence
from typing import cast

import msgspec

from runfold.events.base import Json
from runfold.events.gates import CONTEXT, FAILURE, REPLICA_SHUTDOWN, REPLICA_START, REPORT, RESIZE, START, STATE
from runfold.events.values import pack, unpack
from runfold.workers.callbacks import (
    ControllerState,
    Decision,
    GroupInfo,
    RankError,
    RunContext,
    WorkerInfo,
    hook_of,
    is_gate,
)
from runfold.workers.processes import tell

Call = tuple[tuple[object, ...], dict[str, object]]


def asked(callbacks: Sequence[object], hook: str, arguments: Mapping[str, Json], context: RunContext) -> Json:
    """Ask every callback that has this gate, in order, and return what they say together; the first error ends it."""
    positional, named = _call(hook, arguments, context)
    together: dict[str, Json] = {}
    for callback in callbacks:
        own = hook_of(callback, hook)
        if own is None or not is_gate(callback, hook):
            continue
        said = own(*positional, **named)
        if inspect.iscoroutine(said):
            said = asyncio.run(cast("Coroutine[object, object, object]", said))
        if isinstance(said, Mapping) and said:
            _add(together, hook, cast("Mapping[str, object]", said), arguments)
    return together or None


def _add(together: dict[str, Json], hook: str, said: Mapping[str, object], arguments: Mapping[str, Json]) -> None:
    packed = pack(dict(said))
    if not isinstance(packed, dict):
        return
    if hook == START:
        if together:
            tell("runfold: several callbacks return a label selector; the last one's is taken")
        together.clear()
        together |= packed
        return
    if hook == CONTEXT:
        workers = arguments.get("workers")
        count = len(workers) if isinstance(workers, list) else 0
        for name, values in packed.items():
            if not isinstance(values, list) or len(values) != count:
                raise ValueError(f"{CONTEXT}: {name} must be a list with a value for each of {count} workers")
            if name in together:
                raise ValueError(f"{CONTEXT}: two callbacks return {name}")
    together |= packed


def _call(hook: str, arguments: Mapping[str, Json], context: RunContext) -> Call:
    """Return the arguments of a hook."""
    match hook:
        case "after_controller_start":
            return (context,), {}
        case hook if hook in (RESIZE, FAILURE):
            about = {
                "kind": arguments.get("decision"),
                **{name: arguments.get(name) for name in _DECISION if name in arguments},
            }
            return (msgspec.convert(about, Decision),), {}
        case hook if hook == START:
            workers = arguments.get("num_workers")
            return (), {"scaling_config": {"num_workers": workers}, "num_workers": workers}
        case hook if hook == CONTEXT:
            return ([msgspec.convert(one, WorkerInfo) for one in _list(arguments.get("workers"))],), {}
        case hook if hook == STATE:
            previous, current = str(arguments.get("previous")), str(arguments.get("current"))
            return (ControllerState(name=previous), ControllerState(name=current)), {}
        case hook if hook == REPORT:
            return (context, [unpack(one) for one in _list(arguments.get("metrics"))], None), {}
        case "after_exception":
            return (context, _exceptions(arguments.get("error"))), {}
        case hook if "worker_group" in hook:
            attempt, size = arguments.get("attempt"), arguments.get("num_workers", context.num_workers)
            return (msgspec.convert({"attempt": attempt, "num_workers": size}, GroupInfo),), {}
        case hook if hook in (REPLICA_START, REPLICA_SHUTDOWN):
            ranks = _list(arguments.get("ranks"))
            about = {name: arguments[name] for name in ("attempt", "replica", "life") if name in arguments}
            workers_of = [{"world_rank": rank} for rank in ranks]
            return (msgspec.convert({**about, "num_workers": len(ranks), "workers": workers_of}, GroupInfo),), {}
        case _:
            return (), {}


_DECISION = ("attempt", "num_workers", "error", "rank")


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _exceptions(error: Json) -> dict[int, Exception]:
    if not isinstance(error, dict):
        return {}
    rank, traceback = error.get("rank"), error.get("traceback")
    told = RankError(
        str(error.get("type")), str(error.get("message")), traceback if isinstance(traceback, str) else None
    )
    return {rank if isinstance(rank, int) else -1: told}
