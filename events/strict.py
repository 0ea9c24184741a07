"""Strict reading of requests: what does not belong is refused with the path of the offender.

Types are lenient by themselves, so that logs of newer versions can be read; requests go through here.
"""

from __future__ import annotations

import re
import types
import typing
from typing import Final, TypeVar, cast

import msgspec

T = TypeVar("T")
_AT: Final = re.compile(r"(?P<what>.*?) - at `(?P<path>[^`]*)`$", re.DOTALL)
_FIELD_FIRST: Final = re.compile(r"(?P<field>[a-z_]+): (?P<what>.*)", re.DOTALL)


class Refused(ValueError):
    """A request that cannot be taken: `path` of the offender and the reason, in words a person can act on."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


def decode_strict(data: bytes, kind: type[T]) -> T:
    """Return the value of exactly this type; raise `Refused` for bad JSON, shape, value or an unknown field."""
    try:
        value = msgspec.json.decode(data, type=kind)
        raw = msgspec.json.decode(data)
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused("$", f"not JSON: {error}") from None
    except RecursionError:
        raise Refused("$", "nested too deeply") from None
    refuse_unknown(raw, kind, "$")
    return value


def _refusal(text: str) -> Refused:
    """Split msgspec's `reason - at `$.path``; a config class puts the field's name first."""
    match = _AT.match(text)
    what, path = (match["what"], match["path"]) if match else (text, "$")
    if field := _FIELD_FIRST.match(what):
        return Refused(f"{path}.{field['field']}", field["what"])
    return Refused(path, what)


def refuse_unknown(raw: object, kind: object, path: str) -> None:
    """Raise `Refused` for the first field of `raw` that the type does not have."""
    fields = cast("dict[str, object]", raw) if isinstance(raw, dict) else None
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if fields is not None:
            _refuse_in_struct(fields, kind, path)
        return
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        structs = [a for a in arguments if isinstance(a, type) and issubclass(a, msgspec.Struct)]
        tagged = [s for s in structs if fields is not None and _matches_tag(fields, s)]
        for chosen in tagged or structs[:1]:
            refuse_unknown(fields, chosen, path)
    elif origin in (tuple, list) and isinstance(raw, list) and arguments:
        for i, item in enumerate(cast("list[object]", raw)):
            refuse_unknown(item, arguments[0], f"{path}[{i}]")


def _matches_tag(raw: dict[str, object], kind: type[msgspec.Struct]) -> bool:
    config = kind.__struct_config__
    return config.tag_field is not None and raw.get(config.tag_field) == config.tag


def _refuse_in_struct(raw: dict[str, object], kind: type[msgspec.Struct], path: str) -> None:
    hints = typing.get_type_hints(kind)
    known = {field.encode_name: hints[field.name] for field in msgspec.structs.fields(kind)}
    tag_field = kind.__struct_config__.tag_field
    for name, value in raw.items():
        if name == tag_field:
            continue
        if name not in known:
            raise Refused(f"{path}.{name}", f"unknown field; known are {', '.join(sorted(known))}")
        refuse_unknown(value, known[name], f"{path}.{name}")
