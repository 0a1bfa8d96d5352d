"""Spans that came by OTLP become a command, without a model in between as long as nothing about them is unusual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from store import semconv
from store.domain.commands import NewSpan, RecordSpans
from store.domain.events import SpanRecorded
from store.otel.spans import Origin, Received
from store.sql.commands.spans import MAX_SEQUENCE_ID, MAX_STATUS_MESSAGE, new_span
from store.validation.json_limits import MAX_CALL_BYTES, are_plain, check_call, dumps_plain, encode_body


def record_received(received: Sequence[Received], *, number: bool = False) -> RecordSpans:
    """Return the command that records spans; the same, and the same errors, as of `record_spans` for their models."""
    check_call(len(received), 0, "spans")
    resources: dict[Origin, bytes | None] = {}
    items: list[NewSpan] = []
    size = 0
    for index, each in enumerate(received):
        origin = each.origin
        if origin not in resources:
            resources[origin] = dumps_plain(vars(origin.resource))
        item = _plain_span(each, resources[origin])
        if item is None:
            item = new_span(each.span(), "span." if len(received) == 1 else f"spans[{index}].")
        size += item.body.raw_len
        items.append(item)
    check_call(0, size, "spans")
    return RecordSpans(items=items, number=number)


def _plain_span(span: Received, resource: bytes | None) -> NewSpan | None:
    """Return what is recorded of a span; None if it has to be looked at closely, since it may be refused."""
    attributes, events, links = dumps_plain(span.attributes), _listed(span.events), _listed(span.links)
    if resource is None or attributes is None or events is None or links is None:
        return None
    name, message, parent_id = span.name, span.message, span.parent_id
    trace_id, span_id = span.trace_id, span.span_id
    rewards, tokens_in, tokens_out, *texts = semconv.summarise(name, span.attributes)
    ids = (span.rollout_id, span.attempt_id, trace_id, span_id, parent_id or "", name)
    if rewards or not are_plain((*ids, *filter(None, texts))):
        return None
    if span.sequence_id > MAX_SEQUENCE_ID or (message is not None and len(message) > MAX_STATUS_MESSAGE):
        return None
    # The ids are hex.
    context = f'{{"trace_id":"{trace_id}","span_id":"{span_id}","is_remote":false,"trace_state":{{}}}}'.encode()
    raw = b'{"attributes":%b,"events":%b,"links":%b,"resource":%b,"context":%b}' % (
        attributes,
        events,
        links,
        resource,
        context,
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
        tokens_in,
        tokens_out,
        *texts,
    )
    return NewSpan(span.rollout_id, fact, encode_body(raw))


def _listed(given: list[Any]) -> bytes | None:
    return dumps_plain(given) if given else b"[]"
