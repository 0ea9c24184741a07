"""Numbers of things in words."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return `1 rank`, `2 ranks`, `3 entries`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {f'{noun[:-1]}ies' if noun.endswith('ry') else f'{noun}s'}"
