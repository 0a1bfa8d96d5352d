"""Nested data as attributes of spans and back, and the attributes that tag and link spans."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from store.models import AttributeValue, Span
from store.semconv import LINK, TAG

S = TypeVar("S", bound=Span)

logger = logging.getLogger(__name__)

_SCALARS: Final = (str, bool, int, float)
_SPAN_KEYS: Final = ("trace_id", "span_id")


def flatten_attributes(nested_data: Any, *, expand_leaf_lists: bool = False) -> dict[str, Any]:
    """Return nested dicts and lists as one dict with dotted keys; what is empty vanishes.

    Lists of dicts or lists get numeric segments. A list of one kind of scalar stays a list, unless `expand_leaf_lists`;
    of several kinds, it is taken apart with a warning. A scalar alone gets the key "".

    Raises:
        ValueError: a dict has a key that is no string.
    """
    flat: dict[str, Any] = {}
    _flatten(nested_data, "", flat, expand=expand_leaf_lists)
    return flat


def _flatten(data: Any, path: str, flat: dict[str, Any], *, expand: bool) -> None:
    if isinstance(data, Mapping):
        for key, value in cast("Mapping[Any, Any]", data).items():
            if not isinstance(key, str):
                raise ValueError(f"{path or 'the top'} has the key {key!r}; attributes are named by strings")  # noqa: TRY004 - the contract's
            _flatten(value, f"{path}.{key}" if path else key, flat, expand=expand)
    elif isinstance(data, (list, tuple)):
        items = cast("Sequence[Any]", data)
        if _stays_whole(items, path, expand=expand):
            flat[path] = list(items)
            return
        for index, value in enumerate(items):
            _flatten(value, f"{path}.{index}" if path else str(index), flat, expand=expand)
    else:
        flat[path] = data


def _stays_whole(items: Sequence[Any], path: str, *, expand: bool) -> bool:
    if expand or not items or any(isinstance(item, (Mapping, list, tuple)) for item in items):
        return False
    kinds: set[type[Any]] = {type(item) for item in items}
    if len(kinds) == 1 and kinds <= set(_SCALARS):
        return True
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    logger.warning("%s is a list of %s; its items become attributes of their own", path or "the value", names)
    return False


def unflatten_attributes(flat_data: Mapping[str, Any]) -> dict[str, Any] | list[Any]:
    """Return dotted keys as nested dicts, and as lists where the keys are exactly 0, 1, … n-1.

    Where a key is both a value and a prefix of others, what is nested wins.
    """
    root: dict[str, Any] = {}
    # Shorter keys first: a value in the way of a longer key gives way.
    for key in sorted(flat_data, key=lambda each: each.count(".")):
        node = root
        *above, last = key.split(".")
        for segment in above:
            below = node.get(segment)
            if not isinstance(below, _Node):
                below = node[segment] = _Node()
            node = below
        node[last] = flat_data[key]
    return _listed({key: root[key] for key in _in_given_order(root, flat_data)})


class _Node(dict[str, Any]):
    """A dict that unflattening made, as opposed to one that was given as a value."""


def _in_given_order(root: dict[str, Any], flat_data: Mapping[str, Any]) -> list[str]:
    order = dict.fromkeys(key.partition(".")[0] for key in flat_data)
    return [key for key in order if key in root]


def _listed(node: dict[str, Any]) -> dict[str, Any] | list[Any]:
    values = {key: _listed(value) if isinstance(value, _Node) else value for key, value in node.items()}
    if values and set(values) == {str(index) for index in range(len(values))}:
        return [values[str(index)] for index in range(len(values))]
    return values


def filter_attributes(attributes: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the attributes named `prefix` or below it."""
    return {key: value for key, value in attributes.items() if key == prefix or key.startswith(f"{prefix}.")}


def filter_and_unflatten_attributes(attributes: Mapping[str, Any], prefix: str) -> dict[str, Any] | list[Any]:
    """Return what lies below a prefix, nested.

    Raises:
        ValueError: the prefix itself is an attribute, so that there is a value where the nested data should be.
    """
    below = filter_attributes(attributes, prefix)
    if prefix in below:
        raise ValueError(f"{prefix} is an attribute itself; only what is below it can be nested")
    return unflatten_attributes({key[len(prefix) + 1 :]: value for key, value in below.items()})


# -- values ----------------------------------------------------------------------------------------------------------


