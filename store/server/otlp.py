"""OTLP over HTTP: exporters post traces. A success means that all spans except the refused spans are committed.

Spans of one attempt are recorded together. An error of one attempt or of one span is reported in a partial success, and
all other spans are stored. A value that no store accepts is changed and marked, so that its span is stored. If the
store cannot write at the moment, the whole request is refused, so that the exporter sends it again. Spans that are
already stored are then recognised and skipped; no number is drawn for them.
"""

import asyncio
import gzip
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from store.domain.commands import RecordSpans
from store.errors import Invalid, NotFound, SpanConflict, StoreError, TooLarge
from store.interface.store import Store
from store.otel.decode import PROTOBUF, Encoding, Traces, Undecodable, encoding_of
from store.otel.repair import repair
from store.otel.spans import Received
from store.runtime import context
from store.server.api_schema import Json, reference, refusals
from store.server.call import ClientLeft
from store.server.decompress import CODINGS, Broken, TooLong, expand
from store.server.routing import RequestRoute, needs
from store.sql.commands.spans import record_received
from store.wire import paths
from store.wire.errors import retry_after, status_of

logger = logging.getLogger("store.server.otlp")

T = TypeVar("T")

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""The default limit of a body, both as sent and after decompression. It is the default limit of exporters."""

# A larger body is decompressed and decoded in a thread, so that other requests continue meanwhile.
_INLINE_BYTES: Final = 1024 * 1024
# The most spans in one call of the store. Encoding more spans at once would delay other requests.
_SPANS_AT_ONCE: Final = 1000
_CALLS_AT_ONCE: Final = 64
_EXPECTED: Final = "'application/x-protobuf' or 'application/json'"


SCHEMAS: Final[Mapping[str, Json]] = {
    "ExportTraceServiceRequest": {
        "type": "object",
        "description": "OpenTelemetry's opentelemetry.proto.collector.trace.v1, in its JSON mapping.",
        "properties": {"resourceSpans": {"type": "array", "items": {"type": "object"}}},
    },
    "ExportTraceServiceResponse": {
        "type": "object",
        "properties": {
            "partialSuccess": {
                "type": "object",
                "properties": {"rejectedSpans": {"type": "string"}, "errorMessage": {"type": "string"}},
            }
        },
    },
    "RpcStatus": {
        "type": "object",
        "description": "google.rpc.Status.",
        "properties": {"message": {"type": "string"}},
        "required": ["message"],
    },
}
"""The components of the OpenAPI document that these routes refer to."""


def _content(model: str) -> Json:
    return {
        "application/json": {"schema": reference("schemas", model)},
        "application/x-protobuf": {"schema": {"type": "string", "format": "binary"}},
    }


_FAILED: Final = _content("RpcStatus")
_CODING: Final[Json] = {
    "name": "Content-Encoding",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "enum": ["gzip", "deflate", "identity"]},
}

opentelemetry = APIRouter(route_class=RequestRoute, tags=["OpenTelemetry"], default_response_class=Response)


@opentelemetry.post(
    paths.OTLP_TRACES,
    response_model=None,
    response_description="Committed, except for the spans that the partial success counts.",
    responses={
        200: {"content": _content("ExportTraceServiceResponse")},
        400: {"description": "The body cannot be decoded, or has another content type.", "content": _FAILED},
        **refusals(401, 403, 404, 429),
        413: {"description": "The body is too large.", "content": _FAILED},
        500: {"description": "Internal error; the server's log has the details.", "content": _FAILED},
        503: {
            "description": "The server cannot answer now.",
            "headers": {"Retry-After": reference("headers", "Retry-After")},
            "content": _FAILED,
        },
    },
    openapi_extra={
        "parameters": [_CODING],
        "requestBody": {"required": False, "content": _content("ExportTraceServiceRequest")},
    },
)
@needs("runner")
async def export_traces(request: Request) -> Any:
    """Record the spans of an OpenTelemetry exporter; refused spans are counted in a partial success."""
    return TraceExport(request.app.state.max_otlp_bytes)


@needs("runner")
async def not_taken(request: Request) -> Response:
    """Refuse signals of OpenTelemetry exporters other than traces."""
    del request
    return Response(status_code=501)


for _path in paths.UNSUPPORTED_OTLP_PATHS:
    opentelemetry.add_api_route(
        _path,
        not_taken,
        methods=["POST"],
        operation_id=f"export_{_path.rpartition('/')[2]}",
        status_code=501,
        response_description="Not accepted.",
        responses=refusals(401, 403, 404, 413, 429),
    )


class _Refused(Exception):
    """The whole request is refused with a status."""

    def __init__(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class TraceExport:
    """The response to an export. It reads the body of the request itself, up to `max_body_bytes`.

    Args:
        max_body_bytes: the largest body, both as sent and after decompression. A larger body is refused with 413.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self._limit = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Record the spans and send the response."""
        scope["rollbook.route"] = paths.OTLP_TRACES
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        encoding = encoding_of(headers.get("content-type", ""))
        status, extra = 200, list[tuple[bytes, bytes]]()
        try:
            body = await self._export(scope["rollbook.store"], encoding, headers, receive)
        except ClientLeft:
            return
        except _Refused as refusal:
            status, extra = refusal.status, list(refusal.headers)
            body = (encoding or PROTOBUF).status(str(refusal))
        media_type = (encoding or PROTOBUF).media_type.encode()
        if _accepts_gzip(headers.get("accept-encoding", "")):
            body = gzip.compress(body, mtime=0)
            extra.append((b"content-encoding", b"gzip"))
        extra += [(b"content-type", media_type), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": extra})
        await send({"type": "http.response.body", "body": body})

    async def _export(
        self, store: Store, encoding: Encoding | None, headers: dict[str, str], receive: Receive
    ) -> bytes:
        if encoding is None:
            content_type = headers.get("content-type", "")
            raise _Refused(400, f"Unsupported Content-Type '{content_type}', expected {_EXPECTED}")
        body = await self._body(headers, receive)
        try:
            if len(body) <= _INLINE_BYTES:
                traces = encoding.decode(body)
            else:
                traces = await asyncio.to_thread(encoding.decode, body)
        except Undecodable as error:
            raise _Refused(400, str(error)) from None
        # The idempotency key is unset, because one request becomes many calls, and the store never records a span
        # twice.
        key = context.idempotency_key.set(None)
        try:
            await _store(store, traces)
        except StoreError as error:
            status = status_of(error)
            waiting = [(b"retry-after", retry_after(error).encode())] if status == 503 else []
            raise _Refused(status, str(error), *waiting) from error
        except Exception:
            logger.exception("traces could not be recorded")
            raise _Refused(500, "Internal server error") from None
        finally:
            context.idempotency_key.reset(key)
        if traces.refused.reasons:
            logger.warning("refused %d spans; the response to the exporter contains the reasons", traces.refused.total)
        if traces.changed.reasons:
            changed = traces.changed
            logger.warning("changed values of %d spans that cannot be stored: %s", changed.total, changed.message)
        return encoding.answer(traces.refused)

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes:
        coding = headers.get("content-encoding", "identity").strip().lower()
        if coding not in CODINGS and coding not in {"identity", ""}:
            raise _Refused(400, f"Unsupported Content-Encoding '{coding}', expected 'gzip', 'deflate' or 'identity'")
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self._limit:
            raise self._too_long()
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            try:
                message = await receive()
            except TooLarge as error:
                raise _Refused(413, str(error)) from None
            if message["type"] == "http.disconnect":
                raise ClientLeft
            part = message.get("body", b"")
            size += len(part)
            if size > self._limit:
                raise self._too_long()
            parts.append(part)
            more = message.get("more_body", False)
        body = b"".join(parts)
        return await self._expand(body, coding) if coding in CODINGS else body

    async def _expand(self, body: bytes, coding: str) -> bytes:
        try:
            if len(body) <= _INLINE_BYTES:
                try:
                    return expand(body, coding, min(_INLINE_BYTES, self._limit))
                except TooLong:
                    pass
            return await asyncio.to_thread(expand, body, coding, self._limit)
        except Broken as error:
            raise _Refused(400, f"Unable to parse OTLP traces payload: {error}") from None
        except TooLong:
            raise self._too_long() from None

    def _too_long(self) -> _Refused:
        return _Refused(413, f"The body holds more than {self._limit:,} bytes; export fewer spans at once")


Record = Callable[[Sequence[Received]], Awaitable[object]]


class RecordsCommands(Protocol):
    """The attribute `spans` of a store that records and numbers spans in one write."""

    async def record(self, command: RecordSpans) -> list[tuple[int, int]]:
        """Record spans, and return the index and the sequence_id of each new span."""
        ...


async def _store(store: Store, traces: Traces) -> None:
    """Record spans attempt by attempt. Spans that the store refuses are counted, and all other spans are stored."""
    record, record_numbering = _recorders(store)
    if record_numbering is None:
        await _number(store, traces)
    else:
        # Spans without a number get their numbers first, because the other spans state numbers that may raise the
        # counter.
        await _record(traces, traces.unnumbered, record_numbering)
    unnumbered = set[int]() if record_numbering is None else set(traces.unnumbered)
    await _record(traces, [index for index in range(len(traces.received)) if index not in unnumbered], record)


async def _record(traces: Traces, indexes: Iterable[int], record: Record) -> None:
    groups: dict[tuple[str, str], list[Received]] = {}
    for index in indexes:
        span = traces.received[index]
        groups.setdefault((span.rollout_id, span.attempt_id), []).append(span)
    await _all(_add(record, piece, traces) for group in groups.values() for piece in _pieces(group))


def _recorders(store: Store) -> tuple[Record, Record | None]:
    """Return two functions: one records spans, the other also numbers them.

    The second function is None if the store cannot record and number spans in one write.
    """
    recorder = spans_of(store)
    if recorder is None:
        return lambda spans: store.add_many_spans([span.span() for span in spans]), None
    return (
        lambda spans: recorder.record(record_received(spans)),
        lambda spans: recorder.record(record_received(spans, number=True)),
    )


def spans_of(store: Store) -> RecordsCommands | None:
    """Return the attribute `spans` of a store that records spans as commands; None for other stores."""
    return getattr(store, "spans", None)


async def _number(store: Store, traces: Traces) -> None:
    """Number the spans that have no number."""
    groups: dict[str, list[int]] = {}
    for index in traces.unnumbered:
        groups.setdefault(traces.received[index].rollout_id, []).append(index)

    async def draw(indexes: list[int]) -> None:
        keys = [(traces.received[index].rollout_id, traces.received[index].attempt_id) for index in indexes]
        # Spans with an impossible rollout id are refused again, and counted, when they are recorded.
        try:
            numbers = await store.get_many_span_sequence_ids(keys)
        except Invalid:
            return
        traces.number(dict(zip(indexes, numbers, strict=True)))

    await _all(draw(piece) for indexes in groups.values() for piece in _pieces(indexes))


async def _add(record: Record, spans: list[Received], traces: Traces, *, is_repaired: bool = False) -> None:
    """Record spans of one attempt. Spans that the store refuses are counted, and the other spans are stored."""
    try:
        await record(spans)
    except NotFound as error:
        traces.refused.add(str(error), len(spans))
    except SpanConflict as error:
        # All other spans are stored.
        traces.refused.add(str(error), len(error.indexes))
    except Invalid as error:
        if not is_repaired:
            for changes in filter(None, map(repair, spans)):
                traces.changed.add("; ".join(changes))
            await _add(record, spans, traces, is_repaired=True)
            return
        if len(spans) == 1:
            traces.refused.add(str(error))
            return
        # The store recorded none of the spans. The two halves are recorded separately, to find the spans that it
        # refuses.
        middle = len(spans) // 2
        await _add(record, spans[:middle], traces, is_repaired=True)
        await _add(record, spans[middle:], traces, is_repaired=True)


def _pieces(items: list[T]) -> list[list[T]]:
    return [items[start : start + _SPANS_AT_ONCE] for start in range(0, len(items), _SPANS_AT_ONCE)]


async def _all(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run calls in order, up to `_CALLS_AT_ONCE` at once, so that the calls share commits.

    Raise the first error after the running calls have ended.
    """
    waiting = list(calls)
    if len(waiting) == 1:
        await waiting[0]
        return
    errors: list[BaseException] = []
    while waiting and not errors:
        batch, waiting = waiting[:_CALLS_AT_ONCE], waiting[_CALLS_AT_ONCE:]
        errors = [error for error in await asyncio.gather(*batch, return_exceptions=True) if error is not None]
    for call in waiting:
        call.close()
    if errors:
        raise errors[0]


def _accepts_gzip(accepted: str) -> bool:
    for entry in accepted.lower().split(","):
        coding, _, weight = entry.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False
