"""Decompression of request bodies up to a limit, so that a compression bomb never fills the memory."""

import zlib
from typing import Final

CODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})
"""The content codings that `expand` supports."""

MOST_MEMBERS: Final = 10_000
"""The maximum number of gzip members (compressed files, one after another) in a body."""

# At the end of a member, zlib copies the rest of its input. If the input is a small piece, the copy is small too.
_PIECE_BYTES: Final = 16 * 1024
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
        Broken: the body is damaged, incomplete, in another coding, or has too many members.
    """
    if not body:
        return b""
    window = _GZIP
    if coding == "deflate":
        # The standard requires zlib's format, but some senders leave out the header of this format.
        has_header = len(body) > 1 and body[0] & 0x0F == _ZLIB_METHOD and int.from_bytes(body[:2], "big") % 31 == 0
        window = zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS
    parts: list[bytes] = []
    rest, size, members = memoryview(body), 0, 0
    while rest:
        if coding == "deflate" and members:
            raise Broken("the body continues after the end of the deflate data")
        members += 1
        if members > MOST_MEMBERS:
            raise Broken(f"the {coding} body has more than {MOST_MEMBERS:,} members; compress it as one")
        inflater = zlib.decompressobj(window)
        while not inflater.eof:
            if not rest:
                raise Broken(f"the {coding} body ends too early")
            piece = rest[:_PIECE_BYTES]
            try:
                # One byte more than the limit shows whether the content fits.
                parts.append(inflater.decompress(piece, limit - size + 1))
            except zlib.error as error:
                raise Broken(f"the body is not {coding}: {error}") from None
            size += len(parts[-1])
            if size > limit:
                raise TooLong(f"the body holds more than {limit:,} bytes")
            rest = rest[len(piece) - len(inflater.unused_data) :]
    return b"".join(parts)
