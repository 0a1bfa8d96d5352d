"""Collapsible trees of JSON values, limited in characters and nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import orjson

LONGEST: Final = 4_000
"""The maximum number of characters shown of one string."""
BUDGET: Final = 200_000
"""The maximum number of characters in a tree."""
MOST: Final = 3_000
"""The maximum number of nodes in a tree."""
_DEEPEST: Final = 24
_LONGEST_NAME: Final = 400


@dataclass(slots=True)
class Node:
    """A named value: an object or array with children, or a scalar as JSON text."""

    name: str
    text: str = ""
    kind: str = "value"
    """object, array, text or value."""
    parts: list[Node] = field(default_factory=list["Node"])
    count: int = 0
    """The total number of the value's children or characters."""
    is_cut: bool = False


@dataclass(slots=True)
class _Left:
    characters: int
    parts: int = MOST


def tree(value: Any, *, budget: int = BUDGET, longest: int = LONGEST) -> list[Node]:
    """Return a node for each member of an object, or one node for any other value.

    Args:
        value: plain JSON.
        budget: the maximum number of characters in the tree; the rest is omitted and marked as omitted.
        longest: the maximum number of characters shown of one string.
    """
    root = _node("", value, _Left(budget), longest, 0)
    return root.parts or [root]


def _node(name: str, value: Any, left: _Left, longest: int, depth: int) -> Node:
    name = name[:_LONGEST_NAME]
    left.parts -= 1
    left.characters -= len(name)
    if isinstance(value, (Mapping, list, tuple)):
        return _branch(name, value, left, longest, depth)
    text = value if isinstance(value, str) else _json(value)
    most = min(longest, max(left.characters, 0))
    shown = text[:most]
    left.characters -= len(shown)
    kind = "text" if isinstance(value, str) else "value"
    return Node(name, shown, kind, count=len(text), is_cut=len(shown) < len(text))


def _branch(name: str, value: Any, left: _Left, longest: int, depth: int) -> Node:
    is_object = isinstance(value, Mapping)
    items: list[tuple[Any, Any]] = (
        list(cast("Mapping[Any, Any]", value).items()) if is_object else list(enumerate(cast("list[Any]", value)))
    )
    node = Node(name, kind="object" if is_object else "array", count=len(items))
    if depth >= _DEEPEST:
        node.is_cut = bool(items)
        return node
    if not is_object and len(items) > 8 and all(type(item) in {int, float, bool} for _, item in items):
        # Arrays of numbers such as token ids are shown on one line instead of one node per number.
        text = _json(value)
        shown = text[: min(longest, max(left.characters, 0))]
        left.characters -= len(shown)
        node.text, node.is_cut = shown, len(shown) < len(text)
        return node
    for key, inner in items:
        if left.parts <= 0 or left.characters <= 0:
            node.is_cut = True
            break
        node.parts.append(_node(str(key), inner, left, longest, depth + 1))
    return node


def _json(value: Any) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
