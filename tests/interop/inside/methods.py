"""Behaviour common to all stores of Agent-lightning's type, method by method.

The store may have been used before, but is not used by others at the same time.
"""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false
# Agent-lightning is not installed beside the type checker.

from __future__ import annotations

import asyncio
import json
import pickle
from typing import Any
from uuid import uuid4

from agentlightning.store.base import LightningStore
from agentlightning.types import (
    LLM,
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    PaginatedResult,
    PromptTemplate,
    ProxyLLM,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    Span,
    Worker,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Status, StatusCode

TASK = {"question": 'é ✓ "quoted"', "numbers": [1, 2.5, -3e-7, 2**53 + 1], "none": None, "deep": [[{"a": [True]}]]}
RETRIED = RolloutConfig(timeout_seconds=90.5, unresponsive_seconds=60, max_attempts=2, retry_condition=["failed"])
_OTEL_ATTRIBUTES = {"count": 3, "ratio": 0.5, "ok": True, "words": ["a", "b"]}


async def a_started_rollout_comes_with_its_first_attempt(store: LightningStore) -> None:
    worker = _name()
    started = await store.start_rollout(TASK, "train", "rs-chosen", RETRIED, {"m": 1}, worker)
    assert type(started) is AttemptedRollout
    assert (started.input, started.mode, started.resources_id) == (TASK, "train", "rs-chosen")
    assert (started.config, started.metadata, started.status) == (RETRIED, {"m": 1}, "preparing")
    assert (started.attempt.sequence_id, started.attempt.status) == (1, "preparing")
    assert (started.attempt.worker_id, started.attempt.start_time) == (worker, started.start_time)
    assert (started.end_time, started.attempt.end_time, started.attempt.metadata) == (None, None, None)
    assert await store.get_rollout_by_id(started.rollout_id) == started
    busy = await store.get_worker_by_id(worker)
    assert busy is not None
    assert (busy.status, busy.current_attempt_id) == ("busy", started.attempt.attempt_id)


async def omitted_arguments_get_the_defaults(store: LightningStore) -> None:
    latest = await store.add_resources({"p": _prompt("hello")})
    for created in (await store.start_rollout(input=None), await store.enqueue_rollout(input=None)):
        assert (created.input, created.mode, created.metadata) == (None, None, {})
        assert (created.config, created.resources_id) == (RolloutConfig(), latest.resources_id)
    await _drain(store)


async def rollouts_are_claimed_in_the_order_they_were_enqueued(store: LightningStore) -> None:
    await _drain(store)
    first = await store.enqueue_rollout(TASK, "val", "rs-a", RETRIED, {"k": [1]})
    assert type(first) is Rollout
    assert (first.status, first.input, first.mode) == ("queuing", TASK, "val")
    assert (first.config, first.metadata) == (RETRIED, {"k": [1]})
    requests = [EnqueueRolloutRequest(input=number, mode="test") for number in range(4)]
    more = await store.enqueue_many_rollouts(requests)
    assert [rollout.input for rollout in more] == [0, 1, 2, 3]
    assert await store.enqueue_many_rollouts([]) == []
    worker = _name()
    claimed = await store.dequeue_rollout(worker_id=worker)
    assert type(claimed) is AttemptedRollout
    assert (claimed.rollout_id, claimed.status) == (first.rollout_id, "preparing")
    assert (claimed.attempt.sequence_id, claimed.attempt.worker_id) == (1, worker)
    two = await store.dequeue_many_rollouts(limit=2, worker_id=worker)
    rest = await store.dequeue_many_rollouts(limit=10)
    assert [rollout.rollout_id for rollout in (*two, *rest)] == [rollout.rollout_id for rollout in more]
    assert all(type(rollout) is AttemptedRollout for rollout in rest)


async def an_empty_queue_returns_none_and_an_idle_worker(store: LightningStore) -> None:
    await _drain(store)
    worker = _name()
    assert await store.dequeue_rollout() is None
    assert await store.dequeue_rollout(worker_id=worker) is None
    assert await store.dequeue_many_rollouts(limit=3) == []
    assert await store.dequeue_many_rollouts(limit=0) == []
    idle = await store.get_worker_by_id(worker)
    assert idle is not None
    assert idle.status == "idle"
    assert idle.last_dequeue_time is not None


async def thirty_claims_of_twenty_rollouts_get_all_once(store: LightningStore) -> None:
    await _drain(store)
    enqueued = await asyncio.gather(*(store.enqueue_rollout(number) for number in range(20)))
    claimed = await asyncio.gather(*(store.dequeue_rollout(worker_id=f"w{number}") for number in range(30)))
    got = [rollout.rollout_id for rollout in claimed if rollout is not None]
    assert len(got) == 20
    assert set(got) == {rollout.rollout_id for rollout in enqueued}


async def another_attempt_can_be_started_with_and_without_a_worker(store: LightningStore) -> None:
    started = await store.start_rollout("task")
    second = await store.start_attempt(started.rollout_id)
    worker = _name()
    third = await store.start_attempt(started.rollout_id, worker_id=worker)
    assert type(third) is AttemptedRollout
    assert [second.attempt.sequence_id, third.attempt.sequence_id] == [2, 3]
    assert [second.attempt.worker_id, third.attempt.worker_id] == [None, worker]


async def rollouts_are_filtered_by_status_and_id_and_come_with_their_attempts(store: LightningStore) -> None:
    waiting = await store.enqueue_rollout("waiting")
    started = await store.start_rollout("started")
    ended = await store.start_rollout("ended")
    await store.update_attempt(ended.rollout_id, "latest", status="succeeded")
    ids = [waiting.rollout_id, started.rollout_id, ended.rollout_id]
    rollouts = await store.query_rollouts(rollout_id_in=ids)
    assert isinstance(rollouts, PaginatedResult)
    assert [rollout.rollout_id for rollout in rollouts] == ids
    assert [type(rollout) for rollout in rollouts] == [Rollout, AttemptedRollout, AttemptedRollout]
    assert (rollouts.total, rollouts.limit, rollouts.offset, len(rollouts)) == (3, -1, 0, 3)

    async def ids_of(**conditions: Any) -> list[str]:
        return [rollout.rollout_id for rollout in await store.query_rollouts(**conditions)]

    assert await ids_of(rollout_id_in=ids, status_in=["succeeded"]) == [ended.rollout_id]
    assert await ids_of(rollout_ids=ids, status=["queuing", "preparing"]) == ids[:2]
    assert await ids_of(rollout_id_contains=started.rollout_id[4:]) == [started.rollout_id]
    either = await ids_of(rollout_id_in=ids[:1], rollout_id_contains=ids[2], filter_logic="or")
    assert either == [ids[0], ids[2]]
    assert await ids_of(rollout_id_in=ids, sort_by="start_time", sort_order="desc") == ids[::-1]
    assert await ids_of(status_in=[]) == []
    page = await store.query_rollouts(rollout_id_in=ids, limit=1, offset=1)
    assert ([page[0].rollout_id], page.total, page.limit, page.offset) == (ids[1:2], 3, 1, 1)
    await _drain(store)


async def an_update_replaces_its_fields_and_leaves_the_rest(store: LightningStore) -> None:
    rollout = await store.enqueue_rollout("before", "train", "rs-a", RETRIED, {"a": 1})
    changed = await store.update_rollout(rollout.rollout_id, input={"after": True}, metadata={"b": 2})
    assert type(changed) is Rollout
    assert changed.model_dump() == {**rollout.model_dump(), "input": {"after": True}, "metadata": {"b": 2}}
    cleared = await store.update_rollout(rollout.rollout_id, mode=None, resources_id=None, metadata=None, input=None)
    assert (cleared.mode, cleared.resources_id, cleared.metadata, cleared.input) == (None, None, None, None)
    assert cleared.config == RETRIED
    fresh = await store.update_rollout(rollout.rollout_id, config=RolloutConfig(max_attempts=5))
    assert fresh.config == RolloutConfig(max_attempts=5)
    cancelled = await store.update_rollout(rollout.rollout_id, status="cancelled")
    assert cancelled.status == "cancelled"
    assert cancelled.end_time is not None
    assert await store.update_rollout(rollout.rollout_id) == cancelled
    await _drain(store)


async def a_failed_attempt_is_retried_by_its_config(store: LightningStore) -> None:
    await _drain(store)
    rollout = await store.enqueue_rollout("task", config=RETRIED)
    worker = _name()
    first = await store.dequeue_rollout(worker_id=worker)
    assert first is not None
    failed = await store.update_attempt(rollout.rollout_id, first.attempt.attempt_id, status="failed")
    assert type(failed) is Attempt
    assert failed.status == "failed"
    assert failed.end_time is not None
    assert (await _rollout(store, rollout.rollout_id)).status == "requeuing"
    second = await store.dequeue_rollout(worker_id=worker)
    assert second is not None
    assert (second.rollout_id, second.attempt.sequence_id) == (rollout.rollout_id, 2)
    await store.update_attempt(rollout.rollout_id, "latest", status="failed")
    ended = await _rollout(store, rollout.rollout_id)
    assert ended.status == "failed"
    assert ended.end_time is not None
    attempts = await store.query_attempts(rollout.rollout_id)
    assert [attempt.sequence_id for attempt in attempts] == [1, 2]
    newest_first = await store.query_attempts(rollout.rollout_id, sort_order="desc", limit=1)
    assert ([attempt.sequence_id for attempt in newest_first], newest_first.total) == ([2], 2)
    assert await store.get_latest_attempt(rollout.rollout_id) == attempts[1]


async def an_attempt_keeps_its_worker_heartbeat_and_metadata(store: LightningStore) -> None:
    rollout = await store.start_rollout("task")
    worker = _name()
    changed = await store.update_attempt(
        rollout.rollout_id, "latest", worker_id=worker, last_heartbeat_time=1234.5, metadata={"host": "a"}
    )
    assert (changed.worker_id, changed.last_heartbeat_time, changed.metadata) == (worker, 1234.5, {"host": "a"})
    assert await store.get_latest_attempt(rollout.rollout_id) == changed
    busy = await store.get_worker_by_id(worker)
    assert busy is not None
    assert busy.current_rollout_id == rollout.rollout_id


async def a_span_comes_back_as_it_went_and_sets_its_attempt_running(store: LightningStore) -> None:
    rollout = await store.start_rollout("task")
    sent = _full_span(rollout)
    stored = await store.add_span(sent)
    assert stored is not None
    assert _canonical(stored) == _canonical(sent)
    (read,) = await store.query_spans(rollout.rollout_id)
    assert _canonical(read) == _canonical(sent)
    now = await _rollout(store, rollout.rollout_id)
    assert (now.status, now.attempt.status) == ("running", "running")
    assert now.attempt.last_heartbeat_time is not None


async def a_span_stored_twice_is_there_once(store: LightningStore) -> None:
    rollout = await store.start_rollout("task")
    span, other = _of(rollout, 1), _of(rollout, 2)
    assert await store.add_span(span) is not None
    assert await store.add_span(span) is None
    added = await store.add_many_spans([span, other, other])
    assert [one.span_id for one in added] == [other.span_id]
    assert len(await store.query_spans(rollout.rollout_id)) == 2
    assert await store.add_many_spans([]) == []


async def a_span_of_the_sdk_gets_the_next_number(store: LightningStore) -> None:
    rollout = await store.start_rollout("task")
    drawn = await store.get_next_span_sequence_id(rollout.rollout_id, rollout.attempt.attempt_id)
    stored = await store.add_otel_span(rollout.rollout_id, rollout.attempt.attempt_id, _finished_span())
    assert stored is not None
    assert (drawn, stored.sequence_id, stored.name) == (1, 2, "outer")
    assert stored.status.status_code == "ERROR"
    assert {**stored.attributes, "words": list(stored.attributes["words"])} == _OTEL_ATTRIBUTES
    assert [event.name for event in stored.events] == ["happened"]
    chosen = await store.add_otel_span(rollout.rollout_id, rollout.attempt.attempt_id, _finished_span(), 9)
    assert chosen is not None
    assert chosen.sequence_id == 9
    assert await store.get_next_span_sequence_id(rollout.rollout_id, "whatever") == 10


async def numbers_are_drawn_per_rollout_without_gaps(store: LightningStore) -> None:
    one, other = await store.start_rollout("a"), await store.start_rollout("b")
    pairs = [(one.rollout_id, "x"), (other.rollout_id, "x"), (one.rollout_id, "y"), (one.rollout_id, "x")]
    assert list(await store.get_many_span_sequence_ids(pairs)) == [1, 1, 2, 3]
    drawn = await asyncio.gather(*(store.get_next_span_sequence_id(one.rollout_id, "x") for _ in range(20)))
    assert sorted(drawn) == list(range(4, 24))
    await store.add_span(_of(one, 100))
    assert await store.get_next_span_sequence_id(one.rollout_id, "x") == 101


async def spans_are_filtered_by_their_fields(store: LightningStore) -> None:
    rollout = await store.start_rollout("task")
    spans = [_of(rollout, number, name=name) for number, name in ((1, "plan"), (2, "act"), (3, "act.tool"))]
    spans[2].parent_id = spans[1].span_id
    for span in spans:
        await store.add_span(span)
    second = await store.start_attempt(rollout.rollout_id)
    late = _of(second, 4, name="plan")
    await store.add_span(late)

    async def numbers(attempt_id: str | None = None, **conditions: Any) -> list[int]:
        matches = await store.query_spans(rollout.rollout_id, attempt_id, **conditions)
        return [span.sequence_id for span in matches]

    assert await numbers() == [1, 2, 3, 4]
    assert await numbers("latest") == [4]
    assert await numbers(rollout.attempt.attempt_id) == [1, 2, 3]
    assert await numbers(name="plan") == [1, 4]
    assert await numbers(name_contains="act") == [2, 3]
    assert await numbers(parent_id=spans[1].span_id) == [3]
    assert await numbers(span_id=spans[0].span_id, name="act", filter_logic="or") == [1, 2]
    assert await numbers(trace_id_contains=spans[0].trace_id[3:]) == [1]
    assert await numbers(sort_order="desc", limit=2, offset=1) == [3, 2]
    assert await numbers(rollout.attempt.attempt_id, sort_by="name", sort_order="asc") == [2, 3, 1]


async def resources_have_versions_and_the_last_published_are_the_latest(store: LightningStore) -> None:
    named = {
        "llm": LLM(endpoint="http://e/v1", model="m", sampling_parameters={"temperature": 0.5}),
        "proxy": ProxyLLM(endpoint="http://p", model="m", api_key="k"),
        "prompt": _prompt("Answer: {question}"),
    }
    added = await store.add_resources(named)
    assert type(added) is ResourcesUpdate
    assert (added.version, added.resources) == (1, named)
    assert [type(resource) for resource in added.resources.values()] == [LLM, ProxyLLM, PromptTemplate]
    newer = await store.add_resources({"prompt": _prompt("b")})
    assert await store.get_latest_resources() == newer
    updated = await store.update_resources(added.resources_id, {"prompt": _prompt("c")})
    assert (updated.version, updated.create_time) == (2, added.create_time)
    assert updated.update_time > added.update_time
    assert await store.get_latest_resources() == updated == await store.get_resources_by_id(added.resources_id)
    name = _name()
    created = await store.update_resources(name, {})
    assert (created.resources_id, created.version, created.resources) == (name, 1, {})
    resources = await store.query_resources(resources_id_contains=added.resources_id[3:])
    assert (list(resources), resources.total) == ([updated], 1)
    assert list(await store.query_resources(resources_id=name)) == [created]
    page = await store.query_resources(sort_by="update_time", sort_order="desc", limit=2)
    assert [update.resources_id for update in page] == [name, added.resources_id]


async def a_worker_reports_its_statistics(store: LightningStore) -> None:
    worker = _name()
    created = await store.update_worker(worker)
    assert type(created) is Worker
    assert (created.status, created.heartbeat_stats) == ("unknown", None)
    stats = {"cpu_usage_pct": 12.5, "gpus": [{"gpu": "x", "util_pct": 1}]}
    seen = await store.update_worker(worker, stats)
    assert seen.heartbeat_stats == stats
    record = await store.update_worker(worker)
    assert record.heartbeat_stats == stats
    assert record.last_heartbeat_time is not None
    assert await store.get_worker_by_id(worker) == record
    assert [one.worker_id for one in await store.query_workers(worker_id_contains=worker)] == [worker]
    both = await store.query_workers(status_in=["busy"], worker_id_contains=worker, filter_logic="or")
    assert worker in [one.worker_id for one in both]


async def a_waiting_call_returns_the_rollouts_that_ended(store: LightningStore) -> None:
    done, open_ = await store.start_rollout("done"), await store.start_rollout("open")
    ids = [open_.rollout_id, done.rollout_id]
    assert await store.wait_for_rollouts(rollout_ids=ids, timeout=0) == []
    await store.update_attempt(done.rollout_id, "latest", status="succeeded")
    (ended,) = await store.wait_for_rollouts(rollout_ids=ids, timeout=0.1)
    assert type(ended) is Rollout
    assert (ended.rollout_id, ended.status) == (done.rollout_id, "succeeded")
    waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[open_.rollout_id], timeout=None))
    await store.statistics()
    await store.update_rollout(open_.rollout_id, status="cancelled")
    assert [rollout.status for rollout in await waiting] == ["cancelled"]


