"""Conversion between nested data and span attributes, and the attributes that tag and link spans."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from store.models import AttributeValue, Span
from store.otel.repair import add_attributes
from store.runtime.lenient_json import safe_text
from store.semconv import CHANGED, LINK, TAG

S = TypeVar("S", bound=Span)

logger = logging.getLogger("store.training.attrs")

_SCALARS: Final = (str, bool, int, float)
_SPAN_KEYS: Final = ("trace_id", "span_id")


def flatten_attributes(nested_data: Any, *, expand_leaf_lists: bool = False) -> dict[str, Any]:
    """Return nested dicts and lists as one dict with dotted keys; empty dicts and lists are dropped.

    Lists of dicts or lists get numeric key segments. A list of scalars of one type stays a list, unless
    `expand_leaf_lists` is true. A list of scalars of several types is split into items, and a warning is logged. A
    top-level scalar gets the key "".

    Raises:
        ValueError: a dict has a key that is not a string.
    """
    flat: dict[str, Any] = {}
    _flatten(nested_data, "", flat, expand=expand_leaf_lists)
    return flat


def _flatten(data: Any, path: str, flat: dict[str, Any], *, expand: bool) -> None:
    if isinstance(data, Mapping):
        for key, value in cast("Mapping[Any, Any]", data).items():
            if not isinstance(key, str):
                raise ValueError(f"{path or 'the top'} has the key {key!r}; names of attributes must be strings")  # noqa: TRY004 - the contract requires ValueError
            _flatten(value, f"{path}.{key}" if path else str.__str__(key), flat, expand=expand)
    elif isinstance(data, (list, tuple)):
        items = cast("Sequence[Any]", data)
        if _is_leaf(items, path, expand=expand):
            flat[path] = list(items)
            return
        for index, value in enumerate(items):
            _flatten(value, f"{path}.{index}" if path else str(index), flat, expand=expand)
    else:
        flat[path] = data


def _is_leaf(items: Sequence[Any], path: str, *, expand: bool) -> bool:
    if expand or not items or any(isinstance(item, (Mapping, list, tuple)) for item in items):
        return False
    kinds: set[type[Any]] = {type(item) for item in items}
    if len(kinds) == 1 and kinds <= set(_SCALARS):
        return True
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    logger.warning("%s is a list of %s; each of its items becomes a separate attribute", path or "the value", names)
    return False


def unflatten_attributes(flat_data: Mapping[str, Any]) -> dict[str, Any] | list[Any]:
    """Return dotted keys as nested dicts, or as lists where the keys of a level are exactly 0, 1, … n-1.

    If a key has a value and is also a prefix of other keys, the value of this key is dropped.
    """
    root: dict[str, Any] = {}
    # Shorter keys are processed first. If a key is a prefix of a longer key, the longer key replaces its value.
    for key in sorted(flat_data, key=lambda name: name.count(".")):
        node = root
        *above, last = key.split(".")
        for segment in above:
            below = node.get(segment)
            if not isinstance(below, _Node):
                below = node[segment] = _Node()
            node = below
        node[last] = flat_data[key]
    order = dict.fromkeys(key.partition(".")[0] for key in flat_data)
    return _listed({key: root[key] for key in order if key in root})


class _Node(dict[str, Any]):
    """Dict that `unflatten_attributes` created. Dicts among the values of attributes are of another type."""


def _listed(node: dict[str, Any]) -> dict[str, Any] | list[Any]:
    values = {key: _listed(value) if isinstance(value, _Node) else value for key, value in node.items()}
    if values and set(values) == {str(index) for index in range(len(values))}:
        return [values[str(index)] for index in range(len(values))]
    return values


def filter_attributes(attributes: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the attributes whose name is `prefix` or begins with `prefix` and a dot."""
    return {key: value for key, value in attributes.items() if key == prefix or key.startswith(f"{prefix}.")}


def filter_and_unflatten_attributes(attributes: Mapping[str, Any], prefix: str) -> dict[str, Any] | list[Any]:
    """Return the attributes whose names begin with `prefix` and a dot as nested data, without the prefix.

    Raises:
        ValueError: the name of an attribute is exactly the prefix. The nested data have no place for its value.
    """
    below = filter_attributes(attributes, prefix)
    if prefix in below:
        raise ValueError(f"{prefix} is itself an attribute; only attributes below it can be nested")
    return unflatten_attributes({key[len(prefix) + 1 :]: value for key, value in below.items()})


def sanitize_attribute_value(value: Any, force: bool = True) -> AttributeValue:  # noqa: FBT001, FBT002 - signature of the contract
    """Return a value as a span attribute. Scalars and lists of one scalar type stay, other values become JSON text.

    Args:
        value: anything.
        force: whether to convert values that JSON does not support with `str()`.

    Raises:
        ValueError: JSON does not support the value, and `force` is false.
    """
    if force:
        return _forced(value, "", [])
    try:
        return _converted(value, None)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"spans do not support values of type {_kind(value)}, and JSON cannot encode this value: {error}"
        ) from None


def _converted(value: Any, default: Callable[[Any], str] | None) -> AttributeValue:
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, (list, tuple)):
        items = list(cast("Sequence[Any]", value))
        sequence = _one_kind(items)
        if sequence is not None:
            return sequence
    return json.dumps(cast("Any", value), ensure_ascii=False, default=default)


