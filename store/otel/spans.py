"""Parts that both OTLP decoders share: decoded spans, their attempts and sequence numbers, and attribute values.

Attributes of a span state the attempt to which the span belongs. The resource may state the attempt for all of its
spans. An attribute of the span takes precedence over the same attribute of the resource.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeVar, cast

from pydantic import BaseModel, ValidationError

from store.models import AttributeValue, Event, Link, OtelResource, Span, SpanContext, TraceStatus
from store.models.spans import StatusCode
from store.otel import exported
from store.otel.exported import ExportedFields
from store.semconv import ATTEMPT_ID, CHANGED, EXPORTED, ROLLOUT_ID, SPAN_SEQUENCE_ID, invalid_rewards

Attributes = dict[str, AttributeValue]
Json = dict[str, Any]

MAX_SEQUENCE_ID: Final = 2**53
"""The greatest sequence number of a span."""
_MOST_REASONS: Final = 8
_LONGEST_REASON: Final = 300


class Undecodable(ValueError):
    """Error for a request that cannot be decoded as a whole; none of its spans can be stored."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"Unable to parse OTLP traces payload: {reason}")


class Malformed(ValueError):
    """Error for an invalid value. If the value is in a span, the span is refused; otherwise, the request is refused."""


@dataclass(slots=True)
class Refusals:
    """Counts of refused spans, by reason."""

    reasons: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, reason: str, spans: int = 1) -> None:
        """Count spans that were refused for one reason."""
        if len(reason) > _LONGEST_REASON:
            reason = f"{reason[: _LONGEST_REASON - 1]}…"
        self.reasons[reason] = self.reasons.get(reason, 0) + spans

    @property
    def total(self) -> int:
        """The number of refused spans."""
        return sum(self.reasons.values())

    @property
    def message(self) -> str:
        """The first reasons as one text; a reason that several spans share begins with their number."""
        parts = [
            f"{count} spans: {reason}" if count > 1 else reason
            for reason, count in list(self.reasons.items())[:_MOST_REASONS]
        ]
        if len(self.reasons) > _MOST_REASONS:
            parts.append(f"and {len(self.reasons) - _MOST_REASONS} more reasons")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The resource of a group of spans, and its attributes that state the attempt and the sequence number of a span.

    An attribute that the resource lacks is None.
    """

    resource: OtelResource
    rollout_id: AttributeValue | None
    attempt_id: AttributeValue | None
    number: AttributeValue | None

    @classmethod
    def of(cls, attributes: Attributes, schema_url: str, dropped: int = 0) -> "Origin":
        """Return the origin for a resource's attributes; `dropped` counts attributes that its producer dropped."""
        resource = _resource(counting({"attributes": attributes, "schema_url": schema_url}, dropped))
        value_of = attributes.get
        return cls(resource, value_of(ROLLOUT_ID), value_of(ATTEMPT_ID), value_of(SPAN_SEQUENCE_ID))


@dataclass(slots=True)
class Received:
    """A decoded span. It has the fields of a `Span`; the trace state, events, links and extras are JSON values.

    See decision 26.
    """

    origin: Origin
    trace_id: str
    """The id in lower-case hex. `span_id` has the same form."""
    span_id: str
    parent_id: str | None
    name: str
    status_code: StatusCode
    message: str | None
    attributes: Attributes
    events: list[Json]
    links: list[Json]
    start_time: float | None
    end_time: float | None
    trace_state: dict[str, str]
    extras: Json
    """The fields that `Span` does not declare."""
    rollout_id: str = ""
    attempt_id: str = ""
    sequence_id: int = 0
    exported: ExportedFields | None = None
    """The fields that an export of a store added; they replace the others in `span`."""
    added: Attributes = field(default_factory=dict[str, AttributeValue])
    """The attributes that an export of a store added, which are no longer among the attributes."""

    def span(self) -> Span:
        """Return the span as the model that every store accepts."""
        span = self._decoded()
        return span if self.exported is None else self.exported.restored(span)

    def restore(self) -> None:
        """Restore the fields that an export of a store added, if they are valid, also those of this object."""
        self.exported = fields = exported.parsed(self.attributes.get(EXPORTED))
        if fields is None:
            return
        try:
            restored = self.span()
        except ValidationError:
            self.exported = None
            return
        self.added = fields.restore_attributes(self.attributes)
        self.trace_id, self.span_id, self.parent_id = restored.trace_id, restored.span_id, restored.parent_id
        self.sequence_id = restored.sequence_id

    def _decoded(self) -> Span:
        # The JSON of the span has its fields in this order, and `_maker` needs the declared fields first.
        return _span(
            {
                "rollout_id": self.rollout_id,
                "attempt_id": self.attempt_id,
                "sequence_id": self.sequence_id,
                "trace_id": self.trace_id,
                "span_id": self.span_id,
                "parent_id": self.parent_id,
                "name": self.name,
                "status": _status({"status_code": self.status_code, "description": self.message}),
                "attributes": self.attributes,
                "events": [_event(event) for event in self.events],
                "links": [_link({**link, "context": _context(link["context"])}) for link in self.links],
                "start_time": self.start_time,
                "end_time": self.end_time,
                "context": _context(context(self.trace_id, self.span_id, self.trace_state)),
                "parent": None,
                "resource": self.origin.resource,
                **self.extras,
            }
        )


