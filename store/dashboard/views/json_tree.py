"""JSON as a tree that opens part by part, within a budget of characters and parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import orjson

LONGEST: Final = 4_000
"""How many characters of a text are shown."""
BUDGET: Final = 200_000
"""Characters of a whole tree."""
MOST: Final = 3_000
"""Parts of a whole tree."""
_DEEPEST: Final = 24
_LONGEST_NAME: Final = 400


@dataclass(slots=True)
class Node:
    """A value by its name: one with parts, or a text of JSON."""

    name: str
    text: str = ""
    kind: str = "value"
    """object, array, text or value."""
    parts: list[Node] = field(default_factory=list["Node"])
    count: int = 0
    """How many parts or characters it has in all."""
    is_cut: bool = False


@dataclass(slots=True)
class _Left:
    characters: int
    parts: int = MOST


def tree(value: Any, *, budget: int = BUDGET, longest: int = LONGEST) -> list[Node]:
    """Return the parts of an object; of anything else itself.

    Args:
        value: plain JSON.
        budget: how many characters the whole tree may have; what comes after it is left out, and said so.
        longest: how many characters of one text are shown.
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
        # Token ids and the like: a line, not a thousand parts.
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
