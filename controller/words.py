"""Small turns of phrase that reasons share."""

from __future__ import annotations


def ranks(count: int) -> str:
    """Return `1 rank` or `2 ranks`."""
    return f"{count} rank{'s' if count != 1 else ''}"


def listed(names: list[str], shown_max: int = 4) -> str:
    """Return names in one line, the rest of a long list as a count."""
    more = len(names) - shown_max
    return ", ".join(names[:shown_max]) + (f" and {more} more" if more > 0 else "")


def entry_words(entrypoint: str, name: str) -> str:
    """Return an entry point for people; of a pickled function the name, not its 64 digits."""
    return f"{name} (pickled)" if name and entrypoint.startswith("blob:") else entrypoint


def because(reason: str) -> str:
    """Return a reason as the tail of a sentence; nothing when there is none."""
    return f": {reason}" if reason else ""
