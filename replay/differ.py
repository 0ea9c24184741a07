"""Values compared field by field: what was changed, added and taken away, by path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import msgspec

from runfold.events.base import Document, Json


class Change(Document, frozen=True, kw_only=True):
    """A field that differs; None stands for one that is not there, or is null."""

    path: str
    before: Json
    after: Json


def changes(before: object, after: object, ignore: frozenset[str] = frozenset()) -> tuple[Change, ...]:
    """Return the fields in which two values differ, in the order of the first; `ignore` names paths left out."""
    one, other = dict(_flat(before, "")), dict(_flat(after, ""))
    paths = [*one, *(path for path in other if path not in one)]
    return tuple(
        Change(path=path, before=one.get(path), after=other.get(path))
        for path in paths
        if path not in ignore and one.get(path) != other.get(path)
    )


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