@dataclass(slots=True)
class Traces:
    """The spans of one request, in the order of the request."""

    received: list[Received] = field(default_factory=list[Received])
    """The spans whose attempt is stated by the span or its resource."""
    unnumbered: list[int] = field(default_factory=list[int])
    """The indexes in `received` of the spans that still need a sequence number."""
    refused: Refusals = field(default_factory=Refusals)
    changed: Refusals = field(default_factory=Refusals)
    """Counts of spans that were changed so that a store accepts them, by change."""
    accepts_foreign: bool = False
    """Whether spans that do not state their attempt are accepted; their `rollout_id` and `attempt_id` are empty."""

    @property
    def spans(self) -> list[Span]:
        """The spans of `received` as models."""
        return [span.span() for span in self.received]

    def add(self, span: Received) -> None:
        """Add a span. Refuse the span if neither the span nor its resource states the attempt."""
        origin, attributes = span.origin, span.attributes
        value_of = attributes.get
        rollout_id, attempt_id = value_of(ROLLOUT_ID, origin.rollout_id), value_of(ATTEMPT_ID, origin.attempt_id)
        if rollout_id is None or attempt_id is None or rollout_id == "" or attempt_id == "":
            if self.accepts_foreign:
                self.received.append(span)
                return
            has_rollout = rollout_id is not None and rollout_id != ""
            key, value = (ATTEMPT_ID, attempt_id) if has_rollout else (ROLLOUT_ID, rollout_id)
            self.refused.add(f"{key} is {'missing on the span and its resource' if value is None else 'empty'}")
            return
        if invalid := invalid_rewards(attributes):
            # The name of a reward may have characters that no store accepts, so the text does not contain it.
            attributes[CHANGED] = [
                f"no valid reward: {value[:80]!a} is not a finite number" for _, value in invalid[:8]
            ]
        number = sequence_number(value_of(SPAN_SEQUENCE_ID, origin.number))
        span.rollout_id, span.attempt_id, span.sequence_id = str(rollout_id), str(attempt_id), number or 0
        if EXPORTED in attributes:
            span.restore()
        if number is None and not span.sequence_id:
            self.unnumbered.append(len(self.received))
        self.received.append(span)

    def number(self, numbers: Mapping[int, int]) -> None:
        """Set the sequence numbers that the store assigned to spans, by their index in `received`."""
        for index, number in numbers.items():
            self.received[index].sequence_id = number


def sequence_number(value: AttributeValue | None) -> int | None:
    """Return the sequence number that a span or its resource states; None if the store has to assign one.

    The number is an integer from 0 to 2⁵³, or its decimal text. Any other value is treated as absent.
    """
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            return None
    return value if type(value) is int and 0 <= value <= MAX_SEQUENCE_ID else None


def carried(value: Any) -> AttributeValue:
    """Return a list or an object as an attribute value.

    A list of scalars of one type stays a list. In a list of integers and floats, the integers become floats. Any other
    list and any object becomes JSON text, so that no span is lost because of one attribute.
    """
    if isinstance(value, list):
        items = cast("list[Any]", value)
        kinds: set[type[Any]] = {type(item) for item in items}
        if not kinds or (len(kinds) == 1 and kinds <= _SCALARS):
            return items
        if kinds == {int, float}:
            return [float(item) for item in items]
    return json.dumps(value, ensure_ascii=False)


