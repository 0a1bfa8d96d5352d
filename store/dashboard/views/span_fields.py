"""Attributes as people read them: JSON laid out, long values cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from store.dashboard.views.formats import pretty

LONGEST: Final = 2_000
"""How many characters of a value are shown unless all of it is asked for."""
MOST_FIELDS: Final = 300
_LARGEST_LAID_OUT: Final = 200_000


@dataclass(frozen=True, slots=True)
class SpanField:
    """One attribute."""

    name: str
    text: str
    """Its value: a text as it is, but JSON laid out in lines."""
    length: int
    """How many characters the value has in all."""
    is_cut: bool


def fields_of(
    attributes: Mapping[str, Any], *, whole: bool = False, longest: int = LONGEST, most: int = MOST_FIELDS
) -> list[SpanField]:
    """Return attributes in the order of their names' parts, numbers by their value.

    Args:
        attributes: of a span, an event or a resource.
        whole: cut nothing, neither values nor the list.
        longest: how many characters of a value are shown.
        most: how many attributes are shown.
    """
    found: list[SpanField] = []
    for name in sorted(attributes, key=_order):
        if not whole and len(found) == most:
            left = len(attributes) - most
            found.append(SpanField("…", f"and {left:,} more", left, is_cut=True))
            break
        text = _text(attributes[name])
        is_cut = not whole and len(text) > longest
        found.append(SpanField(name, text[:longest] if is_cut else text, len(text), is_cut))
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return pretty(value) if isinstance(value, (list, dict)) else orjson.dumps(value).decode()
    if value[:1] in {"{", "["} and len(value) <= _LARGEST_LAID_OUT:
        try:
            return pretty(orjson.loads(value))
        except (orjson.JSONDecodeError, orjson.JSONEncodeError):
            # It is none, or one that nests deeper than is written again.
            return value
    return value


def _order(name: str) -> list[tuple[int, int, str]]:
    """Return what sorts `prompt.2` before `prompt.10`."""
    parts = name.split(".")
    return [(0, int(part), "") if part.isdecimal() and len(part) < 10 else (1, 0, part) for part in parts]
