"""Values compared field by field: what was changed, added and taken away, by path."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, cast

import msgspec

from runfold.events.base import Document, Json

_PARTS: Final = re.compile(r"[.\[]")
_STEPS: Final = re.compile(r"([^.\[\]]+)(?!\])|\[(\d+)\]")


class Change(Document, frozen=True, kw_only=True):
    """A field that differs; None stands for one that is not there, or is null."""

    path: str
    before: Json
    after: Json


def changes(before: object, after: object, ignore: frozenset[str] = frozenset()) -> tuple[Change, ...]:
    """Return the fields in which two values differ, in the order of the first; `ignore` names paths left out."""
    one, other = dict(_flat(before, "")), dict(_flat(after, ""))
    for leaves, others, whole in ((one, other, after), (other, one, before)):
        _as_one(leaves, others, whole)
    paths = [*one, *(path for path in other if path not in one)]
    return tuple(
        Change(path=path, before=one.get(path), after=other.get(path))
        for path in paths
        if path not in ignore and one.get(path) != other.get(path)
    )


def _as_one(leaves: dict[str, Json], others: dict[str, Json], whole: object) -> None:
    """Let what is a single value on one side be one on the other side too: 4 → [1, 6], not 4 → nothing."""
    parts = [path for path in others if path not in leaves]
    for path in parts:
        at = next((found.start() for found in _PARTS.finditer(path) if path[: found.start()] in leaves), None)
        if at is not None:
            del others[path]
            others[path[:at]] = cast("Json", msgspec.json.decode(msgspec.json.encode(_at(whole, path[:at]))))


def _at(value: object, path: str) -> object:
    for name, place in _STEPS.findall(path):
        if place:
            value = cast("list[object]", value)[int(place)]
        elif isinstance(value, Mapping):
            value = cast("Mapping[str, object]", value)[name]
        else:
            value = cast("object", getattr(value, name))
    return value


def _flat(value: object, path: str) -> Iterator[tuple[str, Json]]:
    """Yield the leaves of a value by their paths: `budgets.worker.spent`, `group.ranks[1].phase`."""
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        if tag is not None:
            yield f"{path}.kind" if path else "kind", str(tag)
        for name in value.__struct_fields__:
            yield from _flat(getattr(value, name), f"{path}.{name}" if path else name)
    elif isinstance(value, Mapping):
        for name, item in cast("Mapping[str, object]", value).items():
            yield from _flat(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple):
        for place, item in enumerate(cast("list[object] | tuple[object, ...]", value)):
            yield from _flat(item, f"{path}[{place}]")
    elif value is not None:
        yield path, cast("Json", value)