def _forced(value: Any, name: str, changes: list[str]) -> AttributeValue:
    """Return any value as a span attribute. If the text of the value cannot be read, an entry is added to `changes`."""
    # `str` of an object may raise any exception, and values that are nested too deeply raise RecursionError.
    with suppress(Exception):
        return _converted(value, str)
    with suppress(Exception):
        return str(value)
    changes.append(f"{name}: a value of type {type(value).__name__} has no text")
    with suppress(Exception):
        return _converted(value, safe_text)
    return safe_text(value)


def _kind(value: Any) -> str:
    return type(value).__name__


def _one_kind(items: list[Any]) -> AttributeValue | None:
    if all(isinstance(item, str) for item in items):
        return items
    if all(isinstance(item, bool) for item in items):
        return items
    if all(isinstance(item, int) for item in items):
        return [int(item) for item in items]
    if all(isinstance(item, (int, float)) for item in items):
        return [float(item) for item in items]
    return None


def sanitize_attributes(attributes: Mapping[str, Any], force: bool = True) -> dict[str, AttributeValue]:  # noqa: FBT001, FBT002 - signature of the contract
    """Return attributes with every value converted by `sanitize_attribute_value`.

    With `force`, an object whose `__str__` raises an exception is described by its type, and is listed in
    `rollbook.changed`.

    Raises:
        ValueError: JSON does not support a value, and `force` is false.
    """
    if not force:
        return {str(key): sanitize_attribute_value(value, force) for key, value in attributes.items()}
    changes: list[str] = []
    sanitized: dict[str, AttributeValue] = {}
    for key, value in attributes.items():
        name = key if type(key) is str else safe_text(key)
        sanitized[name] = value if type(value) in _SCALARS else _forced(value, name, changes)
    if changes:
        add_attributes(sanitized, {CHANGED: changes})
    return sanitized


def flat_attributes(prefix: str, value: Any) -> dict[str, AttributeValue]:
    """Return any value as attributes whose names begin with a prefix.

    Some values cannot be flattened: a key of a dict is not a string, or the value contains itself or is nested too
    deeply. For such a value, return one attribute with the whole value as text.
    """
    try:
        flat = flatten_attributes(value)
    except Exception:  # noqa: BLE001 - classes of the agent's objects may raise any exception
        return sanitize_attributes({prefix: value})
    return sanitize_attributes({f"{prefix}.{key}" if key else prefix: item for key, item in flat.items()})


def check_attributes_sanity(attributes: Mapping[Any, Any]) -> None:
    """Check that these attributes are valid for a span without conversion.

    Raises:
        ValueError: a key is not a string, or a value is neither a scalar nor a list of scalars of one type.
    """
    for key, value in attributes.items():
        if not isinstance(key, str):
            raise ValueError(f"the attribute name {key!r} is not a string")  # noqa: TRY004 - the contract requires ValueError
        items = list(cast("Sequence[Any]", value)) if isinstance(value, (list, tuple)) else None
        if not isinstance(value, _SCALARS) and (items is None or _one_kind(items) is None):
            raise ValueError(
                f"attribute {key!r} is {_kind(value)}; give a string, bool, int, float or a list of one of these"
            )


def make_tag_attributes(tags: Iterable[str]) -> dict[str, Any]:
    """Return the attributes that tag a span."""
    return {f"{TAG}.{index}": tag for index, tag in enumerate(tags)}


def extract_tags_from_attributes(attributes: Mapping[str, Any]) -> list[str]:
    """Return the tags of a span in order; tags that are not text are skipped."""
    return [tag for tag in _indexed(attributes, TAG) if isinstance(tag, str)]


def make_link_attributes(links: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes that link a span to all spans with the attributes in `links`.

    An example of `links` is `{"gen_ai.response.id": "chatcmpl-1"}`. The keys `trace_id` and `span_id` refer to the ids
    of a span. Any other key refers to an attribute.

    Raises:
        ValueError: a value is not a string.
    """
    flat: dict[str, str] = {}
    for index, (key, value) in enumerate(links.items()):
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] (callers are not type-checked)
            raise ValueError(f"the link by {key!r} is {type(value).__name__}; use a string")  # noqa: TRY004
        flat[f"{LINK}.{index}.key_match"] = key
        flat[f"{LINK}.{index}.value_match"] = value
    return flat


def extract_links_from_attributes(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return the links of a span in the form that `make_link_attributes` receives; incomplete links are skipped."""
    links: dict[str, str] = {}
    for entry in _indexed(attributes, LINK):
        if isinstance(entry, dict):
            link = cast("dict[str, Any]", entry)
            key, value = link.get("key_match"), link.get("value_match")
            if isinstance(key, str) and isinstance(value, str):
                links[key] = value
    return links


def _indexed(attributes: Mapping[str, Any], prefix: str) -> list[Any]:
    """Return the values below a prefix, ordered by index; gaps in the indexes are allowed."""
    below = {key: value for key, value in filter_attributes(attributes, prefix).items() if key != prefix}
    nested = filter_and_unflatten_attributes(below, prefix) if below else []
    if isinstance(nested, list):
        return nested
    return [nested[key] for key in sorted((key for key in nested if key.isdecimal()), key=int)]


def query_linked_spans(spans: Sequence[S], links: Mapping[str, str]) -> list[S]:
    """Return the spans that match all links, in the order of `spans`; without links, return all spans."""
    return [
        span
        for span in spans
        if all(
            (getattr(span, key) if key in _SPAN_KEYS else span.attributes.get(key)) == value
            for key, value in links.items()
        )
    ]
