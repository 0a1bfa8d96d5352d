"""Decompression of request bodies up to a limit, so that a compression bomb never fills the memory."""

import zlib
from typing import Final

CODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})
"""The content codings that `expand` supports."""

_GZIP: Final = 16 + zlib.MAX_WBITS
_ZLIB_METHOD: Final = 8


class TooLong(ValueError):
    """A body is larger than the limit."""


class Broken(ValueError):
    """A body is not in its declared coding, or ends too early."""


def expand(body: bytes, coding: str, limit: int) -> bytes:
    """Return the content of a compressed body.

    Args:
        body: the body as it was sent.
        coding: one of `CODINGS`.
        limit: the largest content in bytes; no more is decompressed.

    Raises:
        TooLong: the content is larger than the limit.
        Broken: the body is damaged, incomplete, or in another coding.
    """
    if not body:
        return b""
    window = _deflate_window(body) if coding == "deflate" else _GZIP
    parts: list[bytes] = []
    size = 0
    while True:
        inflater = zlib.decompressobj(window)
        try:
            # One byte more than the limit shows whether the content fits.
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
    # The standard requires zlib's format, but some senders leave out its header.
    has_header = len(body) > 1 and body[0] & 0x0F == _ZLIB_METHOD and int.from_bytes(body[:2], "big") % 31 == 0
    return zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS
