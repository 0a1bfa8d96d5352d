"""JSON is shown as a tree that never grows beyond its budget."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from store.dashboard.views.json_tree import Node, tree

_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)


def _size(nodes: list[Node]) -> int:
    return sum(len(node.name) + len(node.text) + _size(node.parts) for node in nodes)


def _depth(nodes: list[Node]) -> int:
    return max((1 + _depth(node.parts) for node in nodes), default=0)


def test_an_object_is_shown_by_its_parts() -> None:
    nodes = tree({"a": {"b": [1, "two"]}, "c": None})
    assert [(node.name, node.kind, node.count) for node in nodes] == [("a", "object", 1), ("c", "value", 4)]
    assert [(node.name, node.text) for node in nodes[0].parts[0].parts] == [("0", "1"), ("1", "two")]


def test_a_list_of_numbers_is_one_line() -> None:
    (node,) = tree({"ids": list(range(1000))}, longest=20)
    assert (node.parts, node.count, node.is_cut) == ([], 1000, True)
    assert node.text == "[0,1,2,3,4,5,6,7,8,9"


def test_a_long_text_is_cut_and_says_how_long_it_is() -> None:
    (node,) = tree({"text": "x" * 50}, longest=10)
    assert (node.text, node.count, node.is_cut) == ("x" * 10, 50, True)


def test_tree_omits_deeply_nested_values() -> None:
    value: Any = "end"
    for _ in range(500):
        value = {"down": value}
    assert _depth(tree(value)) < 30


@settings(deadline=None)
@given(_JSON, st.integers(0, 60))
def test_no_tree_is_larger_than_its_budget(value: Any, budget: int) -> None:
    # The name of the part that crosses the border is still shown.
    assert _size(tree(value, budget=budget)) <= budget + 30
