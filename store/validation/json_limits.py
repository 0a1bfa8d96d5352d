"""Encoding of payloads as JSON that every database returns unchanged, with limits, compression and hashes."""

import hashlib
import math
import zlib
from collections.abc import Iterable
from typing import Any, cast

import orjson
import rfc8785

from store.domain.body import PLAIN, ZLIB, Body
from store.errors import Invalid, TooLarge
from store.validation import arguments

MAX_CALL_BYTES = 16 * 1024 * 1024
MAX_CALL_ITEMS = 10_000
MAX_DATA_BYTES = 8 * 1024
"""The limit of the `data` of an event. Payload does not count, because it is stored in the body."""
# The minimum size in bytes of a body that is compressed. For a small body, compression would take longer than all other
# steps of a call. Large bodies mostly consist of repeated prompts, which compress well. Decision 11.
_COMPRESS_FROM = 4096
_STRICT = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS
_MAX_DEPTH = 200
_TEXT_BYTES = 512


def dumps(value: Any, field: str) -> bytes:
    """Return a value as JSON text that every database stores without a change of the value.

    Raises:
        Invalid: the value contains NaN, infinity, an integer beyond 64 bits, U+0000, a lone surrogate, or an object
            that is not JSON. The error contains the field and the path inside it.
    """
    text = dumps_plain(value)
    if text is not None:
        return text
    _find_fault(value, field, 0)
    try:
        return orjson.dumps(value, option=_STRICT)
    except (TypeError, RecursionError) as error:
        raise Invalid(field, f"is not JSON: {error}") from None


def dumps_fields(value: dict[str, Any], prefix: str) -> bytes:
    """Return an object as JSON text, like `dumps`. In errors, the field is `prefix` followed by a key."""
    text = dumps_plain(value)
    if text is not None:
        return text
    return b"{" + b",".join(dumps(key, prefix) + b":" + dumps(item, prefix + key) for key, item in value.items()) + b"}"


def dumps_plain(value: Any, texts: Iterable[str] = ()) -> bytes | None:
    """Return a value as `dumps` does; None if a quick check cannot exclude a fault in the value or in the texts.

    The caller must then use `dumps` and `check_text`, which find a fault exactly. The quick check accepts texts that
    together are at most 512 characters of ASCII without U+0000.

    orjson writes NaN as null and accepts U+0000. So if the JSON text contains neither `null` nor U+0000, the value has
    neither of these faults. `OPT_STRICT_INTEGER` refuses integers beyond 53 bits, although 64 bits are valid.
    """
    try:
        joined = "".join(texts)
        if len(joined) > _TEXT_BYTES or not joined.isascii() or "\x00" in joined:
            return None
        text = orjson.dumps(value, option=_STRICT | orjson.OPT_STRICT_INTEGER)
    except (TypeError, RecursionError):
        return None
    return None if b"null" in text or b"\\u0000" in text else text


def _find_fault(value: Any, path: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise Invalid(path, f"is nested deeper than {_MAX_DEPTH} levels; flatten it")
    match value:
        case None | bool():
            return
        case str():
            _check_text(value, path)
        case int() | float():
            _check_number(value, path)
        case list() | tuple():
            for index, item in enumerate(cast("list[Any]", value)):
                _find_fault(item, f"{path}[{index}]", depth + 1)
        case dict():
            for key, item in cast("dict[Any, Any]", value).items():
                if not isinstance(key, str):
                    raise Invalid(path, f"the key {key!r} is not text; JSON objects have text keys")
                _check_text(key, path)
                _find_fault(item, f"{path}.{key}", depth + 1)
        case _:
            raise Invalid(path, f"{type(value).__name__} is not JSON; convert it to text, numbers, lists and objects")


def _check_number(value: float, path: str) -> None:
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            # Python refuses to write integers of more than 4,300 digits.
            label = f"the integer {value}" if value.bit_length() <= 256 else "an integer"
            raise Invalid(path, f"{label} needs more than 64 bits; send it as text")
    elif not math.isfinite(value):
        raise Invalid(path, f"{value} is not JSON; send null or text instead")


def _check_text(value: str, path: str) -> None:
    if "\x00" in value:
        raise Invalid(path, "contains U+0000, which Postgres cannot store; remove it")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Invalid(path, "contains a lone surrogate, which is not text; decode with errors='replace'") from None


def check_text(value: str, path: str, limit: int = _TEXT_BYTES) -> str:
    """Return an id or a name unchanged, if a database can store it.

    Raises:
        Invalid: the value is not text, or contains U+0000 or a lone surrogate.
        TooLarge: the text has more than `limit` bytes of UTF-8.
    """
    if "\x00" in arguments.text(value, path):
        raise Invalid(path, "contains U+0000, which Postgres cannot store; remove it")
    # A character takes at most four bytes.
    if len(value) * 4 > limit or not value.isascii():
        _check_text(value, path)
        if len(value.encode()) > limit:
            raise TooLarge(path, len(value.encode()), limit)
    return value


def body_of(payload: dict[str, Any], path: str = "") -> Body:
    """Return the stored form of a payload, which must have at least one field.

    Raises:
        Invalid: a value is not JSON that every database accepts. The field in the error is `path` followed by a key.
        TooLarge: the payload exceeds the limit of a call.
    """
    raw = dumps_fields(payload, path)
    check_call(0, len(raw), path.rstrip(".") or next(iter(payload)))
    return encode_body(raw)


def encode_body(raw: bytes) -> Body:
    """Return the stored form of a payload's JSON text: compressed if this makes it smaller, with its SHA-256."""
    sha256 = hashlib.sha256(raw).digest()
    if len(raw) >= _COMPRESS_FROM:
        packed = zlib.compress(raw, 1)
        if len(packed) < len(raw):
            return Body(ZLIB, len(raw), packed, sha256)
    return Body(PLAIN, len(raw), raw, sha256)


def check_call(items: int, size: int, field: str) -> None:
    """Check that the items of a call and their size in bytes are within the limits.

    Raises:
        TooLarge: the call has more than 10,000 items, or more than 16 MiB; the caller must split it.
    """
    if items > MAX_CALL_ITEMS:
        raise TooLarge(field, items, MAX_CALL_ITEMS, "items")
    if size > MAX_CALL_BYTES:
        raise TooLarge(field, size, MAX_CALL_BYTES)


def canonical_sha256(value: Any) -> str:
    """Return the SHA-256 of a JSON value in its canonical form (RFC 8785), as hex.

    Integers beyond ±2⁵³, which RFC 8785 does not support, are written in full. Decision 5.
    """
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS) if _is_plain(value) else rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()


def _is_plain(value: Any) -> bool:
    """Return whether the canonical form of a value differs from its JSON only in the order of keys."""
    match value:
        case None | bool() | str():
            return True
        case int():
            return -(2**53) < value < 2**53
        case float():
            return False
        case list() | tuple():
            return all(_is_plain(item) for item in cast("list[Any]", value))
        case dict():
            items = cast("dict[str, Any]", value).items()
            return all(key.isascii() and _is_plain(item) for key, item in items)
        case _:
            return False
