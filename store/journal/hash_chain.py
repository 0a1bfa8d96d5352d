"""The hash chain over commits: what makes a change of the past visible. Its bytes can never change."""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Any

GENESIS = bytes(32)
_NULL = b"\xff\xff\xff\xff"
_FOUR = struct.Struct(">4q")
_int = struct.Struct(">q").pack
_two = struct.Struct(">qq").pack
_length = struct.Struct(">I").pack
# What stands side by side is packed at once: each call takes as long as the packing.
_int_and_length = struct.Struct(">qI").pack
_two_and_length = struct.Struct(">qqI").pack

EventRow = Sequence[Any]
"""A row of `events`: position, commit_id, stream, version, command, type, shape, at, actor, cause, data, body_hash."""


def event_digest(row: EventRow) -> bytes:
    """Return SHA-256 over position, stream, version, command, type, shape, at, actor, cause, data, body_hash.

    Integers are big-endian int64; text and bytes a u32 length and the bytes; null a length of 2³² - 1.
    """
    position, _, stream, version, command, type_, shape, at, actor, cause, data, body_hash = row
    stream, type_, data = stream.encode(), type_.encode(), data.encode()
    actor = None if actor is None else actor.encode()
    return hashlib.sha256(
        b"".join(
            (
                _int_and_length(position, len(stream)),
                stream,
                _two_and_length(version, command, len(type_)),
                type_,
                _two(shape, at),
                _NULL if actor is None else _length(len(actor)) + actor,
                _NULL if cause is None else _int(cause),
                _length(len(data)),
                data,
                _NULL if body_hash is None else _length(len(body_hash)) + body_hash,
            )
        )
    ).digest()


def link(previous: bytes, commit_id: int, first: int, last: int, recorded_at: int, digests: Iterable[bytes]) -> bytes:
    """Return the chain hash of a commit: over the one before, its numbers, and its events in the order of positions."""
    head = previous + _FOUR.pack(commit_id, first, last, recorded_at)
    return hashlib.sha256(head + b"".join(digests)).digest()
