"""Errors, models, pages and paths are equal after a transfer."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from store import errors
from store.errors import Closed, Incompatible, Invalid, StoreError, Unavailable
from store.models import Attempt, AttemptedRollout, PaginatedResult, Rollout, Span
from store.models.queries import PastQuery
from store.server.errors import Refused, refusal
from store.wire import bodies, encoding, paths
from store.wire.errors import FIELDS, error_body, error_of, status_of
from tests.errors import EXAMPLES


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_comes_back_as_itself(error: StoreError) -> None:
    again = error_of(status_of(error), orjson.dumps(error_body(error)), "GET /")
    assert type(again) is type(error)
    assert (str(again), vars(again), again.retryable) == (str(error), vars(error), error.retryable)
    assert str(pickle.loads(pickle.dumps(again))) == str(error)


def test_every_error_of_the_tree_can_cross_the_wire() -> None:
    tree = {getattr(errors, name) for name in errors.__all__}
    assert set(FIELDS) == tree == {type(error) for error in EXAMPLES}
    for error in EXAMPLES:
        assert set(FIELDS[type(error)]) == set(vars(error)), type(error)


def test_an_error_of_ones_own_arrives_as_the_class_it_is_made_of() -> None:
    error = Refused("limit", "Limit must be greater than 0 or -1 for no limit")
    status, body, _ = refusal(error)
    again = error_of(status, body, "GET /")
    assert (type(again), str(again), status) == (Invalid, str(error), 400)


def test_only_retryable_errors_are_server_errors() -> None:
    for error in EXAMPLES:
        assert (status_of(error) >= 500) == (error.retryable or isinstance(error, Closed))


@pytest.mark.parametrize(
    "status,body,kind",
    [
        (422, b'{"detail":[{"loc":["body","rollouts",0,"mode"],"msg":"bad"}]}', Invalid),
        (422, b'{"detail":[]}', Invalid),
        (422, b'{"detail":null}', Invalid),
        (422, b"", Invalid),
        (500, b"Internal Server Error", Unavailable),
        (502, b"<html>", Unavailable),
        (404, b'{"detail":"Not Found"}', Incompatible),
        (418, b"[]", Invalid),
        (400, b'{"detail":5,"error_type":"NotFound"}', Invalid),
        (400, b'{"detail":"x","error_type":"Exception"}', Invalid),
    ],
)
def test_an_answer_of_another_server_is_an_error_too(status: int, body: bytes, kind: type[StoreError]) -> None:
    error = error_of(status, body, "GET /v1/agl/health")
    assert type(error) is kind
    assert str(error)


def test_a_fault_names_the_field() -> None:
    error = error_of(422, b'{"detail":[{"loc":["body","rollouts",0,"mode"],"msg":"bad"}]}', "POST /")
    assert str(error) == "rollouts.0.mode: bad"


def test_encoded_answers_equal_the_json_of_the_models() -> None:
    span = Span.from_attributes(attributes={"a": 1, "b": 1.0, "c": True, "d": ["x"]}, rollout_id="r", parent_id="p")
    open_span = Span.model_validate({**dict(span), "kind": {"x": None}})
    attempt = Attempt(rollout_id="r", attempt_id="a", sequence_id=1, start_time=1.5)
    attempted = AttemptedRollout(rollout_id="r", input={"é": [None]}, start_time=1.25, attempt=attempt)
    for model in (span, open_span, attempt, attempted):
        assert orjson.loads(encoding.dumps(model)) == orjson.loads(model.model_dump_json())
    assert encoding.decode_span_or_none(encoding.dumps(open_span)) == open_span
    assert encoding.decode_span_or_none(b"null") is None


def test_a_rollout_has_the_class_its_keys_say() -> None:
    attempt = Attempt(rollout_id="r", attempt_id="a", sequence_id=1, start_time=1.5)
    attempted = AttemptedRollout(rollout_id="r", input=1, start_time=1.25, attempt=attempt)
    plain = Rollout(rollout_id="s", input=2, start_time=1.25)
    page: PaginatedResult[Any] = PaginatedResult(items=[attempted, plain], limit=-1, offset=0, total=2)
    again = encoding.decode_rollout_page(encoding.dumps(page))
    assert again == page
    assert [type(rollout) for rollout in again] == [AttemptedRollout, Rollout]
    assert pickle.loads(pickle.dumps(again)) == page


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**64, "\ud800", "\x00", None, 1.0, {"a": [1]}])
def test_a_request_hides_nothing_that_a_store_refuses(value: Any) -> None:
    sent = encoding.dumps_exact({"input": value})
    received = json.loads(sent)["input"]
    assert received == value or received != received  # noqa: PLR0124 - NaN is not itself
    assert type(received) is type(value)


def test_values_outside_of_json_are_not_sent() -> None:
    with pytest.raises(TypeError, match="set is not JSON"):
        encoding.dumps_exact({"input": {1}})


@pytest.mark.parametrize("moment", [5, datetime(2026, 11, 20, 2, tzinfo=UTC), None])
def test_a_moment_travels_in_queries_and_bodies(moment: Any) -> None:
    sent = bodies.moment_on_wire(moment)
    assert PastQuery.model_validate_json(orjson.dumps({"as_at": sent})).as_at == moment
    if moment is not None:
        assert PastQuery.model_validate({"as_at": str(sent)}).as_at == moment


def test_ids_are_one_segment_of_a_path() -> None:
    assert (
        paths.path(paths.ATTEMPT, rollout_id="a/b", attempt_id="ü ?") == "/v1/agl/rollouts/a%2Fb/attempts/%C3%BC%20%3F"
    )