async def statistics_count_the_stored_rows(store: LightningStore) -> None:
    before = await store.statistics()
    rollout = await store.start_rollout("task", worker_id=_name())
    await store.add_span(_of(rollout, 1))
    await store.add_resources({})
    after = await store.statistics()
    for counted in ("rollouts", "attempts", "spans", "resources", "workers"):
        assert after[f"total_{counted}"] == before[f"total_{counted}"] + 1, counted
    assert after["uptime"] > before["uptime"]
    assert isinstance(after["name"], str)


async def a_pickled_copy_sees_the_same_store_from_another_event_loop(store: LightningStore) -> None:
    rollout = await store.start_rollout("task")
    copy = pickle.loads(pickle.dumps(store))

    async def read_and_close() -> Any:
        try:
            return await copy.get_rollout_by_id(rollout.rollout_id)
        finally:
            await copy.close()

    assert await asyncio.to_thread(asyncio.run, read_and_close()) == rollout


def _name() -> str:
    return f"n-{uuid4().hex[:12]}"


async def _drain(store: LightningStore) -> None:
    while await store.dequeue_many_rollouts(limit=100):
        pass


async def _rollout(store: LightningStore, rollout_id: str) -> AttemptedRollout:
    rollout = await store.get_rollout_by_id(rollout_id)
    assert type(rollout) is AttemptedRollout
    return rollout


