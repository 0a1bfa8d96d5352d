"""Dotted attribute names read back as the objects and lists they were flattened from, whatever they hold."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final, cast

import orjson

__all__ = ["below", "decoded", "indexed", "unflatten"]

_TEXT_LIMIT: Final = 64 * 1024 * 1024
"""Characters: a text above it is no list of token ids that anyone trains on."""


def below(attributes: Mapping[str, Any], prefix: str) -> Any:
    """Return what the attributes below a prefix were flattened from: a list, an object, or {} if there are none.

    A value under the bare prefix says nothing about its parts and is left out.
    """
    start = f"{prefix}."
    return unflatten({name[len(start) :]: value for name, value in attributes.items() if name.startswith(start)})


def unflatten(flat: Mapping[str, Any]) -> Any:
    """Return the nested value; digits become the indices of a list only where they are exactly 0 to n-1.

    Of `a` and `a.b`, which contradict each other, the one that comes later holds.
    """
    root: dict[str, Any] = {}
    for name, value in flat.items():
        *above, last = name.split(".")
        node = root
        for part in above:
            inner = node.get(part)
            # Only what is made here is an object to go on with; one that was given is a value.
            if type(inner) is not _Made:
                inner = node[part] = _Made()
            node = inner
        node[last] = value
    return _with_lists(root)


def indexed(value: Any) -> list[Any]:
    """Return the entries of a list, or of an object whose names are numbers, in the order of these; else nothing."""
    if isinstance(value, (list, tuple)):
        return list(cast("list[Any]", value))
    if not isinstance(value, Mapping):
        return []
    given = cast("Mapping[Any, Any]", value)
    numbers = sorted((name for name in given if _is_index(name)), key=lambda name: (len(name), name))
    return [given[name] for name in numbers]


def decoded(value: Any) -> Any:
    """Return the list or object in a text, in JSON or as a Python literal; anything else as it is."""
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


class _Made(dict[str, Any]):
    """An object made of names, as opposed to one that was a value."""


def _with_lists(root: dict[str, Any]) -> Any:
    """Return the tree with lists where its names are indices; without recursion, since names may be of any depth."""
    made: list[tuple[dict[str, Any], str, dict[str, Any]]] = []
    waiting: list[dict[str, Any]] = [root]
    while waiting:
        node = waiting.pop()
        for name, value in node.items():
            if type(value) is _Made:
                made.append((node, name, value))
                waiting.append(value)
    # Those found last lie deepest.
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
