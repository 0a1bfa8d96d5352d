"""Conversion of attributes with dotted names to nested objects and lists.

A tracer cannot record a nested value as one attribute, so it records each leaf under a name such as `choices.0.text`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final, cast

import orjson

__all__ = ["below", "decoded", "indexed", "unflatten"]

_TEXT_LIMIT: Final = 64 * 1024 * 1024
"""The maximum number of characters of text that is parsed. Lists of token ids for training are shorter."""


def below(attributes: Mapping[str, Any], prefix: str) -> Any:
    """Return the attributes whose names begin with `prefix` and a dot, as a nested list or object.

    An attribute whose name is the prefix itself is ignored. If no attribute is found, {} is returned.
    """
    start = f"{prefix}."
    flat = {name[len(start) :]: value for name, value in attributes.items() if name.startswith(start)}
    return unflatten(flat) if flat else {}  # most attributes of most calls have no name with the prefix


def unflatten(flat: Mapping[str, Any]) -> Any:
    """Return the nested value of flat attributes. An object becomes a list if its n keys are exactly 0 to n-1.

    If both `a` and `a.b` are given, the later entry of the mapping replaces the earlier entry.
    """
    root: dict[str, Any] = {}
    for name, value in flat.items():
        *above, last = name.split(".")
        node = root
        for part in above:
            inner = node.get(part)
            # Only objects that this function created may get further keys. An object from the input is a value.
            if type(inner) is not _Object:
                inner = node[part] = _Object()
            node = inner
        node[last] = value
    return _with_lists(root)


def indexed(value: Any) -> list[Any]:
    """Return the items of a list, or the values of an object whose keys are numbers, in numeric order.

    Other keys of the object are ignored. For any other value, return an empty list.
    """
    if isinstance(value, (list, tuple)):
        return list(cast("list[Any]", value))
    if not isinstance(value, Mapping):
        return []
    items = cast("Mapping[Any, Any]", value)
    names = [name for name in items if isinstance(name, str) and name.isascii() and name.isdigit()]
    return [items[name] for name in sorted(names, key=lambda name: (len(name), name))]


def decoded(value: Any) -> Any:
    """Return the list or object that a text represents as JSON or as a Python literal. Return other values unchanged.

    A text that cannot be parsed, or that is longer than the limit, is also returned unchanged.
    """
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
    """Object that was created from dotted names. Objects that come from the input have another type."""


def _with_lists(root: dict[str, Any]) -> Any:
    """Return the nested objects with lists in place of objects with numeric keys.

    The function does not use recursion, because names may have any number of dots.
    """
    objects: list[tuple[dict[str, Any], str, dict[str, Any]]] = []
    waiting: list[dict[str, Any]] = [root]
    while waiting:
        node = waiting.pop()
        for name, value in node.items():
            if type(value) is _Object:
                objects.append((node, name, value))
                waiting.append(value)
    # An object comes after the object that contains it, so inner objects are converted first.
    for above, name, node in reversed(objects):
        above[name] = _as_list(node)
    return _as_list(root)


def _as_list(node: dict[str, Any]) -> Any:
    if node and "0" in node:
        keys = [str(index) for index in range(len(node))]
        if all(key in node for key in keys):
            return [node[key] for key in keys]
    return dict(node)
