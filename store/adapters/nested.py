"""Conversion of dotted attribute names back to the nested objects and lists that they were flattened from."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final, cast

import orjson

__all__ = ["below", "decoded", "indexed", "unflatten"]

_TEXT_LIMIT: Final = 64 * 1024 * 1024
"""The maximum number of characters of a parsed text. Lists of token ids for training are shorter."""


def below(attributes: Mapping[str, Any], prefix: str) -> Any:
    """Return the nested value of the attributes below a prefix: a list, an object, or {} if there are none.

    A value under the bare prefix is ignored.
    """
    start = f"{prefix}."
    return unflatten({name[len(start) :]: value for name, value in attributes.items() if name.startswith(start)})


def unflatten(flat: Mapping[str, Any]) -> Any:
    """Return the nested value; numeric names become list indices only if they are exactly 0 to n-1.

    If both `a` and `a.b` are given, the later one counts.
    """
    root: dict[str, Any] = {}
    for name, value in flat.items():
        *above, last = name.split(".")
        node = root
        for part in above:
            inner = node.get(part)
            # Only objects created here may get further keys; an object in the input is a value.
            if type(inner) is not _Object:
                inner = node[part] = _Object()
            node = inner
        node[last] = value
    return _with_lists(root)


def indexed(value: Any) -> list[Any]:
    """Return the items of a list, or of an object with numeric names in numeric order; else an empty list."""
    if isinstance(value, (list, tuple)):
        return list(cast("list[Any]", value))
    if not isinstance(value, Mapping):
        return []
    given = cast("Mapping[Any, Any]", value)
    numbers = sorted((name for name in given if _is_index(name)), key=lambda name: (len(name), name))
    return [given[name] for name in numbers]


def decoded(value: Any) -> Any:
    """Return the list or object in a text, parsed as JSON or a Python literal; other values are unchanged."""
    if not isinstance(value, str) or len(value) > _TEXT_LIMIT or value.lstrip()[:1] not in {"[", "{"}:
        return value
    try:
        return orjson.loads(value)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return value


class _Object(dict[str, Any]):
    """Object that was created from dotted names. Objects among the values are of another type."""


def _with_lists(root: dict[str, Any]) -> Any:
    """Return the tree with lists in place of numeric names. Names may have any depth, so it avoids recursion."""
    made: list[tuple[dict[str, Any], str, dict[str, Any]]] = []
    waiting: list[dict[str, Any]] = [root]
    while waiting:
        node = waiting.pop()
        for name, value in node.items():
            if type(value) is _Object:
                made.append((node, name, value))
                waiting.append(value)
    # The nodes found last are the deepest, so they are converted first.
    for above, name, node in reversed(made):
        above[name] = _as_list(node)
    return _as_list(root)


def _as_list(node: dict[str, Any]) -> Any:
    if node and "0" in node:
        keys = [str(index) for index in range(len(node))]
        if all(key in node for key in keys):
            return [node[key] for key in keys]
    return dict(node)


def _is_index(name: Any) -> bool:
    return isinstance(name, str) and name.isascii() and name.isdigit()
