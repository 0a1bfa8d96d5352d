"""JSON values as collapsible trees, with limits on the number of characters and nodes that a tree contains."""

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
_TIMES: Final = frozenset({"start_time", "end_time", "last_heartbeat_time", "timestamp"})
"""The fields of rollouts, attempts and spans with times in seconds since the epoch."""
_DEEPEST: Final = 24
_LONGEST_NAME: Final = 400


@dataclass(slots=True)
class Node:
    """A named value: an object or array with children, or a scalar as JSON text."""

    name: str
    text: str = ""
    kind: str = "value"
    """`object`, `array`, `text` for a string, or `value` for a number, a boolean or null."""
    parts: list[Node] = field(default_factory=list["Node"])
    """The children of an object or array."""
    count: int = 0
    """The number of children of an object or array, or of characters of a scalar. Omitted ones are included."""
    is_cut: bool = False
    """Whether a part of the value is not shown."""
    time: float | None = None
    """The value, if it is a time in seconds since the epoch."""


@dataclass(slots=True)
class _Left:
    """The numbers of characters and nodes that may still be added to a tree."""

    characters: int
    parts: int = MOST


def tree(value: Any, *, budget: int = BUDGET, longest: int = LONGEST) -> list[Node]:
    """Return a node for each member of an object or element of an array, or a single node for any other value.

    Args:
        value: a JSON value.
        budget: the maximum number of characters in the tree. Nodes of which a part is omitted are marked.
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
    excerpt = text[:most]
    left.characters -= len(excerpt)
    kind = "text" if isinstance(value, str) else "value"
    time = value if name in _TIMES and isinstance(value, float) else None
    return Node(name, excerpt, kind, count=len(text), is_cut=len(excerpt) < len(text), time=time)


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
        excerpt = text[: min(longest, max(left.characters, 0))]
        left.characters -= len(excerpt)
        node.text, node.is_cut = excerpt, len(excerpt) < len(text)
        return node
    for key, inner in items:
        if left.parts <= 0 or left.characters <= 0:
            node.is_cut = True
            break
        node.parts.append(_node(str(key), inner, left, longest, depth + 1))
    return node


def _json(value: Any) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