def _prompt(template: str) -> PromptTemplate:
    return PromptTemplate(template=template, engine="f-string")


def _of(rollout: AttemptedRollout, sequence_id: int, name: str | None = None) -> Span:
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id, "sequence_id": sequence_id}
    return Span.from_attributes(attributes={"n": sequence_id}, name=name, **ids)


def _full_span(rollout: AttemptedRollout) -> Span:
    """Return a span with every field and every kind of attribute, and keys that no model knows."""
    context = {"trace_id": "a" * 32, "span_id": "b" * 16, "is_remote": True, "trace_state": {"k": "v"}, "extra": [1]}
    attributes = {"i": 1, "f": 1.0, "b": True, "s": "1", "is": [1, 2], "fs": [0.5], "bs": [True, False], "e": []}
    return Span.model_validate(
        {
            "rollout_id": rollout.rollout_id,
            "attempt_id": rollout.attempt.attempt_id,
            "sequence_id": 7,
            "trace_id": "a" * 32,
            "span_id": "c" * 16,
            "parent_id": "b" * 16,
            "name": "full",
            "status": {"status_code": "ERROR", "description": "went wrong", "extra": 1},
            "attributes": attributes,
            "events": [{"name": "event", "attributes": {"k": 1}, "timestamp": 1700000000.25, "extra": None}],
            "links": [{"context": context, "attributes": None, "extra": {}}],
            "start_time": 1700000000.123456,
            "end_time": 1700000001.5,
            "context": context,
            "parent": context,
            "resource": {"attributes": {"service.name": "s"}, "schema_url": "https://example.org/1"},
            "kind": "INTERNAL",
            "mock_children": {"deep": [1, None, "x"]},
        }
    )


def _canonical(span: Span) -> str:
    # As text 1, 1.0 and True are three things; as Python's numbers they are equal.
    return json.dumps(span.model_dump(mode="json"), sort_keys=True)


def _finished_span() -> ReadableSpan:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource.create({"service.name": "agent"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("agent").start_as_current_span("outer") as span:
        span.set_attributes(_OTEL_ATTRIBUTES)
        span.add_event("happened", {"at": 1})
        span.set_status(Status(StatusCode.ERROR, "went wrong"))
    (finished,) = exporter.get_finished_spans()
    return finished
