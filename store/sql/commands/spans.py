"""Commands that record spans. Decision 2.

The spans are checked, encoded, compressed and hashed here, before the writer gets them. The event of a span has `data`,
whose size is limited, and a body, which contains the rest of the span.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, cast

import orjson
from pydantic import BaseModel

from store import semconv
from store.domain.body import ZLIB
from store.domain.commands import NewSpan, RecordSpans, SpanContent, SpansOutcome
from store.domain.events import Json, SpanRecorded, encode
from store.errors import Invalid, SpanConflict, TooLarge
from store.models import Span
from store.models.spans import with_ids
from store.otel.repair import MAX_NAME_BYTES
from store.otel.spans import MAX_SEQUENCE_ID, Origin, Received
from store.validation.json_limits import (
    MAX_CALL_BYTES,
    MAX_DATA_BYTES,
    check_call,
    check_text,
    dumps_fields,
    dumps_plain,
    encode_body,
)

logger = logging.getLogger("store.spans")

MAX_SPAN_NAME_BYTES = MAX_NAME_BYTES
MAX_STATUS_MESSAGE = 200
# With at most this many rewards, `data` cannot exceed its limit, because the lengths of names and ids are limited too.
_FEW_REWARDS = 4
# The values of a span's summary are the last fields of its fact, in the same order.
_SUMMARY = semconv.SpanSummary._fields
assert tuple(field.name for field in fields(SpanRecorded))[-len(_SUMMARY) :] == _SUMMARY
# The first three fields and the last four are not texts.
_SUMMARY_TEXTS = _SUMMARY[3:-4]
# The beginning of each body.
_ATTRIBUTES = b'{"attributes":{'


def record_spans(spans: Sequence[Span], *, number: bool = False) -> RecordSpans:
    """Return the command that records spans."""
    check_call(len(spans), 0, "spans")
    items: list[NewSpan] = []
    size = 0
    for index, span in enumerate(spans):
        # `isinstance` is slow for a pydantic model, so it is called only if the type is not `Span` itself.
        if type(span) is not Span and not isinstance(span, Span):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Invalid(f"spans[{index}]", f"is {type(span).__name__}, not a Span")
        item = new_span(span, "span." if len(spans) == 1 else f"spans[{index}].")
        size += item.body.raw_len
        items.append(item)
    check_call(0, size, "spans")
    return RecordSpans(items=items, number=number, rename=renamed)


def renamed(item: NewSpan, span_id: str) -> NewSpan:
    """Return a span under a derived id, with its original id in an attribute."""
    raw = zlib.decompress(item.body.stored) if item.body.codec == ZLIB else item.body.stored
    start, rest = raw[: len(_ATTRIBUTES)], raw[len(_ATTRIBUTES) :]
    assert start == _ATTRIBUTES  # `_payload_of` and `_plain_span` begin with the attributes
    mark = orjson.dumps({semconv.ORIGINAL_SPAN_ID: item.fact.span_id})[1:-1]
    raw = start + mark + (rest if rest.startswith(b"}") else b"," + rest)
    body = encode_body(raw)
    content = item.content._replace(body_sha256=body.sha256)
    return NewSpan(item.rollout_id, replace(item.fact, span_id=span_id), body, content)


def stored_span(span: Span, item: NewSpan) -> Span:
    """Return a span with the ids under which it was recorded. The ids of the span and of its parent may be derived."""
    span_id, parent_id = item.fact.span_id, item.fact.parent_id
    if span_id == span.span_id and parent_id == span.parent_id:
        return span
    return with_ids(span, span_id, parent_id)


def check_recorded(command: RecordSpans, recorded: SpansOutcome) -> None:
    """Log the spans of a command that were stored before with the same content.

    Raises:
        SpanConflict: spans were not recorded, because stored spans have the same keys but other content.
    """
    new = {*recorded.conflicts, *(index for index, _ in recorded.numbers)}
    for index, item in enumerate(command.items):
        if index not in new:
            logger.error("Duplicated span added: rollout=%s attempt=%s span=%s", *item.key)
    if recorded.conflicts:
        keys = [command.items[index].key for index in recorded.conflicts]
        raise SpanConflict(keys, recorded.conflicts, recorded.numbers)


def new_span(span: Span, path: str) -> NewSpan:
    """Check and encode a span, and return the form that is recorded.

    Args:
        span: the span.
        path: the prefix of the span's fields in error messages, such as `span.`.

    Raises:
        Invalid, TooLarge: a field cannot be stored.
    """
    sequence_id, name, status = span.sequence_id, span.name, span.status
    if not -MAX_SEQUENCE_ID <= sequence_id <= MAX_SEQUENCE_ID:
        raise TooLarge(f"{path}sequence_id", abs(sequence_id), MAX_SEQUENCE_ID, "in size")
    rollout_id, attempt_id, parent_id = span.rollout_id, span.attempt_id, span.parent_id
    trace_id, span_id, message = span.trace_id, span.span_id, status.description
    summary = semconv.summarise(name, span.attributes)
    rewards, texts = summary.rewards, summary[3:-4]
    ids = (rollout_id, attempt_id, trace_id, span_id, "" if parent_id is None else parent_id, name)
    payload = _payload_of(span)
    raw = dumps_plain(payload, (*ids, *filter(None, texts), *(name for name, _ in rewards)))
    if raw is None:
        _check_texts(span, summary, path)
        raw = dumps_fields(payload, path)
    check_call(0, len(raw), path.rstrip("."))
    start, end = span.start_time, span.end_time
    for field, value in (("start_time", start), ("end_time", end)):
        if value is not None and not math.isfinite(value):
            raise Invalid(f"{path}{field}", f"{value} is not a time; send seconds since the epoch, or None")
    fact = SpanRecorded(
        attempt_id,
        sequence_id,
        trace_id,
        span_id,
        name,
        status.status_code,
        parent_id,
        message if message is None else message[:MAX_STATUS_MESSAGE],
        start,
        end,
        None,
        [[name, value] for name, value in rewards] if rewards else None,
        *summary[1:],
    )
    if len(rewards) > _FEW_REWARDS and (size := len(encode(fact))) > MAX_DATA_BYTES:
        raise TooLarge(f"{path}attributes", size, MAX_DATA_BYTES)
    body = encode_body(raw)
    content = SpanContent(trace_id, parent_id, name, start, end, fact.status_code, fact.status_message, body.sha256)
    return NewSpan(rollout_id, fact, body, content)


def _check_texts(span: Span, summary: semconv.SpanSummary, path: str) -> None:
    """Check that the texts of a span can be stored.

    Raises:
        Invalid, TooLarge: a text cannot be stored; the error is about the first such text.
    """
    for field in ("attempt_id", "trace_id", "span_id"):
        check_text(getattr(span, field), path + field)
    check_text(span.name, f"{path}name", MAX_SPAN_NAME_BYTES)
    if span.parent_id is not None:
        check_text(span.parent_id, f"{path}parent_id")
    for name, _ in summary.rewards:
        check_text(name, f"{path}attributes")
    for field in _SUMMARY_TEXTS:
        if (text := getattr(summary, field)) is not None:
            check_text(text, f"{path}attributes")
    check_text(span.rollout_id, f"{path}rollout_id")


def _payload_of(span: Span) -> Json:
    resource, status = span.resource, span.status
    payload: Json = {
        "attributes": span.attributes,
        "events": plain(span.events) if span.events else [],
        "links": plain(span.links) if span.links else [],
        "resource": {"attributes": resource.attributes, "schema_url": resource.schema_url},
    }
    if resource.__pydantic_extra__:
        payload["resource"].update(resource.__pydantic_extra__)
    # Most spans have no contexts. A context that the payload does not contain is read as null later.
    if span.context is not None:
        payload["context"] = plain(span.context)
    if span.parent is not None:
        payload["parent"] = plain(span.parent)
    # `data` contains the status code and the beginning of the status message, which is usually the whole message.
    if status.__pydantic_extra__ or len(status.description or "") > MAX_STATUS_MESSAGE:
        payload["status"] = plain(status)
    if span.__pydantic_extra__:
        payload.update(span.__pydantic_extra__)
    return payload


def plain(value: Any) -> Any:
    """Return the JSON of a model or of a list of models; return other values unchanged."""
    if isinstance(value, list):
        return [plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, BaseModel):
        members: Json = {name: plain(item) for name, item in value.__dict__.items()}
        return members | value.__pydantic_extra__ if value.__pydantic_extra__ else members
    return value


def record_received(received: Sequence[Received], *, number: bool = False) -> RecordSpans:
    """Return the command that records spans received as OTLP.

    The command and the errors are the same as those of `record_spans` for the same spans as models.
    """
    check_call(len(received), 0, "spans")
    resources: dict[Origin, bytes | None] = {}
    items: list[NewSpan] = []
    size = 0
    for index, span in enumerate(received):
        origin = span.origin
        if origin not in resources:
            resources[origin] = dumps_plain(plain(origin.resource))
        item = _plain_span(span, resources[origin])
        if item is None:
            item = new_span(span.span(), "span." if len(received) == 1 else f"spans[{index}].")
        size += item.body.raw_len
        items.append(item)
    check_call(0, size, "spans")
    return RecordSpans(items=items, number=number, rename=renamed)


def _plain_span(span: Received, resource: bytes | None) -> NewSpan | None:
    """Return the recorded form of a span; None if a quick check does not show that the span is valid.

    The caller must then convert the span by `new_span`, which checks it completely.
    """
    if span.exported is not None:
        return None
    name, message, parent_id = span.name, span.message, span.parent_id
    trace_id, span_id = span.trace_id, span.span_id
    summary = semconv.summarise(name, span.attributes)
    rewards, texts = summary.rewards, summary[3:-4]
    ids = (span.rollout_id, span.attempt_id, trace_id, span_id, parent_id or "", name)
    attributes = dumps_plain(span.attributes, (*ids, *filter(None, texts)))
    events = dumps_plain(span.events) if span.events else b"[]"
    links = dumps_plain(span.links) if span.links else b"[]"
    state = dumps_plain(span.trace_state) if span.trace_state else b"{}"
    extras = dumps_plain(span.extras) if span.extras else b"{}"
    if resource is None or attributes is None or events is None or links is None or state is None or extras is None:
        return None
    if rewards or span.sequence_id > MAX_SEQUENCE_ID or (message is not None and len(message) > MAX_STATUS_MESSAGE):
        return None
    # The ids are hexadecimal, so they need no escaping.
    context = f'{{"trace_id":"{trace_id}","span_id":"{span_id}","is_remote":false,"trace_state":'.encode()
    raw = b'{"attributes":%b,"events":%b,"links":%b,"resource":%b,"context":%b%b}%b' % (
        attributes,
        events,
        links,
        resource,
        context,
        state,
        b",%b" % extras[1:] if span.extras else b"}",
    )
    if len(raw) > MAX_CALL_BYTES:
        return None
    fact = SpanRecorded(
        span.attempt_id,
        span.sequence_id,
        trace_id,
        span_id,
        name,
        span.status_code,
        parent_id,
        message,
        span.start_time,
        span.end_time,
        None,
        None,
        *summary[1:],
    )
    body = encode_body(raw)
    content = SpanContent(
        trace_id, parent_id, name, fact.start, fact.end, fact.status_code, fact.status_message, body.sha256
    )
    return NewSpan(span.rollout_id, fact, body, content)
