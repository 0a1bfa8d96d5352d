"""The meaning of span attributes. The store accepts any attribute."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.semconv import ANNOTATION_SPAN, EMPTY_SUMMARY, FEEDS, invalid_rewards, summarise


def rewards(attributes: dict[str, Any], name: str = "step") -> tuple[tuple[str, float], ...]:
    return summarise(name, attributes).rewards


def test_a_span_that_says_nothing_costs_nothing() -> None:
    assert summarise("step", {"http.method": "GET", "gen_ai.system": "openai"}) is EMPTY_SUMMARY


def test_a_reward_has_its_dimensions_in_order_the_primary_one_first() -> None:
    attributes = {
        "agentlightning.reward.1.name": "style",
        "agentlightning.reward.1.value": 1,
        "agentlightning.reward.0.value": 0.5,
        "agentlightning.reward.0.name": "correct",
    }
    assert rewards(attributes) == (("correct", 0.5), ("style", 1.0))


def test_a_reward_counts_on_a_span_of_any_name() -> None:
    attributes = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 1.0}
    assert rewards(attributes, name="anything") == (("primary", 1.0),)


def test_a_reward_without_a_name_is_the_primary_one() -> None:
    attributes = {"agentlightning.reward.0.value": 2, "agentlightning.reward.1.value": 3}
    assert rewards(attributes) == (("primary", 2.0), ("1", 3.0))


@pytest.mark.parametrize("malformed", ["0.5", "", [1.0], None, {}, math.nan, math.inf, -math.inf, 10**400])
def test_a_malformed_reward_is_no_reward(malformed: Any) -> None:
    assert rewards({"agentlightning.reward.0.value": malformed, "agentlightning.reward.0.name": "x"}) == ()
    assert rewards({"reward": malformed}, name=ANNOTATION_SPAN) == ()
    assert rewards({"agentops.task.output": {"type": "reward", "value": malformed}}) == ()


def test_a_malformed_further_dimension_leaves_the_others() -> None:
    attributes = {f"agentlightning.reward.{i}.value": value for i, value in enumerate([1.0, "x", 3.0])}
    assert rewards(attributes) == (("primary", 1.0), ("2", 3.0))


def test_names_that_look_like_a_reward_are_none() -> None:
    assert rewards({"agentlightning.reward_model": "rm-1", "agentlightning.reward": 1.0}) == ()


@pytest.mark.parametrize("key", ["agentops.task.output", "agentops.entity.output"])
@pytest.mark.parametrize("form", [json.dumps, dict])
def test_a_reward_in_the_manner_of_agentops_counts_as_object_and_as_text(key: str, form: Any) -> None:
    assert rewards({key: form({"type": "reward", "value": 0.25})}) == (("primary", 0.25),)
    assert rewards({key: form({"type": "reward", "value": None})}) == ()
    assert rewards({key: form({"type": "answer", "value": 0.25})}) == ()


@pytest.mark.parametrize("text", ['{"type": "reward"', '"reward"', '["reward"]', '[{"reward"' * 5_000])
def test_an_output_that_only_mentions_a_reward_is_none(text: str) -> None:
    assert rewards({"agentops.task.output": text}) == ()


def test_the_older_reward_counts_only_on_an_annotation() -> None:
    assert rewards({"reward": 1}, name=ANNOTATION_SPAN) == (("primary", 1.0),)
    assert rewards({"reward": 1}, name="step") == ()


def test_the_first_manner_of_giving_a_reward_wins() -> None:
    attributes = {
        "reward": 3.0,
        "agentops.task.output": '{"type": "reward", "value": 2.0}',
        "agentlightning.reward.0.value": 1.0,
    }
    assert rewards(attributes, name=ANNOTATION_SPAN) == (("primary", 1.0),)
    del attributes["agentlightning.reward.0.value"]
    assert rewards(attributes, name=ANNOTATION_SPAN) == (("primary", 2.0),)


@pytest.mark.parametrize("asked,answered", [("input_tokens", "output_tokens"), ("prompt_tokens", "completion_tokens")])
def test_tokens_are_counted_under_both_their_names(asked: str, answered: str) -> None:
    summary = summarise("chat", {f"gen_ai.usage.{asked}": 12, f"gen_ai.usage.{answered}": 34.0})
    assert (summary.tokens_in, summary.tokens_out) == (12, 34)
    assert isinstance(summary.tokens_out, int)


@pytest.mark.parametrize("malformed", [-1, 1.5, "12", math.nan, None, 2**53 + 2, 10**400])
def test_a_malformed_count_of_tokens_is_none(malformed: Any) -> None:
    assert summarise("chat", {"gen_ai.usage.input_tokens": malformed}).tokens_in is None


def test_a_usable_value_wins_over_a_malformed_one_of_higher_rank() -> None:
    attributes = {"gen_ai.usage.input_tokens": "?", "gen_ai.usage.prompt_tokens": 5, "gen_ai.response.model": ""}
    summary = summarise("chat", {**attributes, "gen_ai.request.model": "m"})
    assert (summary.tokens_in, summary.model) == (5, "m")


def test_the_model_that_answered_wins_over_the_one_asked_for() -> None:
    attributes = {"gen_ai.request.model": "m", "gen_ai.response.model": "m-2024", "gen_ai.response.id": "r-1"}
    summary = summarise("chat", attributes)
    assert (summary.model, summary.response_id) == ("m-2024", "r-1")


def test_a_span_with_a_node_is_a_result_or_a_tools_result_unless_it_names_its_kind() -> None:
    node = {"agl.node_id": "Trader", "agl.scope": "AAPL", "agl.parent_node_id": "start"}
    summary = summarise("node", {**node, "agl.phase": "trade", "agl.node_exec": "7"})
    assert (summary.kind, summary.node_id, summary.scope) == ("result", "Trader", "AAPL")
    assert (summary.parent_node_id, summary.phase, summary.node_exec) == ("start", "trade", "7")
    assert summarise("node", {**node, "tool.name": "search"}).kind == "tool_result"
    assert summarise("node", {**node, "agl.kind": "thought"}).kind == "thought"


def test_a_span_without_a_node_has_no_kind() -> None:
    assert summarise("tool", {"tool.name": "search", "agl.kind": "thought"}).kind is None


def test_rewards_that_are_not_finite_are_listed() -> None:
    values: list[Any] = [0.5, "NaN", math.inf, "0.7"]
    attributes: dict[str, Any] = {f"agentlightning.reward.{index}.value": value for index, value in enumerate(values)}
    attributes["agentlightning.reward.1.name"] = "style"
    assert invalid_rewards(attributes) == (("style", "NaN"), ("2", "inf"), ("3", "0.7"))
    assert invalid_rewards({"agentlightning.reward.0.value": 1, "other": "NaN"}) == ()


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just('{"type": "reward"'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
known_names = st.sampled_from([*(name for names in FEEDS.values() for name in names), "agentlightning.reward.1.value"])


@given(st.sampled_from([ANNOTATION_SPAN, "step"]), st.dictionaries(known_names | st.text(max_size=5), anything))
@pytest.mark.slow
def test_no_attributes_whatever_break_the_summary(name: str, attributes: dict[str, Any]) -> None:
    summary = summarise(name, attributes)
    assert all(math.isfinite(value) for _, value in summary.rewards)
    assert summary.tokens_in is None or 0 <= summary.tokens_in <= 2**53
