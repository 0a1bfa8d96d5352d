"""Spans in `extra`: whole, or as the difference from the span that a step stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from store.model_calls.json_values import Json, as_object
from store.models import AttributeValue, Span

_DEFAULTS: Final[Mapping[str, Any]] = {
    "parent_id": None,
    "status": {"status_code": "UNSET", "description": None},
    "events": [],
    "links": [],
    "start_time": None,
    "end_time": None,
    "context": None,
    "parent": None,
    "resource": {"attributes": {}, "schema_url": ""},
}
"""The values of fields that an object leaves out."""


def encoded_span(span: Span, number: int, expected: Mapping[str, AttributeValue] | None = None) -> Json:
    """Return a span as an object with its number and its fields.

    Args:
        span: the span.
        number: the place of the span among those of its attempt, from 1.
        expected: the attributes that follow from a step; None for none. The object then has the attributes that differ,
            with null for those that the span lacks.
    """
    fields = span.model_dump(exclude={"rollout_id", "attempt_id", "sequence_id", *_DEFAULTS})
    rest = span.model_dump(include=set(_DEFAULTS))
    fields["attributes"] = span.attributes if expected is None else _difference(span.attributes, expected)
    fields |= {name: value for name, value in rest.items() if value != _DEFAULTS[name]}
    return {"number": number, "span": fields}


def decoded_span(value: Any, expected: Mapping[str, AttributeValue] | None = None) -> Span:
    """Return the span of an object, without the ids of its rollout and attempt; its number is its `sequence_id`.

    Raises:
        ValidationError: the object is not a span.
    """
    item = as_object(value)
    fields = as_object(item.get("span"))
    attributes: Json = dict(expected or {})
    for name, attribute in as_object(fields.get("attributes")).items():
        if attribute is None:
            attributes.pop(name, None)
        else:
            attributes[name] = attribute
    ids = {"rollout_id": "", "attempt_id": "", "sequence_id": item.get("number")}
    return Span.model_validate({**_DEFAULTS, **fields, **ids, "attributes": attributes})


def _difference(attributes: Mapping[str, AttributeValue], expected: Mapping[str, AttributeValue]) -> Json:
    # 1 and True and 1.0 are equal in Python, and are different values of an attribute.
    differing = {
        name: value
        for name, value in attributes.items()
        if name not in expected or type(value) is not type(expected[name]) or value != expected[name]
    }
    # An import joins both parts in another order.
    return dict(sorted({**differing, **{name: None for name in expected if name not in attributes}}.items()))
