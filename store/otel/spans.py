"""What both encodings of OTLP have in common: whose span it is, which number it has, and what a span cannot hold.

A span says by attributes which attempt it belongs to, its resource may say it for all of its spans. Each key of the
span itself wins over the same key of its resource.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from pydantic import BaseModel

from store.models import AttributeValue, Event, Link, OtelResource, Span, SpanContext, TraceStatus
from store.models.spans import StatusCode
from store.semconv import ATTEMPT_ID, ROLLOUT_ID, SPAN_SEQUENCE_ID

Attributes = dict[str, AttributeValue]
Json = dict[str, Any]

_MOST_REASONS: Final = 8
_LONGEST_REASON: Final = 300


class Undecodable(ValueError):
    """A request that is not OTLP, whole and as a whole: nothing of it can be taken."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"Unable to parse OTLP traces payload: {reason}")


class Malformed(ValueError):
    """A part of a request that cannot be what it is said to be; the spans beside it can."""


@dataclass(slots=True)
class Refusals:
    """How many spans were refused, and why."""

    reasons: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, reason: str, spans: int = 1) -> None:
        """Count spans that were refused for a reason."""
        if len(reason) > _LONGEST_REASON:
            reason = f"{reason[: _LONGEST_REASON - 1]}…"
        self.reasons[reason] = self.reasons.get(reason, 0) + spans

    @property
    def total(self) -> int:
        """How many spans were refused."""
        return sum(self.reasons.values())

    @property
    def message(self) -> str:
        """Every reason with its count, the first few of them if there are many."""
        told = [
            f"{count} spans: {reason}" if count > 1 else reason
            for reason, count in list(self.reasons.items())[:_MOST_REASONS]
        ]
        if len(self.reasons) > _MOST_REASONS:
            told.append(f"and {len(self.reasons) - _MOST_REASONS} more reasons")
        return "; ".join(told)


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """What produced some spans, and what it says of all of them; None where it does not say."""

    resource: OtelResource
    rollout_id: AttributeValue | None
    attempt_id: AttributeValue | None
    number: AttributeValue | None

    @classmethod
    def of(cls, attributes: Attributes, schema_url: str) -> "Origin":
        """Return the origin that a resource's attributes describe."""
        resource = _resource({"attributes": attributes, "schema_url": schema_url})
        said = attributes.get
        return cls(resource, said(ROLLOUT_ID), said(ATTEMPT_ID), said(SPAN_SEQUENCE_ID))


@dataclass(slots=True)
class Received:
    """A span as it came: its fields are those of a `Span`, and what a span holds besides is JSON."""

    origin: Origin
    rollout_id: str
    attempt_id: str
    sequence_id: int
    trace_id: str
    """In lower-case hex, as is the next."""
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

    def span(self) -> Span:
        """Return it as the model that every store takes."""
        # In the order of the model's fields, which is that of its JSON.
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
                "context": _context(context(self.trace_id, self.span_id)),
                "parent": None,
                "resource": self.origin.resource,
            }
        )


