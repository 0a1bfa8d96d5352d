"""Fields of a span without ids: name, times, status and attributes."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from store.models import Attributes, AttributeValue, StatusCode, TraceStatus
from store.models.enums import Frozen
from store.runtime.lenient_json import safe_text, storable_text

if TYPE_CHECKING:
    from opentelemetry import trace


class SpanCoreFields(Frozen):
    """A span without ids. If an agent returns such a span, the runner adds ids and stores the span."""

    name: str
    status: TraceStatus
    attributes: Attributes
    start_time: float | None = None
    """Seconds since the epoch."""
    end_time: float | None = None


def core_fields(
    name: str,
    status: TraceStatus,
    attributes: Mapping[str, AttributeValue],
    start_time: float | None,
    end_time: float | None,
) -> SpanCoreFields:
    """Return the fields of a span; characters of its name that no text may contain are replaced."""
    return SpanCoreFields(
        name=storable_text(safe_text(name)),
        status=status,
        attributes=dict(attributes),
        start_time=start_time,
        end_time=end_time,
    )


def trace_status(status_code: StatusCode, description: str | None) -> TraceStatus:
    """Return a status; characters of its description that no text may contain are replaced."""
    return TraceStatus(
        status_code=status_code, description=None if description is None else storable_text(safe_text(description))
    )


@runtime_checkable
class SpanRecordingContext(Protocol):
    """A span that is being recorded."""

    def record_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes; values of types that spans do not support become JSON text."""
        ...

    def record_status(self, status_code: StatusCode, description: str | None = None) -> None:
        """Set the status."""
        ...

    def record_exception(self, exception: BaseException) -> None:
        """Record an exception, and set the status to an error."""
        ...

    def get_recorded_span(self) -> SpanCoreFields:
        """Return the recorded span.

        Raises:
            RuntimeError: the span has not ended yet.
        """
        ...


def exception_attributes(exception: BaseException) -> dict[str, str | bool]:
    """Return an exception as OpenTelemetry attributes."""
    return {
        "exception.type": type_name(exception),
        "exception.message": safe_text(exception),
        "exception.escaped": True,
        "exception.stacktrace": "".join(traceback.format_exception(exception)),
    }


def record_exception(span: trace.Span, exception: BaseException) -> str:
    """Record an exception as an event of a span, and return the text of the exception."""
    try:
        span.record_exception(exception)
        return str(exception)
    except Exception:  # noqa: BLE001 - `str` of the agent's exception may raise any other exception
        attributes = exception_attributes(exception) | {"exception.escaped": "False"}
        span.add_event("exception", attributes)
        return safe_text(exception)


def type_name(value: Any) -> str:
    """Return the qualified name of a value's type, with its module unless the type is builtin."""
    kind: type[Any] = value.__class__
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
