"""User values on the wire: JSON, and what JSON cannot say.

A user value (metrics, a train function's config and return value) travels *packed*:

* a non-finite number as `{"float": "nan" | "inf" | "-inf"}`,
* an integer beyond 2^53 as `{"int": "…"}`,
* a dict that would read as one of these three forms as `{"dict": {…}}`.

Everything between the rank that packs and the reader that unpacks handles packed values only.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, Protocol, cast, runtime_checkable

from runfold.events.limits import VALUE_DEPTH_MAX_COUNT

if TYPE_CHECKING:
    from runfold.events.base import Json

_INT_MAX: Final = 2**53
_MARKS: Final = frozenset({"float", "int", "dict"})
_FLOATS: Final = frozenset({"nan", "inf", "-inf"})
_INT: Final = re.compile(r"-?[0-9]{1,4300}")
"""Python itself reads and writes no integer of more digits."""


class Unencodable(TypeError):
    """A value that cannot be written; `path` names the key, as in `$.loss.mean`."""

    def __init__(self, path: str, found: str) -> None:
        self.path = path
        super().__init__(
            f"{path} is {found}, which cannot be recorded; use numbers, strings, booleans, None, lists or dicts"
        )


@runtime_checkable
class _Scalar(Protocol):
    """A numpy scalar, a 0-d array or a one-element tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def item(self) -> object: ...


def pack(value: object, path: str = "$") -> Json:
    """Return `value` in its packed form.

    Tuples become lists; numpy scalars, 0-d arrays and one-element torch scalars become numbers.
    Raises `Unencodable` naming the offending key, or the limit when nested deeper than `VALUE_DEPTH_MAX_COUNT`.
    """
    return _pack(value, path, 0)


def _pack(value: object, path: str, depth: int) -> Json:
    kind = type(value)
    if kind is float:
        return _pack_float(value)  # type: ignore[arg-type]  # `kind is float` is not narrowed
    if value is None or kind is bool:
        return value  # type: ignore[return-value]  # narrowed by `kind`, which checkers do not follow
    if isinstance(value, str):
        return _pack_text(str(value), path)
    if isinstance(value, int):
        return _pack_int(int(value), path)
    if depth >= VALUE_DEPTH_MAX_COUNT:
        raise Unencodable(path, f"nested deeper than {VALUE_DEPTH_MAX_COUNT} levels")
    if isinstance(value, dict):
        return _pack_dict(cast("dict[object, object]", value), path, depth)
    if isinstance(value, list | tuple):
        items = cast("list[object] | tuple[object, ...]", value)
        return [_pack(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(items)]
    return _pack_other(value, path, depth)


def _pack_float(value: float) -> Json:
    return value if math.isfinite(value) else {"float": repr(value)}


def _pack_int(number: int, path: str) -> Json:
    if -_INT_MAX <= number <= _INT_MAX:
        return number
    try:
        return {"int": str(number)}
    except ValueError:
        raise Unencodable(path, "an integer of more than 4300 digits") from None


def _pack_text(text: str, path: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Unencodable(path, "a string with half a character (a lone surrogate)") from None
    return text


def _pack_dict(value: dict[object, object], path: str, depth: int) -> Json:
    packed: dict[str, Json] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise Unencodable(path, f"a dict with the key {key!r} of type {type(key).__name__}")
        packed[_pack_text(str(key), path)] = _pack(item, f"{path}.{key}", depth + 1)
    if len(packed) == 1 and next(iter(packed)) in _MARKS:
        return {"dict": packed}
    return packed


def _pack_other(value: object, path: str, depth: int) -> Json:
    if isinstance(value, float):
        return _pack_float(float(value))
    if isinstance(value, _Scalar) and math.prod(value.shape) == 1 and len(value.shape) == 0:
        item = value.item()
        if type(item) is not type(value):
            return _pack(item, path, depth + 1)
    raise Unencodable(path, f"of type {type(value).__module__}.{type(value).__qualname__}")


def unpack(value: Json) -> Json:
    """Return the user's value of a packed one (tuples stay lists, numpy scalars stay numbers).

    Never fails: what only looks like a packed form, in a job written by hand, is taken for the dict it is.
    """
    if isinstance(value, dict):
        if len(value) == 1:
            mark, inner = next(iter(value.items()))
            if mark == "float" and isinstance(inner, str) and inner in _FLOATS:
                return float(inner)
            if mark == "int" and isinstance(inner, str) and _INT.fullmatch(inner):
                return int(inner)
            if mark == "dict" and isinstance(inner, dict):
                return {key: unpack(item) for key, item in inner.items()}
        return {key: unpack(item) for key, item in value.items()}
    if isinstance(value, list):
        return [unpack(item) for item in value]
    return value
