"""The API types accept and keep the values that Agent-lightning's accept and keep, and are immutable."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource as SdkResource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link as SdkLink
from opentelemetry.trace import SpanContext as SdkContext
from opentelemetry.trace import Status, StatusCode
from pydantic import BaseModel, TypeAdapter, ValidationError

from store.models import (
    LLM,
    UNSET,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    Event,
    Link,
    NamedResources,
    OtelResource,
    PaginatedResult,
    PromptTemplate,
    ProxyLLM,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Span,
    SpanContext,
    TraceStatus,
    Unset,
    VerifyReport,
    Worker,
    WorkerStatus,
)
from store.models.rollouts import ObservedWorker

CONTEXT: Mapping[str, Any] = {"trace_id": "a" * 32, "span_id": "b" * 16, "is_remote": False, "trace_state": {}}
SPAN: Mapping[str, Any] = {
    "rollout_id": "ro-1",
    "attempt_id": "at-1",
    "sequence_id": 1,
    "trace_id": "a" * 32,
    "span_id": "b" * 16,
    "parent_id": None,
    "name": "step",
    "status": {"status_code": "OK"},
    "attributes": {},
    "events": [],
    "links": [],
    "start_time": None,
    "end_time": None,
    "context": None,
    "parent": None,
    "resource": {"attributes": {}, "schema_url": ""},
}
ROLLOUT: Mapping[str, Any] = {"rollout_id": "ro-1", "input": {"n": 1}, "start_time": 1.5}
ATTEMPT: Mapping[str, Any] = {"rollout_id": "ro-1", "attempt_id": "at-1", "sequence_id": 1, "start_time": 1.5}


def span_with(attributes: Any) -> Span:
    return Span.model_validate({**SPAN, "attributes": attributes})


# Words


def test_the_words_are_those_of_agent_lightning() -> None:
    assert set(get_args(RolloutStatus)) == {
        "queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing"
    }  # fmt: skip
    assert set(get_args(AttemptStatus)) == {"preparing", "running", "failed", "succeeded", "unresponsive", "timeout"}
    assert set(get_args(RolloutMode)) == {"train", "val", "test"}
    assert set(get_args(WorkerStatus)) == {"idle", "busy", "unknown"}


def test_unset_is_one_object_that_is_neither_none_nor_true() -> None:
    assert UNSET is not None  # pyright: ignore[reportUnnecessaryComparison]
    assert not UNSET
    assert repr(UNSET) == "UNSET"
    assert isinstance(UNSET, Unset)
    assert pickle.loads(pickle.dumps(UNSET)) is UNSET
    assert copy.deepcopy(UNSET) is UNSET


# Validation


@pytest.mark.parametrize("value,taken", [("2", 2), (9.0, 9), (True, 1)])
def test_int_accepts_lossless_values(value: Any, taken: int) -> None:
    attempt = Attempt.model_validate({**ATTEMPT, "sequence_id": value})
    assert attempt.sequence_id == taken
    assert type(attempt.sequence_id) is int


def test_a_float_takes_its_text() -> None:
    assert RolloutConfig.model_validate({"timeout_seconds": "12.5"}).timeout_seconds == 12.5


@pytest.mark.parametrize(
    "model,values",
    [
        (Attempt, {**ATTEMPT, "sequence_id": 1.5}),
        (Attempt, {**ATTEMPT, "attempt_id": 7}),
        (Attempt, {**ATTEMPT, "status": "cancelled"}),
        (Rollout, {**ROLLOUT, "status": "queueing"}),
        (Rollout, {**ROLLOUT, "mode": "eval"}),
        (RolloutConfig, {"max_attempts": 0}),
        (RolloutConfig, {"retry_condition": ["cancelled"]}),
        (EnqueueRolloutRequest, {"mode": "train"}),
        (Worker, {}),
        (TraceStatus, {"status_code": "FINE"}),
        (SpanContext, {**CONTEXT, "trace_state": {"k": 1}}),
        (Event, {"name": "e"}),
        (OtelResource, {"attributes": {}}),
    ],
)
def test_lossy_or_incomplete_values_are_refused(model: type[BaseModel], values: Mapping[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(values)


@pytest.mark.parametrize("values", [{"timeout_seconds": 0}, {"timeout_seconds": -1}, {"unresponsive_seconds": -0.5}])
def test_limits_have_no_range(values: Mapping[str, float]) -> None:
    assert RolloutConfig.model_validate(values).model_dump() == {**RolloutConfig().model_dump(), **values}


@pytest.mark.parametrize("field", list(SPAN))
def test_every_field_of_a_span_is_required_even_when_it_may_be_null(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        Span.model_validate({name: value for name, value in SPAN.items() if name != field})


@pytest.mark.parametrize(
    "model,values",
    [
        (RolloutConfig, {}),
        (Rollout, ROLLOUT),
        (Attempt, ATTEMPT),
        (AttemptedRollout, {**ROLLOUT, "attempt": ATTEMPT}),
        (EnqueueRolloutRequest, {"input": None}),
        (Worker, {"worker_id": "w"}),
        (LLM, {"endpoint": "e", "model": "m"}),
        (PromptTemplate, {"template": "t", "engine": "f-string"}),
    ],
)
def test_unknown_keys_are_dropped(model: type[BaseModel], values: Mapping[str, Any]) -> None:
    assert model.model_validate({**values, "novelty": 1}) == model.model_validate(values)


def test_a_span_and_its_parts_keep_unknown_keys_as_they_came() -> None:
    extras: dict[str, Any] = {"novelty": {"a": [1, None, "é"]}, "method_calls": []}
    context: dict[str, Any] = {**CONTEXT, **extras}
    fields: dict[str, Any] = {
        **SPAN,
        **extras,
        "status": {"status_code": "ERROR", "description": "boom", **extras},
        "context": context,
        "parent": context,
        "events": [{"name": "e", "attributes": {}, "timestamp": 1.5, **extras}],
        "links": [{"context": context, "attributes": None, **extras}],
        "resource": {"attributes": {}, "schema_url": "", **extras},
    }
    assert Span.model_validate(fields).model_dump() == fields
    assert json.loads(Span.model_validate_json(json.dumps(fields)).model_dump_json()) == fields


NO_REWARDS: dict[str, Any] = {"reward": None, "rewards": {}}
"""The fields that follow those of Agent-lightning."""


@pytest.mark.parametrize(
    "model,values,dumped",
    [
        (
            Rollout,
            ROLLOUT,
            {
                **ROLLOUT,
                "end_time": None,
                "mode": None,
                "resources_id": None,
                "status": "queuing",
                "config": {
                    "timeout_seconds": None,
                    "unresponsive_seconds": None,
                    "max_attempts": 1,
                    "retry_condition": [],
                },
                "metadata": None,
                **NO_REWARDS,
            },
        ),
        (
            Attempt,
            ATTEMPT,
            {
                **ATTEMPT,
                "end_time": None,
                "status": "preparing",
                "worker_id": None,
                "last_heartbeat_time": None,
                "metadata": None,
                **NO_REWARDS,
            },
        ),
        (
            Worker,
            {"worker_id": "w"},
            {
                "worker_id": "w",
                "status": "unknown",
                "heartbeat_stats": None,
                "last_heartbeat_time": None,
                "last_dequeue_time": None,
                "last_busy_time": None,
                "last_idle_time": None,
                "current_rollout_id": None,
                "current_attempt_id": None,
            },
        ),
    ],
)
def test_a_dump_has_every_field_in_the_order_of_agent_lightning(
    model: type[BaseModel], values: Mapping[str, Any], dumped: Mapping[str, Any]
) -> None:
    dump = model.model_validate(values).model_dump()
    assert dump == dumped
    assert list(dump) == list(dumped)


def test_models_cannot_be_changed() -> None:
    rollout = Rollout.model_validate(ROLLOUT)
    with pytest.raises(ValidationError, match="frozen"):
        rollout.status = "running"  # pyright: ignore[reportAttributeAccessIssue]


def test_two_rollouts_do_not_share_their_default_config() -> None:
    one, other = Rollout.model_validate(ROLLOUT), Rollout.model_validate(ROLLOUT)
    assert one.config.retry_condition is not other.config.retry_condition


def test_an_attempted_rollout_carries_an_attempt_of_its_own() -> None:
    with pytest.raises(ValidationError, match="belongs to rollout ro-2, not ro-1"):
        AttemptedRollout.model_validate({**ROLLOUT, "attempt": {**ATTEMPT, "rollout_id": "ro-2"}})


def test_a_rollout_without_attempts_has_no_attempt_key() -> None:
    assert "attempt" not in Rollout.model_validate(ROLLOUT).model_dump()
    assert AttemptedRollout.model_validate({**ROLLOUT, "attempt": ATTEMPT}).model_dump()["attempt"]["sequence_id"] == 1


# Attributes

scalars = st.text() | st.booleans() | st.integers() | st.floats(allow_nan=False)
lists = st.lists(st.text()) | st.lists(st.booleans()) | st.lists(st.integers()) | st.lists(st.floats(allow_nan=False))


@given(st.dictionaries(st.text(), scalars | lists))
def test_attributes_keep_value_and_kind(attributes: dict[str, Any]) -> None:
    stored = span_with(attributes).attributes
    assert repr(stored) == repr(attributes)


def test_a_list_of_ints_and_floats_is_widened() -> None:
    assert repr(span_with({"a": [1, 2.5]}).attributes) == "{'a': [1.0, 2.5]}"


def test_a_tuple_of_ones_and_zeros_stays_a_list_of_ints() -> None:
    assert repr(span_with({"a": (1, 0)}).attributes) == "{'a': [1, 0]}"


def test_a_subclass_of_a_builtin_becomes_the_builtin() -> None:
    class Colour(str, Enum):  # noqa: UP042  users' enumerations of Python 3.10 look like this
        RED = "red"

    class Weight(float):
        pass

    attributes = span_with({"a": Colour.RED, "b": Weight(2.5), "c": [Colour.RED]}).attributes
    assert repr(attributes) == "{'a': 'red', 'b': 2.5, 'c': ['red']}"


@pytest.mark.parametrize(
    "value,reason",
    [
        (None, "'k' is NoneType"),
        ({"a": 1}, "'k' is dict"),
        ([1, "a"], "'k' is a list of int and str"),
        ([True, 1], "'k' is a list of bool and int"),
        ([None], "'k' is NoneType"),
        ([[1]], "'k' is list"),
        (b"x", "'k' is bytes"),
    ],
)
def test_an_attribute_of_another_kind_is_refused_by_name(value: Any, reason: str) -> None:
    with pytest.raises(ValidationError, match=f"attribute {reason}"):
        span_with({"k": value})


@pytest.mark.parametrize("attributes", [None, [], "a", {1: "a"}])
def test_attributes_are_an_object_with_names(attributes: Any) -> None:
    with pytest.raises(ValidationError, match="attribute"):
        span_with(attributes)


def test_a_span_does_not_change_with_the_dict_it_was_made_of() -> None:
    attributes: dict[str, Any] = {"a": 1, "b": [1, 2]}
    span = span_with(attributes)
    attributes["a"] = 2
    attributes["b"].append(3)
    assert span.attributes == {"a": 1, "b": [1, 2]}


def test_the_schema_of_attributes_names_the_kinds() -> None:
    schema = Link.model_json_schema()["properties"]["attributes"]
    kinds = schema["anyOf"][0]["additionalProperties"]["anyOf"]
    assert [kind["type"] for kind in kinds] == ["string", "boolean", "integer", "number", *["array"] * 4]


# Spans of the OpenTelemetry SDK


def recorded(resource: Mapping[str, Any] | None = None) -> tuple[TracerProvider, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=SdkResource(resource or {}, "http://schema"))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def test_a_span_of_the_sdk_arrives_whole() -> None:
    provider, exporter = recorded({"service.name": "agent"})
    tracer = provider.get_tracer("test")
    linked = SdkContext(trace_id=5, span_id=6, is_remote=True)
    with tracer.start_as_current_span("outer"):
        inner = tracer.start_span(
            "inner",
            start_time=1_700_000_000_123_456_789,
            attributes={"a": 1, "b": (1, 0), "c": True, "d": ["x"]},
            links=[SdkLink(linked, {"why": "because"}), SdkLink(linked)],
        )
        inner.add_event("thing", {"n": 1.5}, timestamp=1_700_000_000_500_000_000)
        inner.set_status(Status(StatusCode.ERROR, "boom"))
        inner.end(end_time=1_700_000_001_000_000_000)
    first, outer = exporter.get_finished_spans()
    span = Span.from_opentelemetry(first, "ro-1", "at-1", 7)
    above = outer.get_span_context()
    assert above is not None
    assert (span.rollout_id, span.attempt_id, span.sequence_id, span.name) == ("ro-1", "at-1", 7, "inner")
    assert repr(span.attributes) == "{'a': 1, 'b': [1, 0], 'c': True, 'd': ['x']}"
    assert span.parent_id == f"{above.span_id:016x}"
    assert span.trace_id == f"{above.trace_id:032x}"
    assert span.parent is not None
    assert span.parent.span_id == span.parent_id
    assert span.context is not None
    assert (span.context.span_id, span.context.is_remote) == (span.span_id, False)
    assert (span.start_time, span.end_time) == (1_700_000_000_123_456_789 / 1e9, 1_700_000_001.0)
    assert span.status == TraceStatus(status_code="ERROR", description="boom")
    assert [(event.name, event.attributes, event.timestamp) for event in span.events] == [
        ("thing", {"n": 1.5}, 1_700_000_000.5)
    ]
    assert [(link.context.span_id, link.attributes) for link in span.links] == [
        ("0000000000000006", {"why": "because"}),
        ("0000000000000006", None),
    ]
    assert span.resource == OtelResource(attributes={"service.name": "agent"}, schema_url="http://schema")
    assert Span.model_validate_json(span.model_dump_json()) == span


def test_a_root_span_of_the_sdk_has_no_parent() -> None:
    provider, exporter = recorded()
    provider.get_tracer("test").start_span("root").end()
    span = Span.from_opentelemetry(exporter.get_finished_spans()[0], "ro-1", "at-1", 1)
    assert (span.parent_id, span.parent) == (None, None)


def test_no_span_of_the_sdk_is_lost_over_one_of_its_attributes() -> None:
    odd: Any = {"bytes": b"\xff", "mixed": [1, "a"], "nested": {"a": [1]}, "none": None, "holes": ("a", None)}
    span = Span.from_opentelemetry(
        ReadableSpan("odd", SdkContext(1, 2, is_remote=False), attributes=odd, start_time=0), "ro-1", "at-1", 1
    )
    assert span.attributes == {"bytes": "ff", "mixed": '[1, "a"]', "nested": '{"a": [1]}', "holes": '["a", null]'}
    assert (span.start_time, span.end_time) == (None, None)


def test_a_made_up_span_has_the_defaults_of_agent_lightning() -> None:
    span = Span.from_attributes(attributes={"a": 1})
    assert (span.rollout_id, span.attempt_id, span.sequence_id) == ("", "", 0)
    assert (span.name, span.status) == ("agentlightning.virtual", TraceStatus(status_code="OK"))
    assert (len(span.trace_id), len(span.span_id)) == (32, 16)
    assert span.context == SpanContext(trace_id=span.trace_id, span_id=span.span_id, is_remote=False, trace_state={})
    assert (span.parent_id, span.parent, span.start_time, span.end_time) == (None, None, None, None)
    assert Span.from_attributes(attributes={}).span_id != span.span_id


def test_a_made_up_span_has_a_parent_context_only_with_a_parent() -> None:
    span = Span.from_attributes(attributes={}, trace_id="t", parent_id="p")
    assert span.parent == SpanContext(trace_id="t", span_id="p", is_remote=False, trace_state={})


# Resources


def test_resource_is_parsed_by_its_required_type() -> None:
    named = TypeAdapter[NamedResources](NamedResources)
    resources = named.validate_python(
        {
            "a": {"resource_type": "llm", "endpoint": "e", "model": "m"},
            "b": {"resource_type": "proxy_llm", "endpoint": "e", "model": "m", "api_key": None},
            "c": {"resource_type": "prompt_template", "template": "t", "engine": "jinja"},
        }
    )
    assert [type(resource) for resource in resources.values()] == [LLM, ProxyLLM, PromptTemplate]
    assert named.validate_python({}) == {}
    for wrong, kind in (({}, "union_tag_not_found"), ({"resource_type": "gpu"}, "union_tag_invalid")):
        with pytest.raises(ValidationError) as refused:
            named.validate_python({"a": {"endpoint": "e", "model": "m", **wrong}})
        assert refused.value.errors()[0]["type"] == kind


def test_resources_survive_json() -> None:
    update = ResourcesUpdate(
        resources_id="rs-1",
        create_time=1.5,
        update_time=1.5,
        version=1,
        resources={"llm": LLM(endpoint="e", model="m")},
    )
    assert update.model_dump()["resources"]["llm"] == {
        "resource_type": "llm",
        "endpoint": "e",
        "model": "m",
        "api_key": None,
        "sampling_parameters": {},
    }
    assert ResourcesUpdate.model_validate_json(update.model_dump_json()) == update


@pytest.mark.parametrize(
    "endpoint,url",
    [
        ("http://h:1", "http://h:1/rollout/ro-1/attempt/at-1"),
        ("http://h:1/", "http://h:1/rollout/ro-1/attempt/at-1"),
        ("http://h:1/v1", "http://h:1/rollout/ro-1/attempt/at-1/v1"),
        ("http://h:1/v1/", "http://h:1/rollout/ro-1/attempt/at-1/v1"),
        ("http://h:1/v1/x", "http://h:1/v1/x/rollout/ro-1/attempt/at-1"),
    ],
)
def test_a_proxys_url_names_the_attempt_before_a_trailing_v1(endpoint: str, url: str) -> None:
    assert ProxyLLM(endpoint=endpoint, model="m").get_base_url("ro-1", "at-1") == url


def test_a_proxy_without_ids_is_its_endpoint_and_one_id_alone_is_refused() -> None:
    proxy = ProxyLLM(endpoint="http://h:1/v1/", model="m")
    assert proxy.get_base_url() == "http://h:1/v1/"
    with pytest.raises(ValueError, match="together"):
        proxy.get_base_url("ro-1", None)
    assert LLM(endpoint="http://h:1/v1/", model="m").get_base_url("ro-1", None) == "http://h:1/v1/"


def test_a_prompt_is_formatted_by_python_alone() -> None:
    assert PromptTemplate(template="Hello {name}", engine="f-string").format(name="you") == "Hello you"
    with pytest.raises(NotImplementedError, match="jinja"):
        PromptTemplate(template="Hello {{ name }}", engine="jinja").format(name="you")


# Pages and reports


def test_a_page_is_a_sequence_of_its_items_and_equal_to_no_list() -> None:
    page = PaginatedResult(items=["a", "b", "c"], limit=3, offset=2, total=9)
    assert isinstance(page, Sequence)
    assert (len(page), page[0], page[-1], page[1:], list(page)) == (3, "a", "c", ["b", "c"], ["a", "b", "c"])
    assert "b" in page
    assert page.index("c") == 2
    assert list(reversed(page)) == ["c", "b", "a"]
    assert page != ["a", "b", "c"]


@pytest.mark.parametrize(
    "items,limit,offset,text",
    [
        (["a", "b"], 2, 4, "<PaginatedResult (4:6 of 9) ['a', ...]>"),
        (["a"], -1, 8, "<PaginatedResult (8: of 9) 'a'>"),
        ([], 5, 20, "<PaginatedResult (20:25 of 9) empty>"),
    ],
)
def test_repr_of_a_page_shows_its_range_and_first_items(items: list[str], limit: int, offset: int, text: str) -> None:
    assert repr(PaginatedResult(items=items, limit=limit, offset=offset, total=9)) == text


def test_a_page_keeps_the_class_of_each_item_and_dumps_all_of_it() -> None:
    plain = Rollout.model_validate(ROLLOUT)
    attempted = AttemptedRollout.model_validate({**ROLLOUT, "attempt": ATTEMPT})
    page = PaginatedResult[Rollout | AttemptedRollout](items=[plain, attempted], limit=-1, offset=0, total=2)
    assert [type(item) for item in page] == [Rollout, AttemptedRollout]
    dumped = page.model_dump()
    assert list(dumped) == ["items", "limit", "offset", "total"]
    assert ["attempt" in item for item in dumped["items"]] == [False, True]


@pytest.mark.parametrize("differences,ok", [(0, True), (3, False)])
def test_a_report_says_whether_all_is_well_also_when_dumped(differences: int, ok: bool) -> None:
    report = VerifyReport(
        store_id="s",
        commits=1,
        events=1,
        streams=1,
        rows={"rollouts": 1},
        last_position=1,
        chain_head="00",
        state_hash="00",
        seal_checked=False,
        differences=[],
        difference_count=differences,
        seconds=0.1,
    )
    assert report.ok is ok
    assert report.model_dump()["ok"] is ok


@pytest.mark.parametrize(
    "value",
    [
        Rollout.model_validate(ROLLOUT),
        AttemptedRollout.model_validate({**ROLLOUT, "attempt": ATTEMPT}),
        Span.model_validate({**SPAN, "novelty": 1}),
        PaginatedResult[Any](items=[1], limit=-1, offset=0, total=1),
    ],
    ids=lambda value: str(type(value).__name__),
)
def test_models_survive_pickle(value: BaseModel) -> None:
    assert pickle.loads(pickle.dumps(value)) == value


BEAT = {"heartbeat_interval": 2.0}


@pytest.mark.parametrize(
    "heartbeat, stats, at_limit, later",
    [
        (None, None, "busy", "busy"),
        (100.0, None, "busy", "busy"),
        (100.0, BEAT, "busy", "lost"),
        (100.0, {"heartbeat_interval": 0.001}, "lost", "lost"),
        (100.0, {"heartbeat_interval": True}, "busy", "busy"),
        (100.0, BEAT | {"stopped": True}, "stopped", "stopped"),
        (100.0, BEAT | {"stopped": "no"}, "busy", "lost"),
    ],
)
def test_the_state_of_a_worker_follows_from_its_heartbeats(
    heartbeat: float | None, stats: dict[str, Any] | None, at_limit: str, later: str
) -> None:
    worker = Worker(worker_id="w", status="busy", last_heartbeat_time=heartbeat, heartbeat_stats=stats)
    assert (worker.state_at(112.0), worker.state_at(112.1)) == (at_limit, later)
    assert ObservedWorker.of(worker, 112.1).model_dump() == {**worker.model_dump(), "state": later}


def test_a_worker_that_declares_no_interval_is_lost_after_a_minute() -> None:
    worker = Worker(worker_id="w", status="idle", last_heartbeat_time=100.0, heartbeat_stats={"cpu": 1})
    assert (worker.state_at(160.0), worker.state_at(160.1)) == ("idle", "lost")
