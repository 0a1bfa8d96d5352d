"""Spans in `extra`, as a complete span or as the difference from the attributes that follow from a step."""

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
"""The values of the fields that are missing in an object."""


def encoded_span(span: Span, number: int, expected: Mapping[str, AttributeValue] | None = None) -> Json:
    """Return a span as an object with its number and its fields.

    Args:
        span: the span.
        number: the place of the span among the spans of its attempt, from 1.
        expected: the attributes that follow from a step; None if the span is not in a step. The object contains only
            the attributes that differ from them, with null for attributes that the span lacks.
    """
    fields = span.model_dump(exclude={"rollout_id", "attempt_id", "sequence_id", *_DEFAULTS})
    rest = span.model_dump(include=set(_DEFAULTS))
    fields["attributes"] = span.attributes if expected is None else _difference(span.attributes, expected)
    fields |= {name: value for name, value in rest.items() if value != _DEFAULTS[name]}
    return {"number": number, "span": fields}


def decoded_span(value: Any, expected: Mapping[str, AttributeValue] | None = None) -> Span:
    """Return the span that an object represents. The ids of rollout and attempt are empty, `sequence_id` is `number`.

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
    # In Python, 1, True and 1.0 are equal. As values of an attribute they differ.
    differing = {
        name: value
        for name, value in attributes.items()
        if name not in expected or type(value) is not type(expected[name]) or value != expected[name]
    }
    # An import joins expected and differing attributes in another order. Sorting gives the same bytes again.
    return dict(sorted({**differing, **{name: None for name in expected if name not in attributes}}.items()))
