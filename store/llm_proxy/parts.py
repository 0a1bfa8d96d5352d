"""Functions that read untrusted JSON.

Each function returns a value of one type. For input of another type, it returns an empty value or None.
"""

from __future__ import annotations

from typing import Any, cast

import orjson

from store.runtime import lenient_json

Json = dict[str, Any]


def parse(body: bytes) -> tuple[Any, bool]:
    """Return a body as a JSON value, and whether all of its text could be read.

    Common JSON libraries accept more than the standard allows, so the proxy does too. Bytes that are not UTF-8 become
    U+FFFD, and then the second value is False. For a body that is not JSON, the value is None and the second value is
    False.
    """
    for text, is_exact in ((body, True), (body.decode(errors="replace").encode(), False)):
        try:
            return lenient_json.loads(text), is_exact
        except orjson.JSONDecodeError:
            continue
    return None, False


def as_object(value: Any) -> Json:
    """Return the value if it is an object, else an empty object."""
    return cast("Json", value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty list."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_objects(value: Any) -> list[Json]:
    """Return the items of a list that are objects; an empty list if the value is not a list."""
    return [cast("Json", each) for each in as_list(value) if isinstance(each, dict)]


def as_text(value: Any) -> str | None:
    """Return the value if it is text, else None."""
    return value if isinstance(value, str) else None


def as_count(value: Any) -> int | None:
    """Return the value if it is a 64-bit integer and not a bool, else None."""
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


def as_ids(value: Any) -> list[int]:
    """Return the value if it is a list of 64-bit integers, else an empty list.

    If the first item of the value is a list itself, this inner list is used instead of the value.
    """
    items = as_list(value)
    if items and isinstance(items[0], list):
        items = as_list(items[0])
    # A prompt may have a hundred thousand ids. A Python loop over the ids would delay all other calls.
    if not items or set(map(type, items)) != {int}:
        return []
    return items if min(items) >= -(2**63) and max(items) < 2**63 else []
