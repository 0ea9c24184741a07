"""Strict reading of requests: what does not belong is refused with the path of the offender.

Types are lenient by themselves, so that logs of newer versions can be read; requests go through here.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable
from functools import cache
from typing import Final, TypeVar, cast

import msgspec

from runfold.events.limits import REFUSAL_PATH_MAX_CHARS, REFUSAL_REASON_MAX_CHARS, REQUEST_DEPTH_MAX_COUNT

T = TypeVar("T")
INTEGER_LEAST: Final = -(2**63)
INTEGER_GREATEST: Final = 2**64 - 1
"""What a rank is sent is MessagePack, which has no wider integers; a packed value has them as text."""

_WIDE_INSTEAD: Final = 'in a config it is written {"int": "…"}'
_AT: Final = re.compile(r"(?P<what>.*?) - at `(?P<path>[^`]*)`$", re.DOTALL)
_EXPECTED: Final = re.compile(r"Expected `(?P<wanted>[^`]*)`(?P<more>.*?)(?:, got `(?P<got>[^`]*)`)?$")
_MISSING: Final = re.compile(r"Object missing required field `(?P<field>[^`]*)`$")
_CHOICE: Final = re.compile(r"Invalid enum value (?P<value>.*)$", re.DOTALL)
_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table of names and values",
    "null": "null",
}
"""What msgspec calls the types of JSON → what people do."""

_FIELD_FIRST: Final = re.compile(r"(?P<field>[a-z_]+): (?P<what>.*)", re.DOTALL)


class Refused(ValueError):
    """A request that cannot be taken: `path` of the offender and the reason, in words a person can act on.

    Both quote what a stranger sent, and are cut: whoever records a refusal must not fail at its size.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = _cut(path, REFUSAL_PATH_MAX_CHARS)
        self.reason = _cut(reason, REFUSAL_REASON_MAX_CHARS)
        super().__init__(f"{self.path}: {self.reason}")


def _cut(text: str, limit: int) -> str:
    """Return `text` with its middle left out when it is over the limit: what is wrong stands at its end."""
    return text if len(text) <= limit else f"{text[: limit // 2]} … {text[-(limit // 2) :]}"


def decode_strict(data: bytes, kind: type[T]) -> T:
    """Return the value of exactly this type; raise `Refused` for bad JSON, shape, value or an unknown field."""
    raw: object = None
    try:
        raw = msgspec.json.decode(data)
        value = msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        if _MISSING.match(str(error).partition(" - at ")[0]):
            refuse_unknown(raw, kind, "$")  # a field of another name is most likely the one that is missing
        raise _refusal(str(error), kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused("$", f"not JSON: {error}") from None
    except RecursionError:
        raise Refused("$", "nested too deeply") from None
    _refuse_deep(raw)
    if (path := _wide_at(raw, "$")) is not None:
        raise Refused(path, f"an integer beyond 64 bits; {_WIDE_INSTEAD}")
    refuse_unknown(raw, kind, "$")
    return value


def _refuse_deep(raw: object) -> None:
    """Raise `Refused` for a value that nests deeper than every reader of the log can follow, whatever its own stack."""
    level: list[object] = [raw]
    for _ in range(REQUEST_DEPTH_MAX_COUNT + 1):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return
    raise Refused("$", f"nested deeper than request_depth_max_count ({REQUEST_DEPTH_MAX_COUNT} levels)")


def _wide_at(raw: object, path: str) -> str | None:
    """Return where an integer stands that not every encoding of ours can hold; None: nowhere."""
    if isinstance(raw, dict):
        named = ((f"{path}.{name}", value) for name, value in cast("dict[str, object]", raw).items())
    elif isinstance(raw, list):
        named = ((f"{path}[{i}]", value) for i, value in enumerate(cast("list[object]", raw)))
    else:
        return None if not isinstance(raw, int) or INTEGER_LEAST <= raw <= INTEGER_GREATEST else path
    return next((found for at, value in named if (found := _wide_at(value, at)) is not None), None)


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def _refusal(text: str, kind: object) -> Refused:
    """Split msgspec's `reason - at `$.path``; a config class puts the field's name first."""
    match = _AT.match(text)
    what, path = (match["what"], match["path"]) if match else (text, "$")
    if field := _FIELD_FIRST.match(what):
        return Refused(f"{path}.{field['field']}", field["what"])
    return Refused(path, _in_words(what, _values_at(path, kind)))


def _in_words(what: str, values: tuple[object, ...]) -> str:
    """Return what msgspec says as a person would: types by what stands for them in a document."""
    if expected := _EXPECTED.match(what):
        wanted = " or ".join(_KINDS.get(name.strip(), name) for name in expected["wanted"].split("|"))
        got = f", not {_KINDS.get(expected['got'], expected['got'])}" if expected["got"] else ""
        return f"must be {wanted}{expected['more']}{got}"
    if missing := _MISSING.match(what):
        return f"the field {missing['field']} is missing"
    if values and (chosen := _CHOICE.match(what)):
        return f"must be one of {', '.join(map(str, values))}, not {chosen['value']}"
    return what.replace("`", "")


def _values_at(path: str, kind: object) -> tuple[object, ...]:
    """Return the values that a field may have, if there is a fixed choice of them."""
    for name in path.split(".")[1:]:
        origin = typing.get_origin(kind)
        choices = typing.get_args(kind) if origin in (typing.Union, types.UnionType) else (kind,)
        structs = (one for one in choices if isinstance(one, type) and issubclass(one, msgspec.Struct))
        kind = next((fields[name] for fields in map(_known_fields, structs) if name in fields), None)
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


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


@cache
def _known_fields(kind: type[msgspec.Struct]) -> dict[str, object]:
    """Return the type of each field as it is written; once for each class, since evaluating hints takes its time."""
    hints = typing.get_type_hints(kind)
    return {field.encode_name: hints[field.name] for field in msgspec.structs.fields(kind)}


def _refuse_in_struct(raw: dict[str, object], kind: type[msgspec.Struct], path: str) -> None:
    known = _known_fields(kind)
    tag_field = kind.__struct_config__.tag_field
    for name, value in raw.items():
        if name == tag_field:
            continue
        if name not in known:
            raise Refused(f"{path}.{name}", f"unknown field; known are {', '.join(sorted(known))}")
        refuse_unknown(value, known[name], f"{path}.{name}")
