"""What an export may write over: an earlier export of the same format, and nothing else that somebody has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runfold.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOOKED_AT_MAX_BYTES: Final = 64 * 1024

_ENTRY: Final = b'{"v":1,"run":"'
_TRACE: Final = (b'{"traceEvents":', b'"otherData":{"run":')
_PARQUET: Final = b"PAR1"


def check_overwriting(path: Path, form: str, columns: tuple[str, ...] = ()) -> None:
    """Raise `UsageError` when a file is there that no export of this format has written; an empty one is nobody's loss.

    `columns`: the first of those that the table has.
    """
    if path.is_file() and path.stat().st_size and not _OURS[form](path, columns):
        raise UsageError(
            f"export: {path} is there already, and is no export of runfold's in this format\n"
            "It was left as it is. Name another file, or give --force to write over it."
        )


def _first(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(LOOKED_AT_MAX_BYTES)


def _last(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOOKED_AT_MAX_BYTES))
        return file.read()


def _is_csv(path: Path, columns: tuple[str, ...]) -> bool:
    return _first(path).partition(b"\n")[0].startswith(",".join(columns).encode())


def _is_parquet(path: Path, columns: tuple[str, ...]) -> bool:
    last = _last(path)
    return last.endswith(_PARQUET) and all(name.encode() in last for name in columns)


_OURS: Final[dict[str, Callable[[Path, tuple[str, ...]], bool]]] = {
    "jsonl": lambda path, _: _first(path).startswith(_ENTRY),
    "perfetto": lambda path, _: _first(path).startswith(_TRACE[0]) and _TRACE[1] in _last(path),
    "csv": _is_csv,
    "parquet": _is_parquet,
}
