"""Sending of stored spans to a collector: the spans of some rollouts once, or all spans of the log while it grows.

A collector receives every span, and may receive a span several times. A forwarder stores its cursor after the collector
has acknowledged the spans. If it is killed between the two, it later sends at most one batch again. A repeated span has
the same ids and the same content.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from store.exports.otlp.collector import Collector, CollectorOptions, Rejection, SendingStopped, traces_url
from store.exports.otlp.cursor_file import CursorFile
from store.exports.redaction import FieldRedaction
from store.exports.source import ExportSource
from store.exports.tables.otlp import OTLP, READS, otlp_spans
from store.interface.store import Store
from store.models import LoggedEvent
from store.models.enums import Frozen
from store.models.flat_spans import FlatSpan, flat_span
from store.models.queries import RolloutQuery
from store.models.trusted import span_model
from store.otel.encode import OtlpSpan, otlp_span
from store.runtime.progress import OnProgress, OperationProgress, ignore

_MOST_SPANS: Final = 512
_MOST_BYTES: Final = 2_000_000
"""The most spans of a request, and the most bytes of their payload. A single span may have more bytes."""
_LINGER_SECONDS: Final = 0.1
"""The time for which a batch waits for the next span."""
_SPAN_EVENT: Final = "span.recorded"


class SendReport(Frozen):
    """The spans that a collector has received."""

    to: str
    """The URL to which the spans were sent."""
    spans: int
    """The number of spans that the collector has acknowledged, including refused spans."""
    refused: int
    """The number of these spans that the collector has refused."""
    refusal: str
    """The reason of the first refusal; empty if no span was refused."""
    requests: int
    rollouts: int | None
    """The number of rollouts; None for a forwarder."""
    position: int | None
    """The position of the log at which the spans were read; None for a forwarder."""
    cursor: str | None
    """The place in the log up to which a forwarder has sent spans; None for `send_spans`."""
    seconds: float


@dataclass
class _Batch:
    spans: list[OtlpSpan] = field(default_factory=list[OtlpSpan])
    size: int = 0
    cursor: str | None = None

    @property
    def is_full(self) -> bool:
        return len(self.spans) >= _MOST_SPANS or self.size >= _MOST_BYTES

    def add(self, span: OtlpSpan, row: FlatSpan) -> None:
        self.spans.append(span)
        self.size += len(row.attributes) + len(row.events) + len(row.links)


def _no_notice(notice: str) -> None:
    del notice


async def send_spans(
    store: Store,
    to: str,
    *,
    query: RolloutQuery | None = None,
    redact: Sequence[str] = (),
    options: CollectorOptions | None = None,
    on_notice: Callable[[str], object] = _no_notice,
    on_progress: OnProgress = ignore,
) -> SendReport:
    """Send the spans of the rollouts that a query matches to a collector. All are read at one position of the log.

    Args:
        store: the store.
        to: the URL of the collector; `/v1/traces` is added unless it is there.
        query: the conditions on rollouts, and `as_at`, as for `export_store`.
        redact: the fields to leave out; see `FieldRedaction`.
        options: how spans are sent.
        on_notice: called with a sentence when the collector stops taking spans, and when it takes spans again.
        on_progress: called with the number of listed rollouts.

    Raises:
        Forbidden, Unauthorized: the collector demands other headers.
        Incompatible: the collector does not accept the spans.
        Invalid: an argument is invalid.
        Unavailable: the collector does not answer.
        Unsupported: the store has no log.
    """
    begun = time.perf_counter()
    query = RolloutQuery() if query is None else query
    redaction = _redaction(redact)
    moment = await store.log.position(query.as_at)
    source = ExportSource(store, query, moment.position, READS)
    spans = rollouts = 0
    refused = Rejection()
    async with Collector(to, options or CollectorOptions(), on_notice) as collector:
        batch = _Batch()

        async def send() -> None:
            nonlocal batch, spans, refused
            if batch.spans:
                refused = refused.and_also(await collector.send(batch.spans))
                spans += len(batch.spans)
                batch = _Batch()

        async for records in source.records():
            for record in records:
                redaction.apply(record)
                rollouts += record.is_first
                for row, span in zip(record.spans, otlp_spans(record), strict=True):
                    batch.add(span, row)
                    if batch.is_full:
                        await send()
            on_progress(OperationProgress("exporting", records[-1].offset, source.listed, "rollouts"))
        await send()
    return SendReport(
        to=collector.url,
        spans=spans,
        refused=refused.spans,
        refusal=refused.message,
        requests=collector.requests,
        rollouts=rollouts,
        position=moment.position,
        cursor=None,
        seconds=time.perf_counter() - begun,
    )


async def forward_spans(
    store: Store,
    to: str,
    cursor: str | os.PathLike[str],
    *,
    follow: bool = True,
    redact: Sequence[str] = (),
    options: CollectorOptions | None = None,
    on_notice: Callable[[str], object] = _no_notice,
    stop: asyncio.Event | None = None,
) -> SendReport:
    """Send the spans of the log to a collector in the order in which they were recorded, then new spans as they arrive.

    Args:
        store: the store.
        to: the URL of the collector; `/v1/traces` is added unless it is there.
        cursor: the path of the cursor file, which stores the place in the log. Without a file, sending starts at the
            beginning of the log.
        follow: whether to wait for more spans at the end of the log, until `stop` is set.
        redact: the attributes to leave out; see `FieldRedaction`.
        options: how spans are sent; by default a request is repeated until the collector takes it.
        on_notice: called with a sentence when the collector stops taking spans, when it takes spans again, and when it
            refuses spans for the first time.
        stop: an event. When it is set, the call returns after the current request, and does not repeat the request.

    Raises:
        Conflict: another process uses the cursor file, or the file belongs to another collector.
        Forbidden, Unauthorized: the collector demands other headers.
        Incompatible: the file belongs to another store or is not a cursor file, or the collector does not accept the
            spans.
        Invalid: an argument is invalid.
        Unavailable: the collector has not answered for `options.retry_seconds`.
        Unsupported: the store has no log.
    """
    begun = time.perf_counter()
    stop = stop or asyncio.Event()
    redaction = _redaction(redact)
    file = CursorFile(Path(cursor), traces_url(to))
    spans, refused = 0, Rejection()
    with file.locked():
        state = file.read()
        async with Collector(to, options or CollectorOptions(retry_seconds=None), on_notice, stop) as collector:
            batches = _batches(store.log.tail(state.cursor, follow=follow, types=[_SPAN_EVENT]), redaction, stop)
            async for batch in batches:
                try:
                    refusal = await collector.send(batch.spans)
                except SendingStopped:
                    break
                if refusal.spans and not refused.spans:
                    on_notice(f"the collector has refused {refusal.spans:,} spans: {refusal.message}")
                refused = refused.and_also(refusal)
                spans += len(batch.spans)
                state = state.model_copy(
                    update={
                        "cursor": batch.cursor,
                        "spans": state.spans + len(batch.spans),
                        "refused": state.refused + refusal.spans,
                    }
                )
                file.write(state)
            await batches.aclose()
    return SendReport(
        to=collector.url,
        spans=spans,
        refused=refused.spans,
        refusal=refused.message,
        requests=collector.requests,
        rollouts=None,
        position=None,
        cursor=state.cursor,
        seconds=time.perf_counter() - begun,
    )


def _redaction(redact: Sequence[str]) -> FieldRedaction:
    redaction = FieldRedaction(redact)
    redaction.check([OTLP])
    OTLP.without(redaction.columns.get(OTLP.name, ()))
    return redaction


async def _batches(
    events: AsyncIterator[LoggedEvent], redaction: FieldRedaction, stop: asyncio.Event
) -> AsyncGenerator[_Batch]:
    """Yield the spans of events in batches. A batch ends when it is full, or no event follows in `_LINGER_SECONDS`."""
    stopping = asyncio.ensure_future(stop.wait())
    following = asyncio.ensure_future(anext(events, None))
    batch = _Batch()
    try:
        while not stop.is_set():
            timeout = _LINGER_SECONDS if batch.spans else None
            await asyncio.wait({following, stopping}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            is_done = following.done()
            event = following.result() if is_done else None
            if event is not None:
                row = redaction.span(_row(event))
                batch.add(otlp_span(row), row)
                batch.cursor = event.cursor
                following = asyncio.ensure_future(anext(events, None))
            if batch.spans and (batch.is_full or event is None):
                yield batch
                batch = _Batch()
            if is_done and event is None:
                return
    finally:
        for task in (following, stopping):
            task.cancel()
        await asyncio.wait({following, stopping})
        if isinstance(events, AsyncGenerator):
            await events.aclose()


class _SpanRow(NamedTuple):
    """The columns of a span, read from the event that recorded the span."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    status_code: str
    status_message: str | None
    start_time: float | None
    end_time: float | None


def _row(event: LoggedEvent) -> FlatSpan:
    """Return the span that an event has recorded."""
    data = event.data
    columns: Any = _SpanRow(
        event.stream.partition("/")[2],
        data["attempt_id"],
        data["sequence_id"],
        data["trace_id"],
        data["span_id"],
        data.get("parent_id"),
        data["name"],
        data["status_code"],
        data.get("status_message"),
        data.get("start"),
        data.get("end"),
    )
    return flat_span(span_model(columns, event.body))
