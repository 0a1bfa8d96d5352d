"""Decoding of stored bodies into payload, which is a JSON object keyed by field."""

import zlib
from typing import Any

import orjson

from store.domain.events import Body, Json
from store.errors import Corrupt, Incompatible
from store.validation.json_limits import PLAIN, ZLIB


def raw_json(codec: int, stored: bytes) -> bytes:
    """Return the uncompressed JSON text of a stored body.

    Raises:
        Incompatible: a newer version wrote it with a codec that this version does not know.
        Corrupt: the bytes cannot be decoded with the codec.
    """
    if codec == ZLIB:
        try:
            return zlib.decompress(stored)
        except zlib.error as error:
            raise Corrupt("a stored body", error, "bytes compressed with zlib") from None
    if codec == PLAIN:
        return bytes(stored)
    raise Incompatible(f"a body is stored with codec {codec}, unknown to this version", "upgrade Rollbook")


def payload(codec: int | None, stored: bytes | None) -> Json | None:
    """Return the payload of a stored body; None if there is no body, because none was written or it was removed.

    Raises:
        Incompatible: a newer version wrote it.
        Corrupt: the bytes are not a JSON object.
    """
    if codec is None or stored is None:
        return None
    try:
        found: Any = orjson.loads(raw_json(codec, stored))
    except orjson.JSONDecodeError as error:
        raise Corrupt("a stored body", error, "JSON") from None
    return found


def payload_of(body: Body | None) -> Json | None:
    """Return the payload of an event's body."""
    return None if body is None else payload(body.codec, body.stored)
