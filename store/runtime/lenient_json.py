r"""Parser of JSON that other programs wrote. It also accepts the non-standard JSON of common JSON libraries.

Python writes NaN and infinite numbers as `NaN` and `Infinity`. JavaScript and Python write half of a surrogate pair,
such as the half of an emoji at the end of a shortened text, as an escape like `\ud83d`. `orjson` refuses all of these.
"""

from __future__ import annotations

import codecs
import json
from typing import Any, Final, cast

import orjson

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def loads(body: bytes) -> Any:
    """Return the value of a JSON text in UTF-8.

    NaN and infinities become the texts `NaN`, `Infinity` and `-Infinity`. Texts in the value may contain surrogates.

    Raises:
        orjson.JSONDecodeError: the body is not UTF-8, or is not JSON even with these extensions.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as orjson_error:
        try:
            return json.loads(body.removeprefix(codecs.BOM_UTF8).decode(), parse_constant=str)
        except (ValueError, RecursionError):
            raise orjson_error from None


def storable_text(text: str) -> str:
    """Return a text with replacements for U+0000 and surrogates, which databases refuse.

    A pair of surrogates becomes the character that it encodes. U+0000 and single surrogates become U+FFFD.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.replace("\0", REPLACEMENT)


def storable(value: Any) -> Any:
    """Return a JSON value whose texts and keys are storable; see `storable_text`."""
    match value:
        case str():
            return storable_text(value)
        case list():
            return [storable(item) for item in cast("list[Any]", value)]
        case dict():
            return {storable_text(key): storable(item) for key, item in cast("dict[str, Any]", value).items()}
        case _:
            return value


def safe_text(value: object) -> str:
    """Return `str(value)`, or a text with the type of the value if `str` raises an exception."""
    try:
        return str.__str__(str(value))
    except Exception as error:  # noqa: BLE001 - the value decides which exception `str` raises
        return f"<{type(value).__name__}: str() raised {type(error).__name__}>"