@dataclass(slots=True)
class Traces:
    """The spans of one request, in its order."""

    received: list[Received] = field(default_factory=list[Received])
    """Those that say whose they are."""
    unnumbered: list[int] = field(default_factory=list[int])
    """Which of them, by index, still need a number."""
    refused: Refusals = field(default_factory=Refusals)

    @property
    def spans(self) -> list[Span]:
        """Those that say whose they are, as models."""
        return [each.span() for each in self.received]

    def add(
        self,
        origin: Origin,
        *,
        trace_id: str,
        span_id: str,
        parent_id: str | None,
        name: str,
        status_code: StatusCode,
        message: str | None,
        attributes: Attributes,
        events: list[Json],
        links: list[Json],
        start_time: float | None,
        end_time: float | None,
    ) -> None:
        """Take a span, or refuse it if nothing says which attempt it belongs to."""
        said = attributes.get
        rollout_id, attempt_id = said(ROLLOUT_ID, origin.rollout_id), said(ATTEMPT_ID, origin.attempt_id)
        if rollout_id is None or attempt_id is None or rollout_id == "" or attempt_id == "":
            self._refuse_unowned(rollout_id, attempt_id)
            return
        number = sequence_number(said(SPAN_SEQUENCE_ID, origin.number))
        if number is None:
            self.unnumbered.append(len(self.received))
        self.received.append(
            Received(
                origin,
                str(rollout_id),
                str(attempt_id),
                number or 0,
                trace_id,
                span_id,
                parent_id,
                name,
                status_code,
                message,
                attributes,
                events,
                links,
                start_time,
                end_time,
            )
        )

    def _refuse_unowned(self, rollout_id: AttributeValue | None, attempt_id: AttributeValue | None) -> None:
        key, value = (
            (ATTEMPT_ID, attempt_id) if rollout_id is not None and rollout_id != "" else (ROLLOUT_ID, rollout_id)
        )
        self.refused.add(f"{key} is {'missing on the span and its resource' if value is None else 'empty'}")

    def number(self, numbers: Mapping[int, int]) -> None:
        """Give spans the numbers that were drawn for them, by their index."""
        for index, number in numbers.items():
            self.received[index].sequence_id = number


def sequence_number(said: AttributeValue | None) -> int | None:
    """Return the number that a span or its resource states, or None if it has to be drawn.

    An integer or its decimal text counts, from 0 on; anything else is as good as absent.
    """
    if isinstance(said, str):
        try:
            said = int(said)
        except ValueError:
            return None
    return said if type(said) is int and said >= 0 else None


def carried(value: Any) -> AttributeValue:
    """Return a list or an object as an attribute can hold it.

    A list of one kind stays a list, integers among floats are widened. Anything else becomes JSON text, so that no span
    is lost over one of its attributes.
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

# -- models of values that the decoders vouch for --------------------------------------------------------------------

Model = TypeVar("Model", bound=BaseModel)

_new = object.__new__
_set = object.__setattr__


def _maker(kind: type[Model]) -> Callable[[dict[str, Any]], Model]:
    """Return what makes a model of all of its fields, unchecked: checking takes longer than all the rest."""
    names = set(kind.model_fields)
    keeps_extras = kind.model_config.get("extra") == "allow"

    def make(fields: dict[str, Any]) -> Model:
        model = _new(kind)
        _set(model, "__dict__", fields)
        _set(model, "__pydantic_fields_set__", names)
        _set(model, "__pydantic_extra__", {} if keeps_extras else None)
        _set(model, "__pydantic_private__", None)
        return model

    return make


_span = _maker(Span)
_context = _maker(SpanContext)
_status = _maker(TraceStatus)
_event = _maker(Event)
_link = _maker(Link)
_resource = _maker(OtelResource)


# -- parts of spans --------------------------------------------------------------------------------------------------


def context(trace_id: str, span_id: str) -> Json:
    """Return the identity of a span; its trace state is not kept, as in Agent-lightning 0.3."""
    return {"trace_id": trace_id, "span_id": span_id, "is_remote": False, "trace_state": {}}


def event(name: str, attributes: Attributes, timestamp: float | None) -> Json:
    """Return an event of a span."""
    return {"name": name, "attributes": attributes, "timestamp": timestamp}


def link(trace_id: str, span_id: str, attributes: Attributes) -> Json:
    """Return a link to another span; without attributes it has None."""
    return {"context": context(trace_id, span_id), "attributes": attributes or None}


_CODES: Final[tuple[StatusCode, ...]] = ("UNSET", "OK", "ERROR")


def status_code(code: int) -> StatusCode:
    """Return how a span ended; a code that OTLP does not know says nothing."""
    return _CODES[code] if 0 <= code < len(_CODES) else "UNSET"
