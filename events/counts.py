"""Numbers of things in words."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str) -> str:
    """Return `1 rank`, `2 ranks`, `3 entries`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {f'{noun[:-1]}ies' if noun.endswith('ry') else f'{noun}s'}"


def stay(nodes: Sequence[str]) -> str:
    """Return `a stays after all`, `a, b stay after all`."""
    return f"{', '.join(nodes)} {'stays' if len(nodes) == 1 else 'stay'} after all"
