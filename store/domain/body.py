"""Stored form of the payload of an event. Decision 83."""

from dataclasses import dataclass

PLAIN, ZLIB = 0, 1
"""The codecs of bodies that are not compressed, and of bodies that are compressed with zlib."""
FIRST_DICTIONARY_CODEC = 16
"""The number of the first dictionary. Smaller codecs need no dictionary. See `store.db.dictionaries`."""


@dataclass(slots=True)
class Body:
    """The payload of one event in its stored form, usually a JSON object with one key for each field."""

    codec: int
    """0 for plain JSON, 1 for zlib, or the number of a dictionary."""
    raw_len: int
    """The number of bytes before compression."""
    stored: bytes
    sha256: bytes
    """The hash of the uncompressed bytes."""
