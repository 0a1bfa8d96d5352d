"""Spans: the steps of an agent, in OpenTelemetry's terms. Times are float seconds since the epoch.

A `Span` is made from JSON, from a span of the OpenTelemetry SDK (`Span.from_opentelemetry`) or from plain attributes
(`Span.from_attributes`). `from_opentelemetry` only reads Python attributes of the object and does not import the SDK.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, cast

from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

from store.models.enums import Open, StatusCode
from store.runtime.ids import span_id as fresh_span_id
from store.runtime.ids import trace_id as fresh_trace_id
from store.semconv import ORIGINAL_SPAN_ID, VIRTUAL_SPAN

AttributeValue = str | bool | int | float | list[str] | list[bool] | list[int] | list[float]

_TEXT: Final = frozenset({str})
_SCALARS: Final = frozenset({str, bool, int, float})
_NANOSECONDS_FROM: Final = 1e12


def _attributes(value: Any) -> dict[str, AttributeValue]:
    """Return a copy in which every value keeps its type: `1`, `True`, `1.0` and `"1"` stay four different values.

    This validator is written by hand. pydantic's validator for a union would take longer than the validation of the
    rest of a span, and would convert (1, 0) to [True, False].
    """
    if not isinstance(value, Mapping):
        raise PydanticCustomError("attributes_type", "attributes are an object of names and values")
    copy: dict[str, Any] = dict(value)  # pyright: ignore[reportUnknownArgumentType]
    # Nearly all spans pass this test, which runs without a Python loop over the attributes.
    if _TEXT.issuperset(map(type, copy)) and _SCALARS.issuperset(map(type, copy.values())):
        return copy
    for name, item in copy.items():
        if type(name) is not str:
            raise PydanticCustomError("attribute_name", "attribute name {name} is not a string", {"name": repr(name)})
        if type(item) not in _SCALARS:
            copy[name] = _plain(name, item)
    return copy


Attributes = Annotated[
    dict[str, AttributeValue], PlainValidator(_attributes, json_schema_input_type=dict[str, AttributeValue])
]
"""Values by name. A value is a str, bool, int or float, or a list of values of one of these types.

In a list of ints and floats, the ints become floats.
"""


def _plain(name: str, value: Any) -> AttributeValue:
    if isinstance(value, (list, tuple)):
        return _homogeneous(name, cast("Sequence[Any]", value))
    return _scalar(name, value)


def _homogeneous(name: str, values: Sequence[Any]) -> AttributeValue:
    # A prompt may have a hundred thousand token ids, so the usual list is copied without a Python loop.
    if (types := set(map(type, values))) <= _SCALARS and len(types) == 1:
        return list(values)
    items: list[Any] = [_scalar(name, value) for value in values]
    kinds: set[type[Any]] = {type(item) for item in items}
    if len(kinds) <= 1:
        return items
    if kinds == {int, float}:
        return [float(item) for item in items]
    raise PydanticCustomError(
        "attribute_mixed_list",
        "attribute {name} is a list of {kinds}; all items of a list must have one type",
        {"name": repr(name), "kinds": " and ".join(sorted(kind.__name__ for kind in kinds))},
    )


def _scalar(name: str, value: Any) -> str | bool | int | float:
    """Return the value as a str, bool, int or float. Subclasses are converted, such as numpy's float64 or a StrEnum."""
    if type(value) in _SCALARS:
        return value
    for kind, builtin in _BUILTIN.items():
        if isinstance(value, kind):
            return builtin(value)
    raise PydanticCustomError(
        "attribute_kind",
        "attribute {name} is {kind}; a value is a string, bool, int, float or a list of one of these",
        {"name": repr(name), "kind": type(value).__name__},
    )


# str(member) of a string enumeration is its name; str.__str__(member) is its value.
_BUILTIN: Final[dict[type[Any], Callable[[Any], str | int | float]]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
}


class TraceStatus(Open):
    """The status of a span at its end."""

    status_code: StatusCode
    description: str | None = None


class SpanContext(Open):
    """The identity of a span, as it is passed between processes."""

    trace_id: str
    span_id: str
    is_remote: bool
    trace_state: dict[str, str]


class Event(Open):
    """An event at one moment of a span."""

    name: str
    attributes: Attributes
    timestamp: float | None = None


class Link(Open):
    """A link from a span to another span, which may belong to another trace."""

    context: SpanContext
    attributes: Attributes | None = None


class OtelResource(Open):
    """The producer of a span: its process, host and service."""

    attributes: Attributes
    schema_url: str


