"""Spans that a client reads without validation equal validated ones."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from store.client.requests import decode_span_page
from store.models import Attempt, Event, Link, OtelResource, SpanContext, TraceStatus
from store.testing.samples import make_span
from store.wire import encoding

ATTEMPT = Attempt(rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=1.0)
CONTEXT = SpanContext(trace_id="t", span_id="s", is_remote=True, trace_state={"a": "b"})
EXTRA: dict[str, Any] = {"x_list": [1, None, {"deep": 1.0}], "x_null": None}


@pytest.mark.parametrize(
    "span",
    [
        make_span(ATTEMPT),
        make_span(ATTEMPT, attributes={"int": 1, "bool": True, "float": 1.0, "texts": ["a"], "none": []}),
        make_span(ATTEMPT, start_time=None, end_time=None, parent_id="p", status=TraceStatus(status_code="ERROR")),
        make_span(
            ATTEMPT,
            status=TraceStatus(status_code="OK", description="d", **EXTRA),
            events=[Event(name="e", attributes={"k": 1}), Event(name="f", attributes={}, timestamp=1.5, **EXTRA)],
            links=[Link(context=CONTEXT), Link(context=CONTEXT, attributes={"k": "v"}, **EXTRA)],
            context=SpanContext(trace_id="t", span_id="s", is_remote=False, trace_state={}, **EXTRA),
            parent=CONTEXT,
            resource=OtelResource(attributes={"service.name": "x"}, schema_url="u"),
            **EXTRA,
        ),
    ],
)
def test_a_span_taken_at_its_word_is_the_span(span: Any) -> None:
    text = encoding.dumps({"items": [span, span], "limit": -1, "offset": 3, "total": 5})
    page = decode_span_page(text)
    validated = encoding.decode_span_page(text)
    assert page == validated
    assert list(page) == [span, span]
    for quick in page:
        assert quick.model_dump() == span.model_dump()
        assert quick.model_extra == span.model_extra
        assert quick.model_dump_json() == span.model_dump_json()


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"null", b'{"items":[{}],"limit":-1,"offset":0,"total":1}'])
def test_malformed_page_of_spans_raises_an_error(text: bytes) -> None:
    with pytest.raises((LookupError, TypeError, orjson.JSONDecodeError)):
        decode_span_page(text)
