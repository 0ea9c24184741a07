"""Why something cannot be sent to the ranks: which variable of which function, or which part, cannot be pickled."""

from __future__ import annotations

import inspect
import pickle
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Final, cast

from runfold.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

FAILURES: Final = (pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError)
"""What pickling raises of what it cannot pickle."""

DEPTH_MAX_COUNT: Final = 4
"""Functions that call functions are looked through so far."""

PARTS_MAX_COUNT: Final = 10_000


def unpicklable(what: object, error: Exception, dump: Callable[[object], bytes]) -> UsageError:
    """Return the error for what could not be pickled; names the variable that is to blame where it can be found."""
    name = getattr(what, "__qualname__", None) or type(what).__name__
    blamed = next(_blamed(what, dump, DEPTH_MAX_COUNT), "")
    why = f"{blamed} cannot be pickled ({error})" if blamed else f"it cannot be pickled: {error}"
    return UsageError(
        f"{name} cannot be sent to the ranks: {why}\n"
        "Make such things inside the function that the ranks call, or give a reference to it: 'module:function'. "
        "Nothing was published."
    )


def _blamed(what: object, dump: Callable[[object], bytes], depth: int) -> Iterator[str]:
    """Yield the parts that cannot be pickled by themselves, the innermost that is known first."""
    if depth == 0:
        return
    for title, value in _parts(what):
        if isinstance(value, ModuleType) or _dumps(dump, value):
            continue
        inner = next(_blamed(value, dump, depth - 1), "")
        yield f"{title} → {inner}" if inner else f"{title} ({type(value).__name__})"


def _parts(what: object) -> Iterator[tuple[str, object]]:
    if isinstance(what, MethodType):
        yield f"the object of {what.__qualname__}", what.__self__
        return
    if isinstance(what, FunctionType):
        used = inspect.getclosurevars(what)
        yield from _named("its variable", used.nonlocals)
        yield from _named("the global", used.globals)
        yield from ((f"default {place} of its arguments", value) for place, value in enumerate(what.__defaults__ or ()))
    elif isinstance(what, dict):
        named = list(cast("dict[object, object]", what).items())[:PARTS_MAX_COUNT]
        yield from ((f"the value of {key!r}", value) for key, value in named)
    elif isinstance(what, list | tuple):
        items = list(cast("list[object] | tuple[object, ...]", what))[:PARTS_MAX_COUNT]
        yield from ((f"item {place}", value) for place, value in enumerate(items))
    elif hasattr(what, "__dict__") and not isinstance(what, type):
        yield from _named("the attribute", vars(what))


def _named(kind: str, values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    return ((f"{kind} {name!r}", value) for name, value in values.items())


def _dumps(dump: Callable[[object], bytes], value: object) -> bool:
    try:
        dump(value)
    except FAILURES:
        return False
    return True
