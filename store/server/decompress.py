"""Compressed request bodies, opened no further than a limit: what a bomb holds is never there."""

import zlib
from typing import Final

CODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})
"""The content codings that `expand` knows."""

_GZIP: Final = 16 + zlib.MAX_WBITS
_ZLIB_METHOD: Final = 8


class TooLong(ValueError):
    """A body holds more than was asked for."""


class Broken(ValueError):
    """A body is not in the coding it is said to be in, or ends too early."""


def expand(body: bytes, coding: str, limit: int) -> bytes:
    """Return what a compressed body holds.

    Args:
        body: as it came.
        coding: one of `CODINGS`.
        limit: bytes; no more than that is ever opened.

    Raises:
        TooLong: it holds more than the limit.
        Broken: it is damaged, incomplete, or something else.
    """
    if not body:
        return b""
    window = _deflate_window(body) if coding == "deflate" else _GZIP
    parts: list[bytes] = []
    size = 0
    while True:
        inflater = zlib.decompressobj(window)
        try:
            # One byte more than allowed tells a body that fits from one that does not.
            parts.append(inflater.decompress(body, limit - size + 1))
        except zlib.error as error:
            raise Broken(f"the body is not {coding}: {error}") from None
        size += len(parts[-1])
        if size > limit:
            raise TooLong(f"the body holds more than {limit:,} bytes")
        if not inflater.eof:
            raise Broken(f"the {coding} body ends too early")
        body = inflater.unused_data
        if not body:
            return b"".join(parts)
        if coding == "deflate":
            raise Broken("something follows the end of the deflate body")


def _deflate_window(body: bytes) -> int:
    # By the standard it is zlib's format; some senders leave out its header.
    has_header = len(body) > 1 and body[0] & 0x0F == _ZLIB_METHOD and int.from_bytes(body[:2], "big") % 31 == 0
    return zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS
