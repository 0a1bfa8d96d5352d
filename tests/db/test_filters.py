"""Valid queries and their meaning for one row; `test_pages` compares the SQL with it."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from store.db.queries import filters
from store.db.queries.filters import ATTEMPTS, RESOURCES, ROLLOUTS, SPANS, WORKERS, FilterCondition, Noun, Values
from store.errors import Invalid
from store.models import Attempt, ResourcesUpdate, Rollout, Span, Worker

NOUNS = [ROLLOUTS, ATTEMPTS, SPANS, RESOURCES, WORKERS]


def is_scalar(annotation: Any) -> bool:
    if get_origin(annotation) in {Union, UnionType}:
        return all(is_scalar(part) for part in get_args(annotation))
    if get_origin(annotation) is Literal:
        return True
    return annotation in {str, int, float, NoneType}


def workers(*statuses: tuple[str, str]) -> list[Values]:
    return [
        {"worker_id": worker_id, "status": status, "first_position": position}
        for position, (worker_id, status) in enumerate(statuses, start=1)
    ]


@pytest.mark.parametrize(
    "noun,model",
    [(ROLLOUTS, Rollout), (ATTEMPTS, Attempt), (SPANS, Span), (RESOURCES, ResourcesUpdate), (WORKERS, Worker)],
    ids=lambda value: getattr(value, "name", None),
)
def test_every_scalar_field_of_the_model_can_be_sorted_by(noun: Noun, model: type[BaseModel]) -> None:
    scalars = {name for name, field in model.model_fields.items() if is_scalar(field.annotation)}
    # Rollouts also sort by what is no field of the model; attempts do not sort by their rewards.
    more = {"group", "step", "label", "plan_key", "resources_version"} if noun is ROLLOUTS else set[str]()
    less = {"reward"} if noun is ATTEMPTS else set[str]()
    assert {name for name, field in noun.fields.items() if field.kind != "matches"} == scalars - less | more


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.name)
def test_only_fields_that_end_in_time_are_times(noun: Noun) -> None:
    assert {name for name, field in noun.fields.items() if field.kind == "time"} == {
        name for name in noun.fields if name.endswith("_time")
    }


@pytest.mark.parametrize(
    "argument,value",
    [
        ("filter_logic", "xor"),
        ("filter_logic", None),
        ("sort_order", "down"),
        ("sort_by", ""),
        ("sort_by", "first_position"),
        ("sort_by", "heartbeat_stats"),
        ("sort_by", "status; --"),
        ("limit", -2),
        ("limit", True),
        ("limit", 1.0),
        ("limit", None),
        ("offset", -1),
        ("offset", "1"),
    ],
)
def test_invalid_query_argument_is_refused_by_name(argument: str, value: Any) -> None:
    with pytest.raises(Invalid) as refused:
        filters.query(WORKERS, **{argument: value})
    assert refused.value.field == argument


@pytest.mark.parametrize(
    "condition,field",
    [
        (FilterCondition("status", "in", "idle"), "status_in"),
        (FilterCondition("status", "in", ["idle", 1]), "status_in"),
        (FilterCondition("status", "in", ["\x00"]), "status_in"),
        (FilterCondition("worker_id", "contains", 7), "worker_id_contains"),
        (FilterCondition("worker_id", "contains", "\ud800"), "worker_id_contains"),
        (FilterCondition("worker_id", "is", "a\x00"), "worker_id"),
    ],
)
def test_values_that_no_database_can_be_asked_for_are_refused_by_name(condition: FilterCondition, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        filters.query(WORKERS, [condition])
    assert refused.value.field == field


def test_a_refused_sort_names_the_fields_that_there_are() -> None:
    with pytest.raises(Invalid) as refused:
        filters.query(RESOURCES, sort_by="resources")
    assert "resources_id, create_time, update_time, version" in str(refused.value)


def test_match_of_a_scanner_is_a_condition_and_no_order() -> None:
    query = filters.query(ROLLOUTS, [FilterCondition("scan_match", "is", "hacks@v1")])
    assert [filters.matches(query, {"scan_match": names}) for names in (["a@v1", "hacks@v1"], ["hacks@v2"], [])] == [
        True,
        False,
        False,
    ]
    with pytest.raises(Invalid, match="name@version"):
        filters.query(ROLLOUTS, [FilterCondition("scan_match", "is", "hacks")])
    with pytest.raises(Invalid, match="sort_by"):
        filters.query(ROLLOUTS, sort_by="scan_match")


def test_a_condition_of_none_is_none() -> None:
    asked = filters.query(
        WORKERS, [FilterCondition("status", "in", None), FilterCondition("worker_id", "contains", None)]
    )
    assert asked.conditions == ()


@pytest.mark.parametrize(
    "conditions,logic,expected",
    [
        ([], "and", "abc"),
        ([], "or", "abc"),
        ([FilterCondition("status", "in", [])], "and", ""),
        ([FilterCondition("status", "in", []), FilterCondition("worker_id", "is", "b")], "or", "b"),
        ([FilterCondition("status", "in", ["busy"]), FilterCondition("worker_id", "contains", "b")], "and", "b"),
        ([FilterCondition("status", "in", ["idle"]), FilterCondition("worker_id", "contains", "b")], "or", "bc"),
        ([FilterCondition("worker_id", "contains", "")], "and", "abc"),
        ([FilterCondition("worker_id", "contains", "B")], "and", ""),
        ([FilterCondition("worker_id", "is", "")], "and", ""),
    ],
)
def test_conditions_are_one_pool_that_the_logic_joins(
    conditions: list[FilterCondition], logic: str, expected: str
) -> None:
    asked = filters.query(WORKERS, conditions, filter_logic=logic)
    rows = workers(("a", "busy"), ("b", "busy"), ("c", "idle"))
    assert "".join(row["worker_id"] for row in rows if filters.matches(asked, row)) == expected


def test_null_contains_nothing_and_equals_nothing() -> None:
    row: Values = {"parent_id": None}
    for condition in (FilterCondition("parent_id", "contains", ""), FilterCondition("parent_id", "is", "")):
        assert not filters.matches(filters.query(SPANS, [condition]), row)


@pytest.mark.parametrize("sort_order,expected", [("asc", "bdac"), ("desc", "acbd")])
def test_equals_keep_the_order_of_creation_in_both_directions(sort_order: str, expected: str) -> None:
    rows = workers(("a", "idle"), ("b", "busy"), ("c", "idle"), ("d", "busy"))
    asked = filters.query(WORKERS, sort_by="status", sort_order=sort_order)
    assert "".join(row["worker_id"] for row in filters.arranged(asked, rows[::-1])) == expected


@pytest.mark.parametrize("sort_order", ["asc", "desc"])
def test_spans_of_one_number_go_by_their_times_and_then_as_they_came(sort_order: str) -> None:
    times: list[tuple[float | None, float | None]] = [(None, None), (9.0, 9.5), (5.0, None), (5.0, 6.0), (5.0, 6.0)]
    rows: list[Values] = [
        {"sequence_id": 1, "start_time": start, "end_time": end, "position": position}
        for position, (start, end) in enumerate(times)
    ]
    asked = filters.query(SPANS, sort_by="sequence_id", sort_order=sort_order)
    assert [row["position"] for row in filters.arranged(asked, rows)] == [3, 4, 2, 1, 0]


@pytest.mark.parametrize(
    "limit,offset,expected", [(-1, 0, [0, 1, 2]), (-1, 2, [2]), (2, 0, [0, 1]), (2, 2, [2]), (0, 0, []), (5, 9, [])]
)
def test_page_is_a_slice_of_the_matching_rows(limit: int, offset: int, expected: list[int]) -> None:
    rows: list[Values] = [{"number": number} for number in range(3)]
    page = filters.page(filters.query(WORKERS, limit=limit, offset=offset), rows)
    assert [row["number"] for row in page] == expected


def test_queries_share_a_statement_when_only_their_values_differ() -> None:
    def shape(*conditions: FilterCondition, **more: Any) -> Any:
        return filters.shape(filters.query(WORKERS, conditions, **more))

    one = shape(FilterCondition("status", "in", ["idle"]), limit=5)
    assert one is not None
    assert one == shape(FilterCondition("status", "in", ["busy", "idle"]), limit=7, offset=3)
    assert one != shape(FilterCondition("status", "in", []), limit=5)
    assert one != shape(FilterCondition("status", "in", ["idle"]))
    assert one != shape(FilterCondition("status", "in", ["idle"]), limit=5, sort_by="status")
    assert shape(FilterCondition("worker_id", "contains", "a")) is None
