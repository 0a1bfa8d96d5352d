"""Contract of spans: the fields of a span, and the effects of a new span on its attempt and rollout.

A new span shows that the attempt is still alive.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from store.errors import NotFound, SpanConflict
from store.interface.store import Store
from store.models import Attempt, AttemptedRollout, Event, Link, OtelResource, Span, SpanContext, TraceStatus
from store.testing.clock import ManualClock
from store.testing.contract.rollout_helpers import attempt_of, reread, started, statuses, worker_of
from store.testing.samples import make_sdk_span, make_span

__all__ = ["SpansContract"]


async def ended(store: Store, status: Any, **config: Any) -> AttemptedRollout:
    """Start a rollout, set the status of its only attempt, and return the rollout."""
    rollout = await started(store, **config)
    await store.update_attempt(rollout.rollout_id, "latest", status=status)
    return rollout


async def span_ids(store: Store, attempt: Attempt) -> list[str]:
    return [span.span_id for span in await store.query_spans(attempt.rollout_id, attempt.attempt_id)]


class SpansContract:
    """Tests of `add_span`, `add_many_spans` and `add_otel_span`."""

    pytestmark = pytest.mark.asyncio

    async def test_a_stored_span_is_returned_unchanged(self, store: Store) -> None:
        rollout = await started(store)
        span = make_span(
            rollout.attempt,
            7,
            parent_id="00f067aa0ba902b7",
            status=TraceStatus(status_code="ERROR", description="boom"),
            events=[Event(name="e", attributes={"k": 1}, timestamp=1_700_000_000.125)],
            links=[Link(context=SpanContext(trace_id="t", span_id="s", is_remote=True, trace_state={"a": "b"}))],
            context=SpanContext(trace_id="t", span_id="s", is_remote=False, trace_state={}),
            parent=SpanContext(trace_id="t", span_id="p", is_remote=False, trace_state={}),
            resource=OtelResource(attributes={"service.name": "x"}, schema_url="http://schema"),
        )
        assert await store.add_span(span) == span
        assert list(await store.query_spans(rollout.rollout_id)) == [span]

    async def test_attribute_values_keep_their_types(self, store: Store) -> None:
        rollout = await started(store)
        attributes = {"int": 1, "bool": True, "float": 1.0, "text": "1", "ints": [1, 2], "floats": [1.0], "none": []}
        attributes |= {"big": 2**63 - 1, "small": 5e-324, "bools": [False, True], "texts": ["", "é\n"]}
        await store.add_span(make_span(rollout.attempt, attributes=attributes))
        (span,) = await store.query_spans(rollout.rollout_id)
        assert json.dumps(span.attributes, sort_keys=True) == json.dumps(attributes, sort_keys=True)

    async def test_unknown_keys_of_a_span_and_its_parts_are_stored(self, store: Store) -> None:
        rollout = await started(store)
        extra: dict[str, Any] = {"x_list": [1, None, {"deep": 1.0}], "x_null": None}
        context = SpanContext(trace_id="t", span_id="s", is_remote=False, trace_state={}, **extra)
        span = make_span(
            rollout.attempt,
            status=TraceStatus(status_code="OK", **extra),
            events=[Event(name="e", attributes={}, **extra)],
            links=[Link(context=context, **extra)],
            context=context,
            **extra,
        )
        await store.add_span(span)
        (read,) = await store.query_spans(rollout.rollout_id)
        assert read.model_dump() == span.model_dump()
        assert read.model_extra == extra

    async def test_span_times_are_returned_exactly(self, store: Store) -> None:
        for time in [None, 0.1 + 0.2, 1_795_168_705.447347, 1_700_000_000.123456789, 0.0, -1.5]:
            rollout = await started(store)
            await store.add_span(make_span(rollout.attempt, start_time=time, end_time=time))
            (span,) = await store.query_spans(rollout.rollout_id)
            assert (span.start_time, span.end_time) == (time, time)

    async def test_the_first_span_sets_the_attempt_and_its_rollout_to_running(
        self, store: Store, clock: ManualClock
    ) -> None:
        rollout = await started(store)
        clock.advance(3)
        await store.add_span(make_span(rollout.attempt))
        assert await statuses(store, rollout) == ("running", "running")
        attempt = await attempt_of(store, rollout)
        assert attempt.last_heartbeat_time == pytest.approx(clock.seconds, abs=0.001)
        assert (attempt.end_time, (await reread(store, rollout)).end_time) == (None, None)

    async def test_span_is_a_heartbeat_and_sets_preparing_and_unresponsive_attempts_to_running(
        self, store: Store, clock: ManualClock
    ) -> None:
        for before, after in [
            ("preparing", "running"),
            ("unresponsive", "running"),
            ("running", "running"),
            ("succeeded", "succeeded"),
            ("failed", "failed"),
            ("timeout", "timeout"),
        ]:
            rollout = await ended(store, before)
            clock.advance(3)
            await store.add_span(make_span(rollout.attempt))
            attempt = await attempt_of(store, rollout)
            assert attempt.status == after
            assert attempt.last_heartbeat_time == pytest.approx(clock.seconds, abs=0.001)

    async def test_a_span_sets_only_preparing_and_requeuing_rollouts_to_running(self, store: Store) -> None:
        cases: list[tuple[Any, str]] = [
            ("preparing", "running"),
            ("requeuing", "running"),
            ("running", "running"),
            ("queuing", "queuing"),
            ("succeeded", "succeeded"),
            ("failed", "failed"),
            ("cancelled", "cancelled"),
        ]
        for before, after in cases:
            rollout = await started(store)
            await store.update_rollout(rollout.rollout_id, status=before)
            await store.add_span(make_span(rollout.attempt))
            assert await statuses(store, rollout) == (after, "running")

    async def test_a_span_of_an_unresponsive_attempt_cancels_its_retry(self, store: Store) -> None:
        rollout = await ended(store, "unresponsive", max_attempts=2, retry_condition=["unresponsive"])
        assert await statuses(store, rollout) == ("requeuing", "unresponsive")
        await store.add_span(make_span(rollout.attempt))
        assert await statuses(store, rollout) == ("running", "running")
        assert await store.dequeue_rollout() is None
        await store.update_attempt(rollout.rollout_id, "latest", status="failed")
        assert await statuses(store, rollout) == ("failed", "failed")

    async def test_a_span_of_a_replaced_attempt_does_not_change_the_rollout(self, store: Store) -> None:
        rollout = await ended(store, "unresponsive", max_attempts=2, retry_condition=["unresponsive"])
        await store.dequeue_rollout()
        await store.add_span(make_span(rollout.attempt))
        assert await statuses(store, rollout) == ("preparing", "running", "preparing")

    async def test_a_late_span_does_not_cancel_a_pending_retry(self, store: Store) -> None:
        cases: list[Any] = ["failed", "timeout"]
        for status in cases:
            rollout = await ended(store, status, max_attempts=2, retry_condition=[status])
            await store.add_span(make_span(rollout.attempt))
            assert await statuses(store, rollout) == ("requeuing", status)
            claimed = await store.dequeue_rollout()
            assert claimed is not None
            assert claimed.attempt.sequence_id == 2

    async def test_a_late_span_does_not_reopen_a_rollout_that_timed_out(self, store: Store) -> None:
        rollout = await ended(store, "timeout")
        await store.add_span(make_span(rollout.attempt))
        assert await statuses(store, rollout) == ("failed", "timeout")

    async def test_a_span_of_an_unresponsive_attempt_does_not_reopen_a_failed_rollout(self, store: Store) -> None:
        rollout = await ended(store, "unresponsive")
        await store.add_span(make_span(rollout.attempt))
        assert await statuses(store, rollout) == ("failed", "running")

    async def test_a_span_of_an_earlier_attempt_changes_only_that_attempt(self, store: Store) -> None:
        rollout = await started(store)
        await store.start_attempt(rollout.rollout_id)
        await store.add_span(make_span(rollout.attempt))
        assert await statuses(store, rollout) == ("preparing", "running", "preparing")

    async def test_a_span_changes_no_worker(self, store: Store, clock: ManualClock) -> None:
        rollout = await started(store, worker_id="w1")
        before = await worker_of(store, "w1")
        clock.advance(3)
        await store.add_span(make_span(rollout.attempt))
        assert await worker_of(store, "w1") == before

    async def test_a_span_does_not_change_other_fields_of_its_attempt(self, store: Store) -> None:
        rollout = await started(store, worker_id="w1")
        before = await store.update_attempt(rollout.rollout_id, "latest", status="running", metadata={"m": 1})
        await store.add_span(make_span(rollout.attempt))
        after = await attempt_of(store, rollout)
        assert after.model_copy(update={"last_heartbeat_time": None}) == before

    async def test_a_duplicate_is_not_stored_again_and_is_logged(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        rollout = await started(store)
        first = make_span(rollout.attempt, 1, start_time=1.5, end_time=2.5)
        await store.add_span(first)
        with caplog.at_level(logging.ERROR):
            assert await store.add_span(first.model_copy(update={"sequence_id": 2})) is None
        assert "Duplicated span added" in caplog.text
        assert await store.add_span(first.model_copy(update={"start_time": None, "end_time": None})) is None
        assert list(await store.query_spans(rollout.rollout_id)) == [first]

    async def test_a_span_with_a_stored_id_and_other_content_is_refused(self, store: Store) -> None:
        rollout = await started(store)
        first = make_span(rollout.attempt, 1, start_time=1.5)
        await store.add_span(first)
        changes: list[dict[str, Any]] = [
            {"name": "other"},
            {"attributes": {"other": 1}},
            {"start_time": 1.75},
            {"parent_id": "00f067aa0ba902b7"},
            {"status": TraceStatus(status_code="ERROR", description="boom")},
        ]
        for change in changes:
            with pytest.raises(SpanConflict, match=f"^span {first.span_id} of attempt .* other content; ") as refused:
                await store.add_span(first.model_copy(update=change))
            assert refused.value.spans == [[first.rollout_id, first.attempt_id, first.span_id]]
        assert list(await store.query_spans(rollout.rollout_id)) == [first]

    async def test_a_conflict_among_many_spans_loses_no_other_span(self, store: Store) -> None:
        rollout, other = await started(store), await started(store)
        old = make_span(rollout.attempt, 1, name="old")
        await store.add_span(old)
        before, after = make_span(rollout.attempt, 2), make_span(rollout.attempt, 4)
        later = make_span(other.attempt, 5)
        conflict = make_span(rollout.attempt, 3, name="new", span_id=old.span_id)
        with pytest.raises(SpanConflict) as refused:
            await store.add_many_spans([before, conflict, old, after, later])
        assert refused.value.indexes == [1]
        assert refused.value.recorded == [[0, 2], [3, 4], [4, 5]]
        assert list(await store.query_spans(rollout.rollout_id)) == [old, before, after]
        assert list(await store.query_spans(other.rollout_id)) == [later]

    async def test_an_equal_span_id_of_another_trace_is_stored_under_a_derived_id(self, store: Store) -> None:
        rollout = await started(store)
        first = make_span(rollout.attempt, 1, trace_id="a" * 32)
        await store.add_span(first)
        second = first.model_copy(update={"trace_id": "b" * 32, "sequence_id": 2, "name": "second"})
        stored = await store.add_span(second)
        assert stored is not None
        assert stored.span_id != first.span_id
        assert stored.attributes == {"rollbook.original_span_id": first.span_id, **second.attributes}
        assert list(await store.query_spans(rollout.rollout_id)) == [first, stored]
        assert await store.add_span(second) is None
        with pytest.raises(SpanConflict):
            await store.add_span(second.model_copy(update={"name": "third"}))

    async def test_children_in_one_call_refer_to_the_derived_id_of_their_parent(self, store: Store) -> None:
        rollout = await started(store)
        parent = make_span(rollout.attempt, 1, trace_id="a" * 32)
        other = make_span(rollout.attempt, 2, trace_id="b" * 32, span_id=parent.span_id)
        children = [
            make_span(rollout.attempt, number, trace_id=trace * 32, parent_id=parent.span_id)
            for number, trace in ((3, "a"), (4, "b"))
        ]
        stored = await store.add_many_spans([parent, *children, other])
        spans = await store.query_spans(rollout.rollout_id)
        assert sorted(stored, key=lambda span: span.sequence_id) == list(spans)
        assert [span.parent_id for span in spans[2:]] == [parent.span_id, spans[1].span_id]
        assert await store.add_span(children[1]) is None

    async def test_a_span_of_the_opentelemetry_sdk_is_returned_under_its_derived_id(self, store: Store) -> None:
        rollout = await started(store)
        sdk_span = make_sdk_span()
        span_id = Span.from_opentelemetry(sdk_span, rollout.rollout_id, rollout.attempt.attempt_id, 1).span_id
        first = make_span(rollout.attempt, 1, trace_id="a" * 32, span_id=span_id)
        await store.add_span(first)
        stored = await store.add_otel_span(rollout.rollout_id, rollout.attempt.attempt_id, sdk_span)
        assert stored is not None
        assert stored.attributes["rollbook.original_span_id"] == span_id
        assert list(await store.query_spans(rollout.rollout_id)) == [first, stored]

    async def test_the_same_span_id_in_another_attempt_or_rollout_is_another_span(self, store: Store) -> None:
        rollout = await started(store)
        second = await store.start_attempt(rollout.rollout_id)
        other = await started(store)
        for attempt in (rollout.attempt, second.attempt, other.attempt):
            assert await store.add_span(make_span(attempt, span_id="same")) is not None
        assert (await store.query_spans(rollout.rollout_id)).total == 2
        assert (await store.query_spans(other.rollout_id)).total == 1

    async def test_a_duplicate_is_not_a_heartbeat(self, store: Store, clock: ManualClock) -> None:
        rollout = await started(store, unresponsive_seconds=5)
        span = make_span(rollout.attempt)
        await store.add_span(span)
        before = await attempt_of(store, rollout)
        clock.advance(4)
        await store.add_span(span)
        assert list(await store.add_many_spans([span, span])) == []
        assert await attempt_of(store, rollout) == before
        clock.advance(2)
        assert await statuses(store, rollout) == ("failed", "unresponsive")

    async def test_a_duplicate_does_not_change_an_unresponsive_attempt(self, store: Store) -> None:
        rollout = await started(store)
        span = make_span(rollout.attempt)
        await store.add_span(span)
        await store.update_attempt(rollout.rollout_id, "latest", status="unresponsive")
        await store.add_span(span)
        assert await statuses(store, rollout) == ("failed", "unresponsive")

    async def test_a_span_of_an_unknown_rollout_or_attempt_is_refused(self, store: Store) -> None:
        rollout = await started(store)
        with pytest.raises(ValueError, match=r"^Rollout ro-none not found$") as refused:
            await store.add_span(make_span(rollout.attempt, rollout_id="ro-none"))
        assert isinstance(refused.value, NotFound)
        with pytest.raises(ValueError, match=f"^Attempt at-none not found for rollout {rollout.rollout_id}$"):
            await store.add_span(make_span(rollout.attempt, attempt_id="at-none"))
        assert (await store.query_spans(rollout.rollout_id)).total == 0
        assert await statuses(store, rollout) == ("preparing", "preparing")

    async def test_a_span_of_a_rollout_without_attempts_is_refused(self, store: Store) -> None:
        rollout = await store.enqueue_rollout(1)
        attempt = (await started(store)).attempt
        with pytest.raises(NotFound, match="not found for rollout"):
            await store.add_span(make_span(attempt, rollout_id=rollout.rollout_id))

    async def test_add_many_spans_without_spans_returns_an_empty_list(self, store: Store) -> None:
        assert list(await store.add_many_spans([])) == []

    async def test_many_spans_are_stored_and_returned_group_by_group_in_order_of_appearance(self, store: Store) -> None:
        first, second = await started(store), await started(store)
        spans = [
            make_span(second.attempt, 1),
            make_span(first.attempt, 1),
            make_span(second.attempt, 2),
            make_span(first.attempt, 2),
        ]
        stored = await store.add_many_spans(spans)
        assert list(stored) == [spans[0], spans[2], spans[1], spans[3]]
        assert await span_ids(store, first.attempt) == [spans[1].span_id, spans[3].span_id]
        assert await statuses(store, first) == await statuses(store, second) == ("running", "running")

    async def test_the_first_of_two_equal_span_ids_in_one_call_is_stored(self, store: Store) -> None:
        rollout = await started(store)
        spans = [make_span(rollout.attempt, number, span_id="same") for number in (1, 2)]
        assert list(await store.add_many_spans(spans)) == spans[:1]
        assert list(await store.query_spans(rollout.rollout_id)) == spans[:1]

    async def test_all_new_spans_are_returned_when_some_were_stored_before(self, store: Store) -> None:
        rollout = await started(store)
        old = make_span(rollout.attempt, 1)
        await store.add_span(old)
        before, after = make_span(rollout.attempt, 2), make_span(rollout.attempt, 3)
        assert list(await store.add_many_spans([before, old, after])) == [before, after]
        assert await span_ids(store, rollout.attempt) == [old.span_id, before.span_id, after.span_id]

    async def test_many_spans_in_one_call_are_one_heartbeat(self, store: Store, clock: ManualClock) -> None:
        rollout = await started(store)
        clock.advance(3)
        await store.add_many_spans([make_span(rollout.attempt, number) for number in range(1, 4)])
        attempt = await attempt_of(store, rollout)
        assert attempt.last_heartbeat_time == pytest.approx(clock.seconds, abs=0.001)

    async def test_thousands_of_spans_are_stored_in_one_call(self, store: Store) -> None:
        rollouts = [await started(store) for _ in range(2)]
        spans = [make_span(rollout.attempt, number) for rollout in rollouts for number in range(1, 1001)]
        assert list(await store.add_many_spans(spans)) == spans
        assert list(await store.query_spans(rollouts[1].rollout_id)) == spans[1000:]

    async def test_groups_before_an_unknown_attempt_are_stored_and_later_groups_are_not(self, store: Store) -> None:
        first, last = await started(store), await started(store)
        spans = [
            make_span(first.attempt, 1),
            make_span(first.attempt, 1, attempt_id="at-none"),
            make_span(last.attempt, 1),
            make_span(first.attempt, 2),
        ]
        with pytest.raises(ValueError, match=f"^Attempt at-none not found for rollout {first.rollout_id}$"):
            await store.add_many_spans(spans)
        assert await span_ids(store, first.attempt) == [spans[0].span_id, spans[3].span_id]
        assert (await store.query_spans(last.rollout_id)).total == 0
        assert await statuses(store, last) == ("preparing", "preparing")

    async def test_an_unknown_rollout_among_many_is_refused_by_name(self, store: Store) -> None:
        rollout = await started(store)
        spans = [make_span(rollout.attempt, 1), make_span(rollout.attempt, 2, rollout_id="ro-none")]
        with pytest.raises(ValueError, match=r"^Rollout ro-none not found$"):
            await store.add_many_spans(spans)
        assert await span_ids(store, rollout.attempt) == [spans[0].span_id]

    async def test_a_span_of_the_opentelemetry_sdk_is_converted_and_numbered(self, store: Store) -> None:
        rollout = await started(store)
        sdk_span = make_sdk_span("llm.call", tokens=3, model="small", stream=True, cost=1.0)
        span = await store.add_otel_span(rollout.rollout_id, rollout.attempt.attempt_id, sdk_span)
        assert span is not None
        assert (span.rollout_id, span.attempt_id) == (rollout.rollout_id, rollout.attempt.attempt_id)
        assert (span.name, span.sequence_id, span.parent_id) == ("llm.call", 1, None)
        assert (span.status.status_code, span.status.description) == ("ERROR", "boom")
        assert (span.start_time, span.end_time) == (1_700_000_000.25, 1_700_000_001.5)
        assert json.dumps(span.attributes) == '{"tokens": 3, "model": "small", "stream": true, "cost": 1.0}'
        assert span.trace_id == "0af7651916cd43dd8448eb211c80319c"
        assert span.resource.attributes["service.name"] == "contract"
        assert list(await store.query_spans(rollout.rollout_id)) == [span]
        assert await statuses(store, rollout) == ("running", "running")

    async def test_a_span_of_the_opentelemetry_sdk_may_have_an_explicit_number(self, store: Store) -> None:
        rollout = await started(store)
        ids = (rollout.rollout_id, rollout.attempt.attempt_id)
        span = await store.add_otel_span(*ids, make_sdk_span(), sequence_id=5)
        drawn = await store.add_otel_span(*ids, make_sdk_span())
        assert span is not None
        assert drawn is not None
        assert (span.sequence_id, drawn.sequence_id) == (5, 6)

    async def test_a_duplicate_or_misplaced_span_of_the_opentelemetry_sdk_is_treated_as_any_other(
        self, store: Store
    ) -> None:
        rollout = await started(store)
        sdk_span = make_sdk_span()
        await store.add_otel_span(rollout.rollout_id, rollout.attempt.attempt_id, sdk_span)
        assert await store.add_otel_span(rollout.rollout_id, rollout.attempt.attempt_id, sdk_span) is None
        with pytest.raises(NotFound, match=r"^Rollout ro-none not found$"):
            await store.add_otel_span("ro-none", "at-none", sdk_span)
