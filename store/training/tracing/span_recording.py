"""Recording of blocks and of finished spans in an attempt."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace

from store.errors import Invalid
from store.models import AttributeValue, StatusCode, TraceStatus
from store.otel.repair import add_attributes
from store.runtime.lenient_json import safe_text
from store.semconv import CHANGED
from store.training.tracing.core_fields import (
    SpanCoreFields,
    core_fields,
    exception_attributes,
    record_exception,
    trace_status,
)
from store.training.tracing.scope import AttemptScope
from store.training.tracing.span_attributes import sanitize_attributes


class OperationFields:
    """The fields of the span for a block of code. The span is built, but not recorded."""

    def __init__(self, name: str, attributes: Mapping[str, AttributeValue], start_time: float) -> None:
        self._name = name
        self._attributes = dict(attributes)
        self._start_time = start_time
        self._status = TraceStatus(status_code="UNSET")
        self._end_time: float | None = None

    def record_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes; values of types that spans do not support become JSON text."""
        add_attributes(self._attributes, sanitize_attributes(attributes))

    def record_status(self, status_code: StatusCode, description: str | None = None) -> None:
        """Set the status."""
        self._status = trace_status(status_code, description)

    def record_exception(self, exception: BaseException) -> None:
        """Record an exception as attributes, and set the status to an error."""
        self._attributes |= exception_attributes(exception)
        self.record_status("ERROR", safe_text(exception))

    def finish(self, end_time: float | None = None) -> None:
        """End the span at `end_time`, in seconds since the epoch; None for now."""
        if self._status.status_code == "UNSET":
            self.record_status("OK")
        self._end_time = time.time() if end_time is None else end_time

    def get_recorded_span(self) -> SpanCoreFields:
        """Return the span.

        Raises:
            RuntimeError: the span has not ended yet.
        """
        if self._end_time is None:
            raise RuntimeError(f"the operation {self._name} has not ended; get its span after its with block")
        return core_fields(self._name, self._status, self._attributes, self._start_time, self._end_time)


class LiveOperation(OperationFields):
    """A block of code that is being recorded as a span of the SDK. This object keeps a copy of the span's fields."""

    def __init__(
        self, span: trace.Span, name: str, attributes: Mapping[str, AttributeValue], start_time: float
    ) -> None:
        super().__init__(name, attributes, start_time)
        self._span = span

    def record_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes; values of types that spans do not support become JSON text."""
        added = sanitize_attributes(attributes)
        add_attributes(self._attributes, added)
        if CHANGED in added:
            added[CHANGED] = self._attributes[CHANGED]
        self._span.set_attributes(added)

    def record_status(self, status_code: StatusCode, description: str | None = None) -> None:
        """Set the status."""
        super().record_status(status_code, description)
        self._span.set_status(trace.StatusCode[status_code], description if status_code == "ERROR" else None)

    def record_exception(self, exception: BaseException) -> None:
        """Record an exception as an event, and set the status to an error."""
        self.record_status("ERROR", record_exception(self._span, exception))

    def finish(self, end_time: float | None = None) -> None:
        """End the span at `end_time`, in seconds since the epoch; None for now."""
        end_time = time.time() if end_time is None else end_time
        super().finish(end_time)
        self._span.end(_nanoseconds(end_time))


@contextmanager
def recording(
    scope: AttemptScope,
    name: str,
    attributes: Mapping[str, Any],
    start_time: float | None = None,
    end_time: float | None = None,
) -> Generator[LiveOperation]:
    """Record a block as one span of an attempt; exceptions are recorded and raised again."""
    started_at = time.time() if start_time is None else start_time
    if end_time is not None:
        _nanoseconds(end_time)  # an invalid time is refused before the block runs
    sanitized = sanitize_attributes(attributes)
    span = scope.tracer.start_span(name, attributes=sanitized, start_time=_nanoseconds(started_at))
    operation = LiveOperation(span, name, sanitized, started_at)
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield operation
    except BaseException as error:
        operation.record_exception(error)
        raise
    finally:
        operation.finish(end_time)


def record_fields(scope: AttemptScope, fields: SpanCoreFields) -> None:
    """Record a finished span in an attempt, as a child of the current span."""
    now = time.time()
    start = now if fields.start_time is None else fields.start_time
    span = scope.tracer.start_span(fields.name, attributes=fields.attributes, start_time=_nanoseconds(start))
    code, description = fields.status.status_code, fields.status.description
    span.set_status(trace.StatusCode[code], description if code == "ERROR" else None)
    span.end(_nanoseconds(max(start, now) if fields.end_time is None else fields.end_time))


def _nanoseconds(seconds: float) -> int:
    """Return a time in nanoseconds.

    Raises:
        Invalid: the time is not finite.
    """
    if not math.isfinite(seconds):
        raise Invalid("time", f"is {seconds}; give seconds since the epoch, or None for now")
    # A single multiplication of doubles would be off by up to 128 ns, so the fraction is converted separately.
    full, part = divmod(seconds, 1)
    return int(full) * 1_000_000_000 + round(part * 1_000_000_000)