_SCALARS: Final[set[type[Any]]] = {str, bool, int, float}

Model = TypeVar("Model", bound=BaseModel)

_new = object.__new__
_set = object.__setattr__


def _maker(kind: type[Model]) -> Callable[[dict[str, Any]], Model]:
    """Return a function that builds a model from a dictionary of all declared fields, followed by undeclared fields.

    The function does not validate the fields, because validation would dominate the cost of decoding.
    """
    names = set(kind.model_fields)
    count = len(names)

    def make(fields: dict[str, Any]) -> Model:
        extras: dict[str, Any] = {}
        if len(fields) > count:
            extras = dict(islice(fields.items(), count, None))
            fields = dict(islice(fields.items(), count))
        model = _new(kind)
        _set(model, "__dict__", fields)
        _set(model, "__pydantic_fields_set__", names)
        _set(model, "__pydantic_extra__", extras)
        _set(model, "__pydantic_private__", None)
        return model

    return make


_span = _maker(Span)
_context = _maker(SpanContext)
_status = _maker(TraceStatus)
_event = _maker(Event)
_link = _maker(Link)
_resource = _maker(OtelResource)


def check_ids(trace_id: str, span_id: str) -> None:
    """Check the ids of a span.

    Raises:
        Malformed: an id does not have its length, or is zero. Such ids do not identify a span.
    """
    for name, value, length in (("traceId", trace_id, 32), ("spanId", span_id, 16)):
        if len(value) != length or not value.strip("0"):
            raise Malformed(f"{name}: {value[:80]!r} is not an id of {length} hex digits other than zero")


def context(trace_id: str, span_id: str, trace_state: dict[str, str]) -> Json:
    """Return the context of a span: its ids and its trace state."""
    return {"trace_id": trace_id, "span_id": span_id, "is_remote": False, "trace_state": trace_state}


def trace_state(header: str) -> dict[str, str]:
    """Return a trace state from its text, `key=value` pairs between commas; for equal keys, the first pair is used."""
    pairs: dict[str, str] = {}
    for member in header.split(","):
        key, _, value = member.strip(" \t").partition("=")
        if key or value:
            pairs.setdefault(key, value)
    return pairs


def counting(part: Json, dropped: int) -> Json:
    """Return a part of a span. If the producer dropped attributes of the part, first add their number to the part."""
    if dropped:
        part["dropped_attributes_count"] = dropped
    return part


def event(name: str, attributes: Attributes, timestamp: float | None, dropped: int) -> Json:
    """Return an event of a span."""
    return counting({"name": name, "attributes": attributes, "timestamp": timestamp}, dropped)


def link(trace_id: str, span_id: str, state: str, attributes: Attributes, dropped: int, flags: int) -> Json:
    """Return a link to another span; empty attributes become None."""
    part: Json = {"context": context(trace_id, span_id, trace_state(state)), "attributes": attributes or None}
    if flags:
        part["flags"] = flags
    return counting(part, dropped)


def extras(kind: int, scope: Json, flags: int, attributes: int, events: int, links: int) -> Json:
    """Return the fields that `Span` does not declare; fields without a value are left out.

    Args:
        kind: the kind of the span as a code of OTLP; an unknown code counts as unset.
        scope: the instrumentation scope, as `scope_fields` returns it.
        flags: the flags of the span.
        attributes: the number of dropped attributes.
        events: the number of dropped events.
        links: the number of dropped links.
    """
    fields: Json = {}
    if 0 < kind < len(_KINDS):
        fields["kind"] = _KINDS[kind]
    if scope:
        fields["instrumentation_scope"] = scope
    if flags:
        fields["flags"] = flags
    if attributes or events or links:
        dropped = {
            "dropped_attributes_count": attributes,
            "dropped_events_count": events,
            "dropped_links_count": links,
        }
        fields.update((name, count) for name, count in dropped.items() if count)
    return fields


_KINDS: Final = ("", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
_CODES: Final[tuple[StatusCode, ...]] = ("UNSET", "OK", "ERROR")


def status_code(code: int) -> StatusCode:
    """Return the status for a status code of OTLP; an unknown code counts as unset."""
    return _CODES[code] if 0 <= code < len(_CODES) else "UNSET"
