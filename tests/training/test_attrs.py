"""Conversion of nested data to attributes and back, and search of tags and links."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.models import Span
from store.training.tracing.span_attributes import (
    check_attributes_sanity,
    extract_links_from_attributes,
    extract_tags_from_attributes,
    filter_and_unflatten_attributes,
    filter_attributes,
    flatten_attributes,
    make_link_attributes,
    make_tag_attributes,
    query_linked_spans,
    sanitize_attribute_value,
    sanitize_attributes,
    unflatten_attributes,
)

FLATTENED: dict[str, tuple[Any, dict[str, Any]]] = {
    "dicts become dotted keys": ({"a": {"b": 1, "c": "x"}}, {"a.b": 1, "a.c": "x"}),
    "lists of dicts are numbered": ({"m": [{"r": "u"}, {"r": "a"}]}, {"m.0.r": "u", "m.1.r": "a"}),
    "lists of lists are numbered": ([[1, 2], [3]], {"0": [1, 2], "1": [3]}),
    "a list of one kind stays": ({"ids": [1, 2, 3], "s": ["a"]}, {"ids": [1, 2, 3], "s": ["a"]}),
    "what is empty vanishes": ({"a": {}, "b": [], "c": {"d": {}}, "e": 1}, {"e": 1}),
    "a scalar alone has no name": (5, {"": 5}),
    "none is a value": ({"a": None}, {"a": None}),
}


@pytest.mark.parametrize("case", FLATTENED)
def test_flattening(case: str) -> None:
    nested, flat = FLATTENED[case]
    assert flatten_attributes(nested) == flat


def test_lists_can_be_expanded() -> None:
    assert flatten_attributes({"ids": [1, 2]}, expand_leaf_lists=True) == {"ids.0": 1, "ids.1": 2}


@pytest.mark.parametrize("mixed", [[1, "a"], [True, 1], [1, 1.0]], ids=repr)
def test_a_list_of_several_kinds_is_taken_apart_with_a_warning(mixed: list[Any], caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        flat = flatten_attributes({"x": mixed})
    assert flat == {f"x.{index}": item for index, item in enumerate(mixed)}
    assert [type(value) for value in flat.values()] == [type(item) for item in mixed]
    assert "x is a list of" in caplog.text


def test_a_key_that_is_no_string_is_refused() -> None:
    with pytest.raises(ValueError, match="names of attributes must be strings"):
        flatten_attributes({"a": {1: 2}})


UNFLATTENED: dict[str, tuple[dict[str, Any], Any]] = {
    "digits from zero are a list": ({"a.0.b": 1, "a.1.b": 2}, {"a": [{"b": 1}, {"b": 2}]}),
    "in any order": ({"a.1": 2, "a.0": 1}, {"a": [1, 2]}),
    "with a hole they are names": ({"a.0": 1, "a.2": 2}, {"a": {"0": 1, "2": 2}}),
    "beside other names they are names": ({"a.0": 1, "a.b": 2}, {"a": {"0": 1, "b": 2}}),
    "01 is a name": ({"a.0": 1, "a.01": 2}, {"a": {"0": 1, "01": 2}}),
    "what is nested wins": ({"a.b": 2, "a": 1}, {"a": {"b": 2}}),
    "it wins in either order": ({"a": 1, "a.b": 2}, {"a": {"b": 2}}),
    "the top may be a list": ({"0": 1, "1": 2}, [1, 2]),
    "nothing is nothing": ({}, {}),
}


@pytest.mark.parametrize("case", UNFLATTENED)
def test_unflattening(case: str) -> None:
    flat, nested = UNFLATTENED[case]
    assert unflatten_attributes(flat) == nested


NAMES = st.text("abc", min_size=1, max_size=3)
SCALARS = st.integers() | st.text("xyz") | st.booleans()
NESTED = st.recursive(
    SCALARS | st.lists(st.integers(), min_size=1, max_size=3),
    lambda inner: (
        st.dictionaries(NAMES, inner, min_size=1, max_size=3)
        | st.lists(st.dictionaries(NAMES, inner, min_size=1, max_size=2), min_size=1, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(NAMES, NESTED, max_size=4))
@pytest.mark.slow
def test_unflattening_restores_flattened_attributes(nested: dict[str, Any]) -> None:
    assert unflatten_attributes(flatten_attributes(nested)) == nested


def test_filtering_returns_the_prefix_and_its_descendants() -> None:
    attributes = {"p": 1, "p.a": 2, "pa": 3, "q.p.a": 4}
    assert filter_attributes(attributes, "p") == {"p": 1, "p.a": 2}
    assert filter_and_unflatten_attributes({"p.a.0": 2, "pa": 3}, "p") == {"a": [2]}
    with pytest.raises(ValueError, match="p is itself an attribute"):
        filter_and_unflatten_attributes(attributes, "p")


SANITIZED: list[tuple[Any, Any]] = [
    ("a", "a"),
    (1, 1),
    (True, True),
    (1.5, 1.5),
    (["a", "b"], ["a", "b"]),
    ([True, False], [True, False]),
    ([1, True], [1, 1]),
    ([1, 2.5], [1.0, 2.5]),
    ((1, 2), [1, 2]),
    ([], []),
    (["a", 1], '["a", 1]'),
    (None, "null"),
    ({"a": [1]}, '{"a": [1]}'),
    ({"ä": 1}, '{"ä": 1}'),
]


@pytest.mark.parametrize("value, expected", SANITIZED, ids=repr)
def test_values_are_converted_to_types_of_span_attributes(value: Any, expected: Any) -> None:
    sanitized = sanitize_attribute_value(value)
    assert sanitized == expected
    assert type(sanitized) is type(expected)
    if isinstance(sanitized, list):
        assert [type(item) for item in sanitized] == [type(item) for item in expected]


def test_values_outside_of_json_become_text_if_forced() -> None:
    assert sanitize_attributes({"x": {"at": 1j}}) == {"x": '{"at": "1j"}'}
    assert sanitize_attribute_value({(1, 2): 3}) == "{(1, 2): 3}"
    with pytest.raises(ValueError, match="do not support values of type complex, and JSON cannot encode this value"):
        sanitize_attribute_value(1j, force=False)


def test_attributes_that_no_span_holds_are_found() -> None:
    bad: list[dict[Any, Any]] = [{"a": None}, {"a": {"b": 1}}, {"a": ["x", 1]}, {1: "a"}, {"a": object()}]
    for attributes in bad:
        with pytest.raises(ValueError, match="attribute"):
            check_attributes_sanity(attributes)


def test_sound_attributes_are_sound() -> None:
    check_attributes_sanity({"a": 1, "b": "x", "c": [1, 2], "d": [1, 2.0], "e": []})


def test_tags_come_back_in_their_order() -> None:
    tags = [f"t{index}" for index in range(11)]
    assert extract_tags_from_attributes({"other": 1} | make_tag_attributes(tags)) == tags
    assert extract_tags_from_attributes({"agentlightning.tag.3": "late", "agentlightning.tag.1": "early"}) == [
        "early",
        "late",
    ]
    assert extract_tags_from_attributes({"agentlightning.tag": "x"}) == []


def test_links_come_back() -> None:
    links = {"gen_ai.response.id": "r1", "span_id": "ab"}
    attributes = make_link_attributes(links)
    assert attributes["agentlightning.link.0.key_match"] == "gen_ai.response.id"
    assert attributes["agentlightning.link.1.value_match"] == "ab"
    assert extract_links_from_attributes(attributes) == links
    with pytest.raises(ValueError, match="use a string"):
        make_link_attributes({"a": 1})  # pyright: ignore[reportArgumentType]


def test_linked_spans_match_every_link() -> None:
    one = Span.from_attributes(attributes={"gen_ai.response.id": "r1", "n": 1}, trace_id="t" * 32, span_id="1" * 16)
    two = Span.from_attributes(attributes={"gen_ai.response.id": "r2"}, trace_id="t" * 32, span_id="2" * 16)
    assert query_linked_spans([one, two], {"gen_ai.response.id": "r2"}) == [two]
    assert query_linked_spans([one, two], {"trace_id": "t" * 32}) == [one, two]
    assert query_linked_spans([one, two], {"trace_id": "t" * 32, "span_id": "1" * 16}) == [one]
    assert query_linked_spans([one, two], {"n": "1"}) == []
    assert query_linked_spans([one, two], {}) == [one, two]