class Span(Open):
    """One step of an attempt. Its key is (rollout_id, attempt_id, span_id); unknown keys are stored and returned.

    Other fields of OpenTelemetry are stored as unknown keys if the span's producer set them: `kind`, for example
    "CLIENT"; `instrumentation_scope`, an object with `name` and `version`; `flags`; `dropped_attributes_count`,
    `dropped_events_count` and `dropped_links_count`. Contexts from the SDK also have `trace_flags`.
    """

    rollout_id: str
    attempt_id: str
    sequence_id: int
    """The number of the span in its rollout, usually assigned by the store. Several spans may have the same number."""
    trace_id: str
    """By convention 32 lowercase hex digits."""
    span_id: str
    """By convention 16 lowercase hex digits."""
    parent_id: str | None
    name: str
    status: TraceStatus
    attributes: Attributes
    events: list[Event]
    links: list[Link]
    start_time: float | None
    end_time: float | None
    context: SpanContext | None
    parent: SpanContext | None
    resource: OtelResource

    def _repr_html_(self) -> str:
        from store.runtime import html

        place = {
            "status": self.status.status_code,
            "description": self.status.description,
            "start": None if self.start_time is None else html.Moment(self.start_time),
            "end": None if self.end_time is None else html.Moment(self.end_time),
            "rollout": self.rollout_id,
            "attempt": self.attempt_id,
        }
        return html.titled(f"Span {self.sequence_id}: {self.name}", html.fields(place) + html.fields(self.attributes))

    @classmethod
    def from_opentelemetry(cls, readable_span: Any, rollout_id: str, attempt_id: str, sequence_id: int) -> Span:
        """Convert a finished span of the OpenTelemetry SDK, with all its fields, to a span of the store.

        Args:
            readable_span: a `ReadableSpan`, or an object with its attributes. Its times are nanoseconds; a time that is
                absent or zero becomes None. Attribute values that a span cannot hold (bytes, mappings, mixed lists)
                are stored as text, so that no span is lost because of one attribute; None values are left out.
                Public attributes that other code has added to the object are stored too if JSON can represent them.
            rollout_id: the rollout of the span.
            attempt_id: the attempt of the span.
            sequence_id: the number of the span, which the store assigned.
        """
        return cls(**sdk_fields(readable_span, rollout_id, attempt_id, sequence_id))

    @classmethod
    def from_attributes(
        cls,
        *,
        attributes: Mapping[str, AttributeValue],
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        sequence_id: int | None = None,
        name: str | None = None,
        trace_id: str | None = None,
        span_id: str | None = None,
        parent_id: str | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
        resource: OtelResource | None = None,
        status: TraceStatus | None = None,
    ) -> Span:
        """Return a span that no tracer recorded, such as the reward that an agent returned.

        Arguments that are missing get these values: empty texts for `rollout_id` and `attempt_id`, 0 for `sequence_id`,
        random ids for `trace_id` and `span_id`, `agentlightning.virtual` for `name`, and OK for `status`.
        """
        trace = trace_id or fresh_trace_id()
        span_id = span_id or fresh_span_id()
        return cls(
            rollout_id=rollout_id or "",
            attempt_id=attempt_id or "",
            sequence_id=sequence_id or 0,
            trace_id=trace,
            span_id=span_id,
            parent_id=parent_id,
            name=name or VIRTUAL_SPAN,
            status=status or TraceStatus(status_code="OK"),
            attributes=dict(attributes),
            events=[],
            links=[],
            start_time=start_time,
            end_time=end_time,
            context=SpanContext(trace_id=trace, span_id=span_id, is_remote=False, trace_state={}),
            parent=SpanContext(trace_id=trace, span_id=parent_id, is_remote=False, trace_state={})
            if parent_id
            else None,
            resource=resource or OtelResource(attributes={}, schema_url=""),
        )


def sdk_fields(
    readable_span: Any,
    rollout_id: str,
    attempt_id: str,
    sequence_id: int,
    convert: Callable[[Mapping[str, Any] | None], dict[str, AttributeValue]] | None = None,
) -> dict[str, Any]:
    """Return the fields of a `Span` for a finished span of the SDK, without validation.

    Args:
        readable_span: as for `Span.from_opentelemetry`.
        rollout_id: the rollout of the span.
        attempt_id: the attempt of the span.
        sequence_id: the number of the span.
        convert: the conversion of attributes; None for `span_attributes`.
    """
    converted = convert or span_attributes
    context, parent = readable_span.get_span_context(), readable_span.parent
    span_context = _context(context) if context else None
    parent_context = _context(parent) if parent else None
    status, resource = readable_span.status, readable_span.resource
    return {
        "rollout_id": rollout_id,
        "attempt_id": attempt_id,
        "sequence_id": sequence_id,
        "trace_id": span_context["trace_id"] if span_context else "0" * 32,
        "span_id": span_context["span_id"] if span_context else "0" * 16,
        "parent_id": parent_context["span_id"] if parent_context else None,
        "name": readable_span.name,
        "status": {
            "status_code": status.status_code.name,
            "description": status.description,
            **_added_fields(status, TraceStatus),
        },
        "attributes": converted(readable_span.attributes),
        "events": [
            {
                "name": event.name,
                "attributes": converted(event.attributes),
                "timestamp": in_seconds(event.timestamp),
                **_part_fields(event, Event),
            }
            for event in readable_span.events
        ],
        "links": [
            {
                "context": _context(link.context),
                "attributes": converted(link.attributes) or None,
                **_part_fields(link, Link),
            }
            for link in readable_span.links
        ],
        "start_time": in_seconds(readable_span.start_time),
        "end_time": in_seconds(readable_span.end_time),
        "context": span_context,
        "parent": parent_context,
        "resource": {
            "attributes": converted(resource.attributes),
            "schema_url": resource.schema_url,
            **_added_fields(resource, OtelResource),
        },
        **_further_fields(readable_span),
    }


