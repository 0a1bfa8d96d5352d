"""What a span says before it has an identity: its name, times, status and attributes."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from store.models import Attributes, StatusCode, TraceStatus
from store.models.enums import Frozen


class SpanCoreFields(Frozen):
    """A span without ids. A runner that gets one as an agent's result stores it among the attempt's spans."""

    name: str
    status: TraceStatus
    attributes: Attributes
    start_time: float | None = None
    """In seconds since the epoch."""
    end_time: float | None = None


@runtime_checkable
class SpanRecordingContext(Protocol):
    """A span that is being recorded."""

    def record_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes; what a span cannot hold becomes JSON text."""
        ...

    def record_status(self, status_code: StatusCode, description: str | None = None) -> None:
        """Say how it ended."""
        ...

    def record_exception(self, exception: BaseException) -> None:
        """Record an exception, and that the span ended with it."""
        ...

    def get_recorded_span(self) -> SpanCoreFields:
        """Return what was recorded.

        Raises:
            RuntimeError: the span has not ended yet.
        """
        ...


def exception_attributes(exception: BaseException) -> dict[str, str | bool]:
    """Return an exception in OpenTelemetry's attributes."""
    return {
        "exception.type": type_name(exception),
        "exception.message": str(exception),
        "exception.escaped": True,
        "exception.stacktrace": "".join(traceback.format_exception(exception)),
    }


def type_name(value: Any) -> str:
    """Return the qualified name of a value's type, bare for a builtin."""
    kind: type[Any] = value.__class__
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
