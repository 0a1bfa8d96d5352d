"""Models of stored data are not validated again and equal validated ones."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from store.db.queries import log as log_queries
from store.db.tables import core as core_tables
from store.domain.events import Event, SpanRecorded
from store.domain.rows import NamedRow, row_maker
from store.domain.views import ATTEMPT_COLUMNS, RESOURCES_COLUMNS, ROLLOUT_COLUMNS, SIGNALS_COLUMNS, WORKER_COLUMNS
from store.errors import Incompatible
from store.models import (
    LLM,
    Attempt,
    AttemptedRollout,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    Span,
    Worker,
)
from store.models.trusted import span_model
from store.semconv import DROPPED
from store.sql.mapping import rollouts as rollout_mapping

SPAN: dict[str, Any] = {
    "rollout_id": "ro-1",
    "attempt_id": "at-1",
    "sequence_id": 3,
    "trace_id": "t",
    "span_id": "s",
    "parent_id": "p",
    "name": "call",
    "status": {"status_code": "ERROR", "description": "boom", "extra": [1]},
    "attributes": {"int": 1, "float": 1.0, "bool": True, "text": "1", "list": [1.0, 2.5]},
    "events": [{"name": "e", "attributes": {"k": 1}, "timestamp": None, "more": {"x": 1}}],
    "links": [
        {
            "context": {"trace_id": "t", "span_id": "l", "is_remote": True, "trace_state": {"a": "b"}},
            "attributes": None,
        }
    ],
    "start_time": 1.25,
    "end_time": None,
    "context": {"trace_id": "t", "span_id": "s", "is_remote": False, "trace_state": {}, "trace_flags": 1},
    "parent": None,
    "resource": {"attributes": {"service.name": "x"}, "schema_url": ""},
    "mock_children": {"any": "thing"},
}
OF_ROW = tuple(column.name for column in core_tables.spans.columns if column.name != "position")


def row(columns: tuple[str, ...], **values: Any) -> NamedRow:
    assert values.keys() <= set(columns)
    return row_maker(columns)(values.get(name) for name in columns)


def span_row(**values: Any) -> NamedRow:
    status = values.get("status", {"status_code": "OK", "description": "said"})
    fields = {"status_code": status["status_code"], "status_message": status["description"], **values}
    return row_maker((*OF_ROW, "position"))((*(fields[name] for name in OF_ROW), 7))


def span() -> tuple[Span, Span]:
    body = {name: value for name, value in SPAN.items() if name not in OF_ROW and value is not None}
    return span_model(span_row(**SPAN), orjson.loads(orjson.dumps(body))), Span.model_validate(SPAN)


def rollout() -> tuple[Rollout, Rollout]:
    config = RolloutConfig(timeout_seconds=3.0, retry_condition=["failed"])
    stored = row(
        ROLLOUT_COLUMNS,
        rollout_id="ro-1",
        status="running",
        mode="val",
        config=config.model_dump_json(),
        start_at=1_500_000,
        end_at=2_000_000,
    )
    validated = Rollout(
        rollout_id="ro-1",
        input=[1],
        start_time=1.5,
        end_time=2.0,
        mode="val",
        status="running",
        config=config,
        metadata={"a": None},
    )
    return rollout_mapping.rollout_model(stored, {"input": [1]}, {"metadata": {"a": None}}), validated


def attempt() -> tuple[Attempt, Attempt]:
    stored = row(
        ATTEMPT_COLUMNS, rollout_id="ro-1", attempt_id="at-1", sequence_id=2, status="running", start_at=1_000_001
    )
    validated = Attempt(
        rollout_id="ro-1",
        attempt_id="at-1",
        sequence_id=2,
        start_time=1.000001,
        status="running",
        last_heartbeat_time=9.5,
        metadata={"m": 1},
    )
    return rollout_mapping.attempt_model(stored, 9.5, {"metadata": {"m": 1}}), validated


def attempted() -> tuple[AttemptedRollout, AttemptedRollout]:
    (_, plain), (_, own_fields) = rollout(), attempt()
    stored = row(
        ROLLOUT_COLUMNS,
        rollout_id="ro-1",
        status="running",
        mode="val",
        # A decision's answer holds the object itself.
        config=plain.config.model_dump(),
        start_at=1_500_000,
        end_at=2_000_000,
    )
    built = rollout_mapping.attempted_rollout_model(stored, {"input": [1]}, {"metadata": {"a": None}}, attempt()[0])
    return built, AttemptedRollout.model_validate({**dict(plain), "attempt": own_fields})


def worker() -> tuple[Worker, Worker]:
    stored = row(WORKER_COLUMNS, worker_id="w", status="busy", last_busy_at=5, last_idle_at=9, current_rollout_id="ro")
    signals = row(
        SIGNALS_COLUMNS,
        worker_id="w",
        heartbeat_stats='{"gpu":1.0}',
        last_heartbeat_at=3,
        last_busy_at=7,
        last_idle_at=8,
    )
    validated = Worker(
        worker_id="w",
        status="busy",
        heartbeat_stats={"gpu": 1.0},
        last_heartbeat_time=3e-6,
        last_busy_time=7e-6,
        last_idle_time=9e-6,
        current_rollout_id="ro",
    )
    return rollout_mapping.worker_model(stored, signals), validated


def resources() -> tuple[ResourcesUpdate, ResourcesUpdate]:
    llm = LLM(endpoint="e", model="m", sampling_parameters={"temperature": 1.0})
    stored = row(RESOURCES_COLUMNS, resources_id="rs", version=2, create_at=1_000_000, update_at=2_000_000)
    validated = ResourcesUpdate(resources_id="rs", create_time=1.0, update_time=2.0, version=2, resources={"llm": llm})
    return rollout_mapping.resources_model(stored, {"resources": {"llm": llm.model_dump()}}), validated


@pytest.mark.parametrize("build", [span, rollout, attempt, attempted, worker, resources])
def test_a_model_made_of_stored_data_is_as_a_validated_one(build: Any) -> None:
    pair: tuple[BaseModel, BaseModel] = build()
    built, validated = pair
    assert built == validated
    assert type(built) is type(validated)
    assert repr(built) == repr(validated)
    assert built.model_dump_json() == validated.model_dump_json()
    assert built.model_dump(exclude_unset=True) == built.model_dump()
    assert pickle.loads(pickle.dumps(built)) == built
    assert copy.deepcopy(built) == built
    assert type(built).model_validate(built.model_dump()) == built
    changed = built.model_copy(update={next(iter(type(built).model_fields)): "changed"})
    assert changed != built
    assert built == validated


def test_kinds_of_numbers_survive() -> None:
    built, _ = span()
    kinds = [type(value) for value in built.attributes.values()]
    assert kinds == [int, float, bool, str, list]


def test_a_span_whose_body_was_dropped_has_only_the_attribute_that_says_so() -> None:
    built = span_model(span_row(**SPAN), None)
    assert (built.attributes, built.events, built.links, built.model_extra) == ({DROPPED: True}, [], [], {})
    assert (built.status.status_code, built.status.description) == (
        SPAN["status"]["status_code"],
        SPAN["status"]["description"],
    )
    assert Span.model_validate(built.model_dump()) == built


def test_two_spans_without_bodies_share_nothing_that_can_change() -> None:
    one, other = (span_model(span_row(**SPAN), None) for _ in range(2))
    one.attributes["mine"] = True
    assert other.attributes == {DROPPED: True}


def test_payload_that_was_dropped_reads_as_nothing_and_a_mark() -> None:
    stored = row(ROLLOUT_COLUMNS, rollout_id="ro-1", status="queuing", config="{}", start_at=1)
    built = rollout_mapping.rollout_model(stored, None, None)
    assert (built.input, built.metadata, built.config) == (None, {DROPPED: True}, RolloutConfig())
    with_metadata = rollout_mapping.rollout_model(stored, None, {"metadata": {"k": 1}})
    assert with_metadata.metadata == {"k": 1, DROPPED: True}
    empty = row(RESOURCES_COLUMNS, resources_id="rs", version=1, create_at=1, update_at=1)
    assert rollout_mapping.resources_model(empty, None).resources == {}


@pytest.mark.parametrize(
    "beat,stamped,stored_time,known_at,expected",
    [
        (None, None, 4.0, 10, 4.0),
        (3.0, 11, 4.0, 10, 3.0),
        (3.0, 9, 4.0, 10, 4.0),
        (3.0, 9, None, None, 3.0),
        (None, 11, 4.0, 10, None),
    ],
)
def test_latest_stamp_is_the_sign_of_life(
    beat: float | None, stamped: int | None, stored_time: float | None, known_at: int | None, expected: float | None
) -> None:
    stored = row(ATTEMPT_COLUMNS, last_heartbeat_time=stored_time, heartbeat_stamped_at=known_at)
    assert rollout_mapping.sign_of_life(stored, beat, stamped) == expected


def logged(**changes: Any) -> NamedRow:
    data = b'{"attempt_id":"at-1","sequence_id":1,"trace_id":"t","span_id":"s","name":"n","status_code":"OK"}'
    values: dict[str, Any] = {
        "position": 9,
        "commit_id": 4,
        "stream": "rollout/ro-1",
        "version": 3,
        "command": 0,
        "type": "span.recorded",
        "shape": 1,
        "at": 2_500_000,
        "actor": "worker:w",
        "cause": None,
        "data": data.decode(),
        "body_hash": b"\x01\xff",
    }
    return row(log_queries.EVENT_COLUMNS, **values | changes)


def test_a_row_of_the_log_is_an_event() -> None:
    fact = SpanRecorded(attempt_id="at-1", sequence_id=1, trace_id="t", span_id="s", name="n", status_code="OK")
    assert log_queries.event_of(logged()) == Event(9, "rollout/ro-1", 3, 0, 2_500_000, "worker:w", None, fact)


def test_a_row_of_the_log_is_described_in_the_terms_of_the_api() -> None:
    described = rollout_mapping.history_event(log_queries.described(logged(), {"attributes": {}}))
    assert (described.number, described.position, described.at, described.body_hash) == (3, 9, 2.5, "01ff")
    assert described.data["span_id"] == "s"
    assert described.body == {"attributes": {}}
    assert type(described).model_validate(described.model_dump()) == described
    complete = rollout_mapping.logged_event(
        log_queries.described(logged(), None), stream="rollout/ro-1", commit_id=4, cursor="c"
    )
    assert (complete.stream, complete.commit_id, complete.cursor, complete.body) == ("rollout/ro-1", 4, "c", None)


@pytest.mark.parametrize("changes", [{"type": "rollout.teleported"}, {"shape": 99}])
def test_a_fact_of_a_newer_version_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(Incompatible):
        log_queries.event_of(logged(**changes))
    with pytest.raises(Incompatible):
        log_queries.described(logged(**changes), None)