def in_seconds(time: float | None) -> float | None:
    """Return a time of a span in seconds; None if it is 0 or no number. Numbers above 10¹² are nanoseconds."""
    if not time or not isinstance(time, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance] (from the SDK)
        return None
    return time / 1_000_000_000 if time > _NANOSECONDS_FROM else float(time)


def scope_fields(
    name: str | None,
    version: str | None,
    schema_url: str | None,
    attributes: Mapping[str, AttributeValue],
    dropped_attributes_count: int = 0,
) -> dict[str, Any]:
    """Return an instrumentation scope as JSON, always with a name and a version; {} if all arguments are empty."""
    further = {
        "schema_url": schema_url,
        "attributes": attributes,
        "dropped_attributes_count": dropped_attributes_count,
    }
    fields = {field: value for field, value in further.items() if value}
    return {"name": name or "", "version": version or "", **fields} if name or version or fields else {}


def _context(context: Any) -> dict[str, Any]:
    further = _added_fields(context, SpanContext)
    flags = getattr(context, "trace_flags", None)
    if isinstance(flags, int):
        further["trace_flags"] = int(flags)
    return {
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
        "is_remote": context.is_remote,
        "trace_state": dict(context.trace_state or {}),
        **further,
    }


def _further_fields(span: Any) -> dict[str, Any]:
    """Return the fields of the SDK's span that `Span` does not declare. Fields without a value are left out."""
    further = _added_fields(span, Span)
    kind = getattr(getattr(span, "kind", None), "name", None)
    if isinstance(kind, str):
        further["kind"] = kind
    scope: Any = getattr(span, "instrumentation_scope", None)
    if isinstance(getattr(scope, "name", None), str):
        attributes = span_attributes(getattr(scope, "attributes", None))
        if fields := scope_fields(scope.name, scope.version, scope.schema_url, attributes):
            further["instrumentation_scope"] = fields
    for name, sdk_name in _DROPPED:
        dropped = getattr(span, sdk_name, 0)
        if dropped and isinstance(dropped, int):
            further[name] = dropped
    return further


_DROPPED: Final = tuple((f"dropped_{part}_count", f"dropped_{part}") for part in ("attributes", "events", "links"))
# Attributes of the SDK's objects that `_context`, `_further_fields` and `_part_fields` convert.
_KNOWN: Final = frozenset({"kind", "instrumentation_scope", "instrumentation_info", "trace_flags"}).union(
    sdk_name for _, sdk_name in _DROPPED
)
_NOTHING: Final[Mapping[str, Any]] = {}


def _part_fields(part: Any, model: type[Open]) -> dict[str, Any]:
    """Return the fields of an event or a link of the SDK that the model does not declare."""
    fields = _added_fields(part, model)
    # In every version of the SDK, the attributes object has this count.
    dropped = getattr(part.attributes, "dropped", 0)
    if dropped and isinstance(dropped, int):
        fields["dropped_attributes_count"] = dropped
    return fields


def _added_fields(sdk_object: Any, model: type[Open]) -> dict[str, Any]:
    """Return the public attributes that other code has added to an object of the SDK, if JSON can represent them."""
    fields: dict[str, Any] = {}
    for name, value in getattr(sdk_object, "__dict__", _NOTHING).items():
        if name[:1] != "_" and name not in model.model_fields and name not in _KNOWN:
            with suppress(TypeError, ValueError, RecursionError):
                fields[name] = json.loads(json.dumps(value, allow_nan=False))
    return fields


def with_ids(span: Span, span_id: str, parent_id: str | None) -> Span:
    """Return a span with its stored ids. If the span id differs, an attribute contains the original id."""
    changed: dict[str, Any] = {"span_id": span_id, "parent_id": parent_id}
    if span_id != span.span_id:
        changed["attributes"] = {ORIGINAL_SPAN_ID: span.span_id, **span.attributes}
    return span.model_copy(update=changed)


def span_attributes(attributes: Mapping[str, Any] | None) -> dict[str, AttributeValue]:
    """Convert attributes of the SDK to attributes of a span; values that a span cannot hold become text."""
    converted: dict[str, AttributeValue] = {}
    for name, value in (attributes or {}).items():
        if type(value) in _SCALARS:
            converted[name] = value
        elif value is not None:
            converted[name] = as_attribute(name, value)
    return converted


def as_attribute(name: str, value: Any) -> AttributeValue:
    """Convert one value of the SDK; bytes become hex, and other values that a span cannot hold become JSON text."""
    if isinstance(value, bytes):
        return value.hex()
    try:
        return _plain(name, value)
    except PydanticCustomError:
        return json.dumps(value, ensure_ascii=False, default=str)
