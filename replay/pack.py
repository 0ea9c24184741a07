"""Lines packed by zstd, and unpacked within a bound."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import zstandard

LEVEL: Final = 6


class BadPack(ValueError):
    """Bytes that do not unpack, or to more than they may."""


def pack_lines(lines: Iterable[bytes]) -> bytes:
    """Return these lines, a newline after each, packed."""
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(b"".join(line + b"\n" for line in lines))


def unpack(data: bytes, max_bytes: int) -> bytes:
    """Return the unpacked bytes; raise `BadPack` when there are more than `max_bytes`, or the pack is damaged."""
    try:
        # The size stated in the frame is what would be allocated: it is looked at before it is believed.
        stated = zstandard.frame_content_size(data)
        if stated > max_bytes:
            raise BadPack(f"it states {stated} bytes unpacked, more than the {max_bytes} it may have")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=max_bytes)
    except zstandard.ZstdError as error:
        raise BadPack(f"it does not unpack: {error}") from None
