"""Decoding of stored bodies, which are JSON objects."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import orjson

from store.domain.body import FIRST_DICTIONARY_CODEC, PLAIN, ZLIB
from store.errors import Corrupt, Incompatible

if TYPE_CHECKING:
    from store.domain.body import Body
    from store.domain.events import Json


def raw_json(codec: int, stored: bytes) -> bytes:
    """Return the uncompressed JSON text of a stored body.

    Raises:
        Incompatible: a newer version of this program wrote the body with a codec that this version does not know.
        Corrupt: the bytes cannot be decoded with the codec, or the dictionary is missing.
    """
    if codec == ZLIB:
        try:
            return zlib.decompress(stored)
        except zlib.error as error:
            raise Corrupt("a stored body", error, "bytes compressed with zlib") from None
    if codec == PLAIN:
        return stored if stored.__class__ is bytes else memoryview(stored).tobytes()
    # SQLite does not enforce the types of columns.
    if codec.__class__ is int and codec >= FIRST_DICTIONARY_CODEC:
        # The session decompresses such a body if it can, so the dictionary or the body is damaged.
        raise Corrupt("a stored body", "one that cannot be decompressed", f"bytes compressed with dictionary {codec}")
    raise Incompatible(f"a body is stored with codec {codec}, unknown to this version", "upgrade Rollbook")


def raw_and_rest(codec: int, stored: bytes) -> tuple[bytes, int]:
    """Return the uncompressed JSON text of a stored body, and the number of extra bytes after the compressed stream.

    Raises:
        Incompatible: a newer version of this program wrote the body with a codec that this version does not know.
        Corrupt: the bytes cannot be decoded with the codec.
    """
    if codec != ZLIB:
        return raw_json(codec, stored), 0
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(stored)
    except zlib.error as error:
        raise Corrupt("a stored body", error, "bytes compressed with zlib") from None
    if not stream.eof:
        raise Corrupt("a stored body", "a compressed stream that is cut off", "bytes compressed with zlib")
    return raw, len(stream.unused_data)


def payload(codec: int | None, stored: bytes | None) -> Json | None:
    """Return the payload of a stored body. Without a body, return None: the body was never written, or was removed.

    Raises:
        Incompatible: a newer version of this program wrote the body with a codec that this version does not know.
        Corrupt: the bytes cannot be decoded, or are not JSON.
    """
    if codec is None or stored is None:
        return None
    try:
        value: Any = orjson.loads(raw_json(codec, stored))
    except orjson.JSONDecodeError as error:
        raise Corrupt("a stored body", error, "JSON") from None
    return value


def payload_of(body: Body | None) -> Json | None:
    """Return the payload that the body of an event contains; None if `body` is None."""
    return None if body is None else payload(body.codec, body.stored)
