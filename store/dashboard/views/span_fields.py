"""Attributes of spans, events and resources, prepared for display: JSON is indented, and long values are truncated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from store.dashboard.views.formats import pretty

LONGEST: Final = 2_000
"""The maximum number of characters shown of a value, unless the full value is requested."""
MOST_FIELDS: Final = 300
_LARGEST_LAID_OUT: Final = 200_000


@dataclass(frozen=True, slots=True)
class SpanField:
    """One attribute for display."""

    name: str
    text: str
    """The value of the attribute. JSON is indented, also if the value is a string with JSON."""
    length: int
    """The length of the full value in characters. In the last field `…`, the number of omitted attributes."""
    is_cut: bool
    """Whether `text` is truncated."""


def fields_of(
    attributes: Mapping[str, Any], *, shows_all: bool = False, longest: int = LONGEST, most: int = MOST_FIELDS
) -> list[SpanField]:
    """Return attributes sorted by their names. Names are split at dots, and parts that are numbers sort as numbers.

    Args:
        attributes: the attributes of a span, an event or a resource.
        shows_all: whether to return all attributes with their full values, without regard to `longest` and `most`.
        longest: the maximum number of characters shown of a value.
        most: the maximum number of attributes.
    """
    fields: list[SpanField] = []
    for name in sorted(attributes, key=_order):
        if not shows_all and len(fields) == most:
            left = len(attributes) - most
            fields.append(SpanField("…", f"and {left:,} more", left, is_cut=True))
            break
        text = _text(attributes[name])
        is_cut = not shows_all and len(text) > longest
        fields.append(SpanField(name, text[:longest] if is_cut else text, len(text), is_cut))
    return fields


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return pretty(value) if isinstance(value, (list, dict)) else orjson.dumps(value).decode()
    if value[:1] in {"{", "["} and len(value) <= _LARGEST_LAID_OUT:
        try:
            return pretty(orjson.loads(value))
        except (orjson.JSONDecodeError, orjson.JSONEncodeError):
            # The text is not JSON, or is nested too deeply to be written again.
            return value
    return value


def _order(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts `prompt.2` before `prompt.10`."""
    parts = name.split(".")
    return [(0, int(part), "") if part.isdecimal() and len(part) < 10 else (1, 0, part) for part in parts]