def sanitize_attribute_value(value: Any, force: bool = True) -> AttributeValue:  # noqa: FBT001, FBT002 - the contract's
    """Return a value as a span can hold it: JSON text if it is neither a scalar nor a list of one kind.

    Args:
        value: anything.
        force: what JSON does not know becomes its `str()`.

    Raises:
        ValueError: JSON does not know it, and nothing is forced.
    """
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, (list, tuple)):
        items = list(cast("Sequence[Any]", value))
        whole = _one_kind(items)
        if whole is not None:
            return whole
    try:
        return json.dumps(cast("Any", value), ensure_ascii=False, default=str if force else None)
    except (TypeError, ValueError) as error:
        if force:
            return str(cast("Any", value))
        raise ValueError(f"{_kind(value)} is neither a value of a span nor JSON: {error}") from None


def _kind(value: Any) -> str:
    return type(value).__name__


def _is_list_of_one_kind(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and _one_kind(list(cast("Sequence[Any]", value))) is not None


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


def sanitize_attributes(attributes: Mapping[str, Any], force: bool = True) -> dict[str, AttributeValue]:  # noqa: FBT001, FBT002 - the contract's
    """Return attributes with every value as `sanitize_attribute_value` has it.

    Raises:
        ValueError: JSON does not know a value, and nothing is forced.
    """
    return {str(key): sanitize_attribute_value(value, force) for key, value in attributes.items()}


def check_attributes_sanity(attributes: Mapping[Any, Any]) -> None:
    """Check that a span can hold these attributes as they are.

    Raises:
        ValueError: a key is no string, or a value neither a scalar nor a list of one kind of scalar.
    """
    for key, value in attributes.items():
        if not isinstance(key, str):
            raise ValueError(f"the attribute {key!r} is not named by a string")  # noqa: TRY004 - the contract's
        if isinstance(value, _SCALARS):
            continue
        if not _is_list_of_one_kind(value):
            raise ValueError(
                f"attribute {key!r} is {_kind(value)}; give a string, bool, int, float or a list of one of these"
            )


# -- tags and links --------------------------------------------------------------------------------------------------


def make_tag_attributes(tags: Iterable[str]) -> dict[str, Any]:
    """Return the attributes that tag a span."""
    return {f"{TAG}.{index}": tag for index, tag in enumerate(tags)}


def extract_tags_from_attributes(attributes: Mapping[str, Any]) -> list[str]:
    """Return the tags of a span, in their order; what is no text is none."""
    found = _indexed(attributes, TAG)
    return [tag for tag in found if isinstance(tag, str)]


def make_link_attributes(links: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes that point at spans by what those say: `{"gen_ai.response.id": "chatcmpl-1"}`.

    The keys `trace_id` and `span_id` mean a span's ids, any other an attribute.

    Raises:
        ValueError: a value is no string.
    """
    flat: dict[str, str] = {}
    for index, (key, value) in enumerate(links.items()):
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] (callers are not type-checked)
            raise ValueError(f"the link by {key!r} is {type(value).__name__}; spans are matched by text")  # noqa: TRY004
        flat[f"{LINK}.{index}.key_match"] = key
        flat[f"{LINK}.{index}.value_match"] = value
    return flat


def extract_links_from_attributes(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return the links of a span; what is incomplete is none."""
    links: dict[str, str] = {}
    for each in _indexed(attributes, LINK):
        if isinstance(each, dict):
            link = cast("dict[str, Any]", each)
            key, value = link.get("key_match"), link.get("value_match")
            if isinstance(key, str) and isinstance(value, str):
                links[key] = value
    return links


def _indexed(attributes: Mapping[str, Any], prefix: str) -> list[Any]:
    """Return what stands below a prefix by index, in that order, whatever indexes are missing."""
    below = {key: value for key, value in filter_attributes(attributes, prefix).items() if key != prefix}
    nested = filter_and_unflatten_attributes(below, prefix) if below else []
    if isinstance(nested, list):
        return nested
    return [nested[key] for key in sorted((key for key in nested if key.isdecimal()), key=int)]


def query_linked_spans(spans: Sequence[S], links: Mapping[str, str]) -> list[S]:
    """Return the spans at which all the links point, in the order given; without links, all."""
    return [span for span in spans if all(_matches(span, key, value) for key, value in links.items())]


def _matches(span: Span, key: str, value: str) -> bool:
    found: Any = getattr(span, key) if key in _SPAN_KEYS else span.attributes.get(key)
    return bool(found == value)
