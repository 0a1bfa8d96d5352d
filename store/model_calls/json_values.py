"""Functions that read untrusted JSON, and that write values as JSON.

Each `as_` function returns a value of one type. For input of another type, it returns an empty value or None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, cast

import orjson

from store.runtime import lenient_json

Json = dict[str, Any]

TOO_DEEP: Final = "[nested too deeply]"
"""The text that stands for a value that is nested too deeply to be written."""


def parse(body: bytes) -> tuple[Any, bool]:
    """Return a body as a JSON value, and whether the whole body is JSON in UTF-8.

    Common JSON libraries accept more than the standard allows, so this function does too. Bytes that are not UTF-8
    become U+FFFD, and then the second value is False. For a body that is not JSON, the value is None and the second
    value is False.
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
    return [cast("Json", item) for item in as_list(value) if isinstance(item, dict)]


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


def first_text(fields: Mapping[str, Any], *names: str) -> str | None:
    """Return the first value among these fields that is text and not empty; None if there is none."""
    return next((text for name in names if isinstance(text := fields.get(name), str) and text), None)


def to_json(value: object, *, is_sorted: bool = False) -> str:
    """Return text unchanged, and any other value as JSON. `is_sorted`: whether to sort the fields of objects."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if is_sorted else None).decode()
    except TypeError as error:
        # orjson reads four times as many nested levels as it writes.
        if "ecursion" in str(error):
            return TOO_DEEP
    try:
        # Unlike orjson, Python writes surrogates, integers of more than 64 bits, and keys that are not text.
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str, sort_keys=is_sorted)
    except (RecursionError, ValueError, TypeError):
        return TOO_DEEP


def compact(item: Mapping[str, Any]) -> Json:
    """Return an item without null fields at any depth, and without top-level fields that are an empty list or object.

    The objects of a client library have such fields even if the server did not send them. Arguments and schemas are
    unchanged.
    """
    try:
        fields = _without_nulls(item)
    except RecursionError:
        return dict(item)
    return {name: value for name, value in fields.items() if name in _FREE_FORM or value not in ([], {})}


_FREE_FORM: Final = frozenset({
    "arguments", "env", "input", "input_schema", "parameters", "schema", "structured_content", "value",
})  # fmt: skip
"""Fields whose values the program or the model chose. A null in these values has a meaning."""


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        fields = cast("Json", value)
        return {
            name: item if name in _FREE_FORM else _without_nulls(item)
            for name, item in fields.items()
            if item is not None or name in _FREE_FORM
        }
    return [_without_nulls(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """Return a value of a request as JSON. An object of a client library becomes a JSON object, and a class its name.

    Iterators are left out, because an iterator can be read only once, and the client reads it. Arguments that the
    client counts as omitted are left out too.
    """
    match value:
        case None | str() | bool() | int() | float():
            return value
        case Mapping():
            fields = cast("Mapping[Any, Any]", value)
            return {str(name): plain(item) for name, item in fields.items() if _is_value(item)}
        case list() | tuple():
            return [plain(item) for item in cast("list[Any]", value) if _is_value(item)]
        case type():
            return value.__name__
        case _ if hasattr(value, "model_dump"):
            return _dumped(value, exclude_none=True)
        case _:
            return _text_of(value)


def _text_of(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - an object of the program may raise anything
        return f"<{type(value).__qualname__}>"


def received(value: Any) -> Json:
    """Return a client's response or event as JSON, with only the fields that the server sent."""
    if hasattr(value, "model_dump"):
        return as_object(_dumped(value, exclude_unset=True))
    return as_object(value)


def _dumped(value: Any, **options: bool) -> Any:
    """Return an object of a client as JSON."""
    try:
        return value.model_dump(mode="json", warnings=False, **options)
    except Exception:  # noqa: BLE001 - the object may contain objects of the program, whose code may raise anything
        fields: Json = {**vars(value), **(value.__pydantic_extra__ or {})}
        return plain({name: item for name, item in fields.items() if name not in _OF_PROGRAMS})


_OF_PROGRAMS: Final = frozenset({"parsed", "parsed_output", "parsed_arguments"})
"""Fields in which the clients keep objects of the program's classes."""


def _is_value(item: Any) -> bool:
    # The clients mark omitted arguments with objects of these types.
    return not hasattr(item, "__next__") and type(item).__name__ not in {"NotGiven", "Omit", "NotGivenType"}
