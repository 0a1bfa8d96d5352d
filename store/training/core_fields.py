"""Fields of a span without ids: name, times, status and attributes."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from store.models import Attributes, StatusCode, TraceStatus
from store.models.enums import Frozen


class SpanCoreFields(Frozen):
    """A span without ids. If an agent returns such a span, the runner adds ids and stores the span."""

    name: str
    status: TraceStatus
    attributes: Attributes
    start_time: float | None = None
    """Seconds since the epoch."""
    end_time: float | None = None


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
        "exception.message": str(exception),
        "exception.escaped": True,
        "exception.stacktrace": "".join(traceback.format_exception(exception)),
    }


def type_name(value: Any) -> str:
    """Return the qualified name of a value's type, with its module unless the type is builtin."""
    kind: type[Any] = value.__class__
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
