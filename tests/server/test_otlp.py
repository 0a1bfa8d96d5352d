"""POST /v1/traces: spans are stored, and the answer counts refused ones."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from store.interface.store import Store
from store.journal import writer
from store.models import Attempt
from store.semconv import ATTEMPT_ID, ROLLOUT_ID, SPAN_SEQUENCE_ID
from tests.otel.otlp_messages import NANOS, as_json, group, ids_of, pairs, request, span
from tests.server.otlp_exporter import JSON, PROTOBUF, Exporter, exporting, message_of, numbers, stored


@pytest.fixture
async def exporter(store: Store) -> AsyncIterator[Exporter]:
    async with exporting(store) as ready:
        yield ready


@pytest.fixture
async def attempt(store: Store) -> Attempt:
    return (await store.start_rollout({"question": 1})).attempt


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
async def test_an_exported_span_can_be_read_back_whole(
    store: Store, exporter: Exporter, attempt: Attempt, content_type: str
) -> None:
    sent = span(
        {"model": "m", "tokens": 12, "ratio": 1.0, "ok": True, "list": [1, 2]},
        trace_id=b"\x01" * 16,
        span_id=b"\x02" * 8,
        parent_span_id=b"\x03" * 8,
        status=Status(code=Status.STATUS_CODE_ERROR, message="boom"),
        events=[OtlpSpan.Event(name="retry", time_unix_nano=NANOS)],
        links=[OtlpSpan.Link(trace_id=b"\x04" * 16, span_id=b"\x05" * 8)],
    )
    assert await exporter.export(group(sent, resource=ids_of(attempt, 3)), content_type=content_type) == (0, "")
    (stored_span,) = await stored(store, attempt)
    context: dict[str, Any] = {"trace_id": "01" * 16, "span_id": "02" * 8, "is_remote": False, "trace_state": {}}
    linked: dict[str, Any] = {"trace_id": "04" * 16, "span_id": "05" * 8, "is_remote": False, "trace_state": {}}
    assert stored_span.model_dump() == {
        "rollout_id": attempt.rollout_id,
        "attempt_id": attempt.attempt_id,
        "sequence_id": 3,
        "trace_id": "01" * 16,
        "span_id": "02" * 8,
        "parent_id": "03" * 8,
        "name": "chat",
        "status": {"status_code": "ERROR", "description": "boom"},
        "attributes": {"model": "m", "tokens": 12, "ratio": 1.0, "ok": True, "list": [1, 2]},
        "events": [{"name": "retry", "attributes": {}, "timestamp": NANOS / 1e9}],
        "links": [{"context": linked, "attributes": None}],
        "start_time": 1_700_000_000.1234567,
        "end_time": 1_700_000_001.1234567,
        "context": context,
        "parent": None,
        "resource": {"attributes": ids_of(attempt, 3), "schema_url": "http://schema"},
    }


async def test_a_span_is_a_sign_of_life(store: Store, exporter: Exporter, attempt: Attempt) -> None:
    await exporter.export(group(span(), resource=ids_of(attempt)))
    rollout = await store.get_rollout_by_id(attempt.rollout_id)
    latest = await store.get_latest_attempt(attempt.rollout_id)
    assert rollout is not None
    assert latest is not None
    assert (rollout.status, latest.status) == ("running", "running")
    assert latest.last_heartbeat_time is not None


async def test_spans_of_many_attempts_and_resources_each_find_their_place(store: Store, exporter: Exporter) -> None:
    attempts = [(await store.start_rollout({"n": number})).attempt for number in range(80)]
    mixed = group(*(span(ids_of(attempt), name="own") for attempt in attempts), resource=ids_of(attempts[0]))
    assert await exporter.export(
        *(group(span(name="of"), resource=ids_of(attempt)) for attempt in attempts), mixed
    ) == (
        0,
        "",
    )
    for attempt in attempts:
        assert await numbers(store, attempt) == {"of": 1, "own": 2}


async def test_a_trace_of_thousands_is_stored_whole(store: Store, exporter: Exporter, attempt: Attempt) -> None:
    spans = [span(name=str(number)) for number in range(2500)]
    assert await exporter.export(group(*spans, resource=ids_of(attempt))) == (0, "")
    assert await numbers(store, attempt) == {str(number): number + 1 for number in range(2500)}


async def test_more_than_one_call_of_the_store_can_hold_is_split(
    store: Store, exporter: Exporter, attempt: Attempt
) -> None:
    spans = [span({"prompt": "x" * 1024 * 1024}, name=str(number)) for number in range(18)]
    assert await exporter.export(group(*spans, resource=ids_of(attempt))) == (0, "")
    assert len(await numbers(store, attempt)) == 18


async def test_a_span_sent_twice_is_stored_once_and_is_no_refusal(
    store: Store, exporter: Exporter, attempt: Attempt
) -> None:
    again = span(name="again")
    for _ in range(3):
        assert await exporter.export(group(again, again, span(), resource=ids_of(attempt))) == (0, "")
    assert [stored_span.name for stored_span in await stored(store, attempt)].count("again") == 1
    assert len(await stored(store, attempt)) == 4


async def test_numbers_are_drawn_in_order_before_given_ones_count(
    store: Store, exporter: Exporter, attempt: Attempt
) -> None:
    numbered = span({SPAN_SEQUENCE_ID: 50}, name="given")
    spans = [span(name="a"), numbered, span(name="b"), span({SPAN_SEQUENCE_ID: "x"}, name="c")]
    await exporter.export(group(*spans, resource=ids_of(attempt)))
    assert await numbers(store, attempt) == {"a": 1, "given": 50, "b": 2, "c": 3}
    assert await store.get_next_span_sequence_id(attempt.rollout_id, attempt.attempt_id) == 51


async def test_a_number_of_the_resource_is_shared_and_kept_in_order(
    store: Store, exporter: Exporter, attempt: Attempt
) -> None:
    spans = [span(name=name) for name in "dcba"]
    await exporter.export(group(*spans, resource=ids_of(attempt, "7")))
    assert list((await numbers(store, attempt)).items()) == [("d", 7), ("c", 7), ("b", 7), ("a", 7)]


async def test_a_lower_number_does_not_lower_the_counter(store: Store, exporter: Exporter, attempt: Attempt) -> None:
    await exporter.export(group(span({SPAN_SEQUENCE_ID: 9}), span({SPAN_SEQUENCE_ID: 0}), resource=ids_of(attempt)))
    assert await store.get_next_span_sequence_id(attempt.rollout_id, attempt.attempt_id) == 10


async def test_attempts_of_a_rollout_share_its_numbers(store: Store, exporter: Exporter, attempt: Attempt) -> None:
    second = (await store.start_attempt(attempt.rollout_id)).attempt
    await exporter.export(group(span(ids_of(attempt), name="a"), span(ids_of(second), name="b")))
    await exporter.export(group(span(ids_of(attempt), name="c")))
    assert await numbers(store, attempt) == {"a": 1, "c": 3}
    assert await numbers(store, second) == {"b": 2}


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
async def test_spans_without_attempt_are_refused_and_their_neighbours_stored(
    store: Store, exporter: Exporter, attempt: Attempt, content_type: str
) -> None:
    other = (await store.start_rollout({"question": 2})).attempt
    refused, why = await exporter.export(
        group(span(name="before"), resource=ids_of(attempt)),
        group(span(), span(), resource={ROLLOUT_ID: "ro-nobody", ATTEMPT_ID: "at-1"}),
        group(span(), resource={ROLLOUT_ID: attempt.rollout_id, ATTEMPT_ID: "at-nobody"}),
        group(span(), resource={ROLLOUT_ID: "", ATTEMPT_ID: ""}),
        group(span(), resource={"service.name": "someone else"}),
        group(span(name="after"), resource=ids_of(attempt)),
        group(span(name="other"), resource=ids_of(other)),
        content_type=content_type,
    )
    assert refused == 5
    assert "2 spans: Rollout ro-nobody not found" in why
    assert f"Attempt at-nobody not found for rollout {attempt.rollout_id}" in why
    assert "agentlightning.rollout_id is empty" in why
    assert "agentlightning.rollout_id is missing" in why
    assert set(await numbers(store, attempt)) == {"before", "after"}
    assert set(await numbers(store, other)) == {"other"}


async def test_a_value_no_store_accepts_is_changed_and_marked(
    store: Store, exporter: Exporter, attempt: Attempt, caplog: pytest.LogCaptureFixture
) -> None:
    bad = span(
        {"score": math.nan, "list": [1.0, -math.inf], "te\x00xt": "a\x00b", "gen_ai.response.id": "é" * 300, "ok": 1.5},
        name="n" * 2000,
        status=Status(code=Status.STATUS_CODE_ERROR, message="bo\x00om"),
        events=[OtlpSpan.Event(name="e\x00", attributes=pairs({"wait": math.inf}))],
    )
    owner = {**ids_of(attempt), "process.owner": "\x00"}
    for content_type in (PROTOBUF, JSON):
        for _ in range(2):
            sent = group(span(name="before"), bad, span(name="after"), resource=owner)
            assert await exporter.export(sent, content_type=content_type) == (0, "")
    spans = {stored_span.name: stored_span for stored_span in await stored(store, attempt)}
    changed = spans.pop("n" * 1024)
    assert set(spans) == {"before", "after"}
    marks = changed.attributes.pop("rollbook.changed")
    assert changed.attributes == {
        "score": "NaN",
        "list": '[1.0, "-Infinity"]',
        "te\ufffdxt": "a\ufffdb",
        "gen_ai.response.id": "é" * 256,
        "rollbook.full.gen_ai.response.id": "é" * 300,
        "ok": 1.5,
        "rollbook.full.name": "n" * 2000,
    }
    assert isinstance(marks, list)
    assert [str(mark).partition(":")[0] for mark in marks] == [
        "score",
        "list",
        "the key of an attribute",
        "te\ufffdxt",
        "gen_ai.response.id",
        "name",
        "status.message",
        "events[0].name",
        "events[0].attributes.wait",
    ]
    assert changed.status.description == "bo\ufffdom"
    assert [(event.name, event.attributes) for event in changed.events] == [("e\ufffd", {"wait": "Infinity"})]
    for stored_span in spans.values():
        assert "rollbook.changed" not in stored_span.attributes
        assert stored_span.resource.attributes["process.owner"] == "\ufffd"
        assert "process.owner: U+0000" in str(stored_span.resource.attributes["rollbook.changed"])
    assert "score: the number NaN became text" in caplog.text


@pytest.mark.parametrize("value", [math.nan, -math.inf, "NaN"])
async def test_invalid_reward_is_stored_and_marked(
    store: Store, exporter: Exporter, attempt: Attempt, value: float | str
) -> None:
    reward = span({"agentlightning.reward.0.value": value}, name="agentlightning.annotation")
    for _ in range(2):
        assert await exporter.export(group(reward, resource=ids_of(attempt))) == (0, "")
    (stored_span,) = await stored(store, attempt)
    assert isinstance(stored_span.attributes["agentlightning.reward.0.value"], str)
    assert "no valid reward: " in str(stored_span.attributes["rollbook.changed"])


async def test_conflict_of_a_span_does_not_reject_other_spans(
    store: Store, exporter: Exporter, attempt: Attempt
) -> None:
    first = span(name="first")
    await exporter.export(group(first, resource=ids_of(attempt)))
    other = span(name="second", trace_id=first.trace_id, span_id=first.span_id)
    rejected, reason = await exporter.export(group(span(name="before"), other, first, resource=ids_of(attempt)))
    assert rejected == 1
    assert f"span {first.span_id.hex()} of attempt {attempt.attempt_id}" in reason
    assert "is stored with other content" in reason
    assert {stored_span.name for stored_span in await stored(store, attempt)} == {"first", "before"}


async def test_json_with_lone_surrogates_and_nan_is_accepted(
    store: Store, exporter: Exporter, attempt: Attempt
) -> None:
    body = as_json(request(group(span({"text": "HALF", "score": 0.125}, name="HALF"), resource=ids_of(attempt))))
    body = body.replace(b"HALF", rb"cut \ud83d").replace(b"0.125", b"NaN")
    assert (await exporter.post(body, JSON))[:2] == (200, b"{}")
    (stored_span,) = await stored(store, attempt)
    assert (stored_span.name, stored_span.attributes["text"], stored_span.attributes["score"]) == (
        "cut \ufffd",
        "cut \ufffd",
        "NaN",
    )


async def test_a_number_beyond_the_limit_counts_as_absent(store: Store, exporter: Exporter, attempt: Attempt) -> None:
    spans = [span({SPAN_SEQUENCE_ID: 2**60}, name="a"), span(name="b")]
    assert await exporter.export(group(*spans, resource=ids_of(attempt))) == (0, "")
    assert await numbers(store, attempt) == {"a": 1, "b": 2}


async def test_numbers_stay_dense_when_a_batch_is_repeated(store: Store, exporter: Exporter, attempt: Attempt) -> None:
    second = (await store.start_attempt(attempt.rollout_id)).attempt
    plain = group(span(name="a"), span(name="b"), resource=ids_of(attempt))
    mixed = group(
        span(ids_of(attempt), name="c"),
        span(ids_of(second), name="d"),
        span({**ids_of(attempt), SPAN_SEQUENCE_ID: 5}, name="given"),
        span(ids_of(second), name="e"),
    )
    for batch in (plain, mixed, plain):
        for _ in range(3):
            await exporter.export(batch)
    assert await numbers(store, attempt) == {"a": 1, "b": 2, "c": 3, "given": 5}
    assert await numbers(store, second) == {"d": 4, "e": 5}
    assert await store.get_next_span_sequence_id(attempt.rollout_id, attempt.attempt_id) == 6


@pytest.mark.parametrize("bad", ["a\x00b", "r" * 600], ids=["zero", "long"])
async def test_an_id_no_store_can_hold_is_refused_alone(
    store: Store, exporter: Exporter, attempt: Attempt, bad: str
) -> None:
    bad_ids = [{ROLLOUT_ID: bad, ATTEMPT_ID: "at-1"}, {ROLLOUT_ID: attempt.rollout_id, ATTEMPT_ID: bad}]
    refused, _ = await exporter.export(
        *(group(span(), resource=ids) for ids in bad_ids), group(span(name="good"), resource=ids_of(attempt))
    )
    assert refused == 2
    assert set(await numbers(store, attempt)) == {"good"}


async def test_a_full_inbox_asks_to_come_again(
    store: Store, exporter: Exporter, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = request(group(span(), resource=ids_of(attempt)))
    monkeypatch.setattr(writer, "MAX_WAITING_CALLS", 0)
    for content_type, body in ((PROTOBUF, message.SerializeToString()), (JSON, as_json(message))):
        status, answer, headers = await exporter.post(body, content_type)
        assert (status, headers["retry-after"], headers["content-type"]) == (503, "1", content_type)
        assert "already wait" in message_of(answer, content_type)
    monkeypatch.undo()
    assert (await exporter.post(message.SerializeToString()))[0] == 200
    assert len(await stored(store, attempt)) == 1


async def test_a_closed_store_asks_to_come_again(store: Store, exporter: Exporter, attempt: Attempt) -> None:
    await store.close()
    status, _, headers = await exporter.post(
        request(group(span(), resource=ids_of(attempt))).SerializeToString(), PROTOBUF
    )
    assert (status, headers["retry-after"]) == (503, "1")


async def test_an_idempotency_key_cannot_make_spans_disappear(
    store: Store, exporter: Exporter, attempt: Attempt
) -> None:
    other = (await store.start_rollout({})).attempt
    for _ in range(2):
        sent = request(group(span(), resource=ids_of(attempt)), group(span(), resource=ids_of(other)))
        await exporter.post(sent.SerializeToString(), PROTOBUF, **{"Idempotency-Key": "a" * 32})
    assert (len(await stored(store, attempt)), len(await stored(store, other))) == (2, 2)


async def test_exporters_at_once_lose_and_mix_nothing(store: Store, exporter: Exporter) -> None:
    attempts = [(await store.start_rollout({})).attempt for _ in range(4)]

    async def export(sender: Attempt, batch: int) -> None:
        spans = [span(name=f"{batch}/{number}") for number in range(10)]
        assert await exporter.export(group(*spans, resource=ids_of(sender))) == (0, "")

    await asyncio.gather(*(export(attempt, batch) for attempt in attempts for batch in range(10)))
    for attempt in attempts:
        numbers_by_name = await numbers(store, attempt)
        assert sorted(numbers_by_name.values()) == list(range(1, 101))
        for batch in range(10):
            batch_numbers = [numbers_by_name[f"{batch}/{number}"] for number in range(10)]
            assert batch_numbers == list(range(batch_numbers[0], batch_numbers[0] + 10))
