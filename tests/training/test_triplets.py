"""Spans become triplets: spans of calls, duplicates, and the calls of rewards."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from store.adapters.records import Dropped, Lost, Triplet
from store.adapters.rewards import RewardMatchPolicy
from store.adapters.tree import TraceTree
from store.adapters.triplets import LlmProxyTraceToTriplet, TracerTraceToTriplet
from store.errors import Invalid
from store.models import Score, ScoreError, Span
from tests.training.traced import agent, call, reward, span, two_agents

LINK = "agentlightning.link.0"


def link(key: str, value: str) -> dict[str, Any]:
    return {f"{LINK}.key_match": key, f"{LINK}.value_match": value}


def summary(triplets: list[Triplet]) -> list[tuple[Any, Any, float | None]]:
    return [(triplet.metadata["response_id"], triplet.metadata["agent_name"], triplet.reward) for triplet in triplets]


def rewards_of(spans: list[Span], policy: str = "first_occurrence") -> dict[str, float | None]:
    """The reward of each call, by the id of its span."""
    report = TracerTraceToTriplet(reward_match=policy).adapt_report(spans)
    return {triplet.metadata["span_ids"][0]: triplet.reward for triplet in report.triplets}


def inside() -> list[Span]:
    """The example with its last reward under the root."""
    return [*two_agents()[:-1], reward("fin", 19.5, 1.0, parent="root")]


STAR, PLANNER = ("R1", "*", 0.1), ("R1", "planner", 0.1)
WRITER = [("R2", "writer", None), ("R3", "writer", 1.0)]
UNREWARDED = [("R1", "planner", None), ("R2", "writer", None), ("R3", "writer", None)]
TABLE: list[tuple[dict[str, Any], list[Span], list[Any], list[Any] | None]] = [
    ({}, two_agents(), [STAR, *WRITER], [PLANNER, *WRITER]),
    ({}, two_agents()[:-1], [PLANNER, WRITER[0], ("R3", "writer", None)], None),
    ({}, inside(), [PLANNER, *WRITER], None),
    ({"agent_match": "writer"}, two_agents(), WRITER, None),
    ({"agent_match": "planner"}, two_agents(), [], [PLANNER]),
    ({"agent_match": "planner"}, two_agents()[:-1], [PLANNER], None),
    ({"agent_match": "planner", "repair_hierarchy": False}, two_agents(), [], None),
    (
        {"reward_match": "first_sibling"},
        two_agents(),
        [("R1", "*", None), *UNREWARDED[1:]],
        [PLANNER, *UNREWARDED[1:]],
    ),
    ({"reward_match": "first_sibling"}, two_agents()[:-1], UNREWARDED, [PLANNER, *UNREWARDED[1:]]),
]


@pytest.mark.parametrize("settings, spans, upstream, ours", TABLE)
def test_strict_upstream_equals_agent_lightning_and_default_repairs_levels(
    settings: dict[str, Any], spans: list[Span], upstream: list[Any], ours: list[Any] | None
) -> None:
    assert summary(TracerTraceToTriplet(**settings, strict_upstream=True).adapt(spans)) == upstream
    assert summary(TracerTraceToTriplet(**settings)(spans)) == (upstream if ours is None else ours)


def test_a_second_reward_goes_back_to_the_call_before_and_a_third_is_lost() -> None:
    calls = [call("x1", 1, 2), call("x2", 3, 4)]
    spans = [*calls, reward("r1", 5, 0.1), reward("r2", 6, 0.2), reward("r3", 7, 0.3)]
    assert rewards_of(spans) == {"x1": 0.2, "x2": 0.1}
    report = TracerTraceToTriplet().adapt_report(spans)
    assert report.lost_rewards == [Lost("r3", 0.3, "no_call_before")]
    assert report.reasons() == {"no_call_before": 1}


def test_a_reward_at_the_end_of_a_call_is_its_and_one_within_it_is_not() -> None:
    assert rewards_of([call("x", 1, 2), reward("r", 2, 0.5)]) == {"x": 0.5}
    assert rewards_of([call("x", 1, 2), call("y", 3, 9), reward("r", 5, 0.5)]) == {"x": 0.5, "y": None}


def test_rewards_alone_give_nothing() -> None:
    assert TracerTraceToTriplet().adapt([reward("r", 1, 1.0)]) == []


@pytest.mark.parametrize(
    "policy, expected",
    [
        ("first_occurrence", {"x1": None, "x2": 0.1, "y": 0.9}),
        ("first_sibling", {"x1": None, "x2": 0.1, "y": None}),
        ("final_only", {"x1": None, "x2": None, "y": 0.9}),
        ("broadcast", {"x1": 0.9, "x2": 0.9, "y": 0.9}),
    ],
)
def test_each_policy_gives_rewards_as_it_says(policy: str, expected: dict[str, float | None]) -> None:
    spans = [
        agent("A", 0, 5, "a"),
        call("x1", 1, 2, parent="A"),
        call("x2", 2, 3, parent="A"),
        reward("r1", 4, 0.1, parent="A"),
        agent("B", 6, 9, "b"),
        call("y", 7, 8, parent="B"),
        reward("r2", 10, 0.9),
    ]
    assert rewards_of(spans, policy) == expected


@pytest.mark.parametrize("policy", [policy.value for policy in RewardMatchPolicy])
def test_a_reward_that_names_its_call_goes_there_whatever_the_policy(policy: str) -> None:
    calls = [call("x1", 1, 2, response_id="R1"), call("x2", 3, 4, response_id="R2"), call("x3", 5, 6)]
    for attributes in (link("gen_ai.response.id", "R1"), link("span_id", "x1")):
        assert rewards_of([*calls, reward("r", 7, 0.7, attributes=attributes)], policy)["x1"] == 0.7
        assert rewards_of([*calls, reward("r", 7, 0.7, attributes=attributes)], policy)["x3"] is None
    on_the_call = call("x4", 7, 8, attributes={"agentlightning.reward.0.value": 0.4})
    assert rewards_of([*calls, on_the_call], policy)["x4"] == 0.4
    assert rewards_of([*calls, on_the_call], policy)["x3"] is None


def test_reward_linked_to_a_parent_span_goes_to_its_last_call() -> None:
    spans = [
        *(agent("A", 0, 5, "a"), call("x1", 1, 2, parent="A"), call("x2", 3, 4, parent="A"), call("y", 6, 7)),
        reward("r", 8, 0.5, attributes=link("span_id", "A")),
    ]
    assert rewards_of(spans) == {"x1": None, "x2": 0.5, "y": None}


def test_a_reward_whose_link_leads_nowhere_is_lost_and_not_guessed_at() -> None:
    spans = [call("x", 1, 2), reward("r", 3, 0.5, attributes=link("gen_ai.response.id", "R9"))]
    report = TracerTraceToTriplet().adapt_report(spans)
    assert [triplet.reward for triplet in report.triplets] == [None]
    assert report.lost_rewards == [Lost("r", 0.5, "linked_call_missing")]


def test_no_call_gets_two_rewards() -> None:
    here = link("span_id", "x")
    spans = [call("x", 1, 2), reward("r1", 3, 0.1, attributes=here), reward("r2", 4, 0.2, attributes=here)]
    report = TracerTraceToTriplet().adapt_report([*spans, reward("r3", 5, 0.3)])
    assert report.triplets[0].reward == 0.1
    assert [loss.reason for loss in report.lost_rewards] == ["call_has_a_reward", "no_call_before"]


def test_all_dimensions_of_a_reward_are_kept() -> None:
    style = {"agentlightning.reward.1.name": "style", "agentlightning.reward.1.value": -0.5}
    (triplet,) = TracerTraceToTriplet().adapt([call("x", 1, 2), reward("r", 3, 1.0, attributes=style)])
    assert (triplet.reward, triplet.metadata["rewards"]) == (1.0, {"primary": 1.0, "style": -0.5})


def test_the_calls_of_a_judge_are_left_out_unless_wanted() -> None:
    spans = [
        call("x", 1, 2, response_id="R1"),
        span(
            "r",
            3,
            9,
            name="agentlightning.operation",
            attributes={"agentlightning.operation.name": "agentlightning.reward"},
        ),
        call("j", 4, 5, response_id="R2", parent="r"),
    ]
    report = TracerTraceToTriplet().adapt_report(spans)
    assert summary(report.triplets) == [("R1", "*", None)]
    assert report.dropped == [Dropped("j", "in_a_reward", "")]
    assert len(TracerTraceToTriplet(exclude_llm_call_in_reward=False).adapt(spans)) == 2


def test_an_agent_that_does_not_match_hides_its_calls_inside_one_that_does() -> None:
    spans = [
        agent("A", 0, 20, "planner"),
        call("x", 1, 2, parent="A"),
        agent("B", 3, 9, "critic", parent="A"),
        call("y", 4, 5, parent="B"),
        agent("C", 6, 8, "planner", parent="B"),
        call("z", 7, 7.5, parent="C"),
    ]
    report = TracerTraceToTriplet(agent_match="plan").adapt_report(spans)
    assert [triplet.metadata["span_ids"] for triplet in report.triplets] == [["x"], ["z"]]
    assert report.dropped == [Dropped("y", "other_agent", "")]


@pytest.mark.parametrize(
    "attributes",
    [
        {"agent.name": "me"},
        {"agentops.span.kind": "agent", "operation.name": "me"},
        {"recipient_agent_type": "me"},
        {"langchain.chain.type": "me"},
        {"executor.id": "me"},
        {"type": "agent", "agentlightning.operation.input.name": "me"},
        {"lc_name": "me"},
    ],
)
def test_an_agent_is_known_by_the_ways_of_each_framework(attributes: dict[str, str]) -> None:
    spans = [span("A", 0, 9, name="langchain.Chain.x", attributes=attributes), call("x", 1, 2, parent="A")]
    (triplet,) = TracerTraceToTriplet().adapt(spans)
    assert triplet.metadata["agent_name"] == "me"


def test_nested_spans_with_another_answer_are_calls_and_without_an_id_they_are_not() -> None:
    spans = [
        call("x", 1, 9, response_id="R1"),
        call("y", 2, 3, response_id="R2", parent="x"),
        call("z", 4, 5, parent="x"),
    ]
    report = TracerTraceToTriplet().adapt_report(spans)
    assert summary(report.triplets) == [("R1", "*", None), ("R2", "*", None)]
    assert report.dropped == [Dropped("z", "inside_a_call", "x")]


def test_a_failed_call_is_none_and_takes_no_reward() -> None:
    spans = [call("x", 1, 2, response_id="R1"), call("f", 3, 4, status="ERROR"), reward("r", 5, 1.0)]
    report = TracerTraceToTriplet().adapt_report(spans)
    assert summary(report.triplets) == [("R1", "*", 1.0)]
    assert report.dropped == [Dropped("f", "failed", "")]


def test_calls_without_tokens_are_omitted_on_request() -> None:
    spans = [call("x", 1, 2, tokens=([1], [2])), call("y", 3, 4, tokens=([1], [])), reward("r", 5, 1.0)]
    report = TracerTraceToTriplet(_skip_empty_token_spans=True).adapt_report(spans)
    assert [(triplet.metadata["span_ids"], triplet.reward) for triplet in report.triplets] == [(["x"], 1.0)]
    assert report.dropped == [Dropped("y", "no_token_ids", "")]


def proxied() -> list[Span]:
    """An agent whose tracer saw the texts, and a proxy whose spans have the tokens, in a trace of their own."""
    vllm = "llm.hosted_vllm"
    tokens = {f"{vllm}.prompt_token_ids": "[1, 2]", f"{vllm}.choices": "[{'token_ids': [3, 4], 'logprobs': None}]"}
    return [
        agent("A", 0, 9, "planner"),
        call("x", 1, 4, response_id="R1", parent="A", attributes={"gen_ai.prompt.0.content": "hi"}),
        span("p", 100, 104, name="Received Proxy Server Request", number=1),
        call("l", 101, 103, response_id="R1", name="litellm_request", parent="p", number=1),
        call("q", 102, 103, name="raw_gen_ai_request", parent="l", number=1, attributes={f"{vllm}.id": "R1", **tokens}),
        reward("r", 5, 1.0, number=7),
    ]


def test_a_tracer_and_a_proxy_that_saw_one_answer_make_one_triplet() -> None:
    report = TracerTraceToTriplet(agent_match="planner").adapt_report(proxied())
    (triplet,) = report.triplets
    assert triplet.prompt["token_ids"] == [1, 2]
    assert triplet.response["token_ids"] == [3, 4]
    assert triplet.prompt["raw_content"] == [{"content": "hi"}]
    assert (triplet.reward, triplet.metadata["agent_name"]) == (1.0, "planner")
    assert triplet.metadata["span_ids"] == ["x", "l", "q"]
    assert sorted(report.dropped) == [Dropped("l", "same_response", "x"), Dropped("q", "same_response", "x")]


def test_the_token_ids_of_a_proxy_go_before_those_of_a_tracer() -> None:
    ours = {"agl.call.backend": "vllm", "agl.call.model_version": "step-7"}
    spans = [
        call("x", 1, 4, response_id="R1", tokens=([9], [2])),
        call("p", 2, 3, response_id="R1", tokens=([1], [2]), attributes=ours),
    ]
    (triplet,) = TracerTraceToTriplet().adapt(spans)
    assert (triplet.prompt["token_ids"], triplet.response["token_ids"]) == ([1], [2])
    assert triplet.metadata["span_ids"] == ["x", "p"]
    assert triplet.metadata["model_version"] == "step-7"


def test_a_judges_call_stays_out_though_the_proxy_saw_it_outside() -> None:
    judging = {"agentlightning.operation.name": "agentlightning.reward"}
    spans = [
        span("r", 0, 9, name="agentlightning.operation", attributes=judging),
        call("j", 1, 2, response_id="R1", parent="r"),
        call("q", 100, 101, response_id="R1", name="litellm_request", tokens=([1], [2])),
    ]
    report = TracerTraceToTriplet().adapt_report(spans)
    assert report.triplets == []
    assert sorted(report.dropped) == [Dropped("j", "in_a_reward", ""), Dropped("q", "in_a_reward", "")]


def test_a_span_around_a_call_with_the_same_tokens_is_the_same_call() -> None:
    spans = [
        call("w", 1, 9, name="wrapper", tokens=([1], [2])),
        call("x", 2, 3, response_id="R1", tokens=([1], [2]), parent="w"),
    ]
    report = TracerTraceToTriplet().adapt_report(spans)
    assert [triplet.metadata["span_ids"] for triplet in report.triplets] == [["x", "w"]]
    assert report.dropped == [Dropped("w", "same_tokens", "x")]


OUTPUT = "agentlightning.operation.output"


@pytest.mark.parametrize(
    "attributes",
    [
        {"prompt_token_ids": [1, 2], "response_token_ids": [3]},
        {f"{OUTPUT}.prompt_token_ids": [1, 2], f"{OUTPUT}.response_token_ids.0": [3]},
        {f"{OUTPUT}.prompt_token_ids": [1, 2], f"{OUTPUT}.choices.0.token_ids": [3]},
        {f"{OUTPUT}.prompt_token_ids": [1, 2], f"{OUTPUT}.choices.0.provider_specific_fields.token_ids": [3]},
        {"agl.call.prompt_token_ids": [1, 2], "agl.call.response_token_ids": [3]},
        {"llm.hosted_vllm.prompt_token_ids": "[1, 2]", "llm.hosted_vllm.response_token_ids": "[[3]]"},
        {"llm.sglang.prompt_token_ids": "[1, 2]", "llm.sglang.choices": "[{'token_ids': [3], 'text': None}]"},
        {"prompt_token_ids": ["a"], "agl.call.prompt_token_ids": [1, 2], "response_token_ids": "[3]"},
    ],
)
@pytest.mark.parametrize("adapter", [TracerTraceToTriplet(), LlmProxyTraceToTriplet()])
def test_token_ids_are_found_under_every_known_name_whatever_the_span_is_called(
    adapter: TracerTraceToTriplet | LlmProxyTraceToTriplet, attributes: dict[str, Any]
) -> None:
    (triplet,) = adapter.adapt([span("x", 1, 2, name="anything", attributes=attributes)])
    assert (triplet.prompt["token_ids"], triplet.response["token_ids"]) == ([1, 2], [3])


def test_texts_parameters_images_and_probabilities_are_carried() -> None:
    image = '[{"type": "image_url", "image_url": {"url": "http://a/1.png"}}, {"type": "text"}, 3]'
    attributes = {
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": image,
        "gen_ai.prompt.1.content": "[broken",
        "gen_ai.completion.0.content": "yes",
        "gen_ai.request.model": "m",
        "logprobs.content": '[{"token": "y", "logprob": -0.5}]',
    }
    (triplet,) = TracerTraceToTriplet().adapt([call("x", 1, 2, response_id="R1", attributes=attributes)])
    assert triplet.prompt["raw_content"] == [{"role": "user", "content": image}, {"content": "[broken"}]
    assert triplet.prompt["image_urls"] == ["http://a/1.png"]
    assert triplet.response["raw_content"] == [{"content": "yes"}]
    assert triplet.response["logprobs"] == [{"token": "y", "logprob": -0.5}]
    assert triplet.metadata["request"] == {"model": "m"}
    assert triplet.metadata["response"] == {"id": "R1"}


def test_numbers_among_other_names_stay_an_object_whose_images_are_still_found() -> None:
    image = '[{"type": "image_url", "image_url": {"url": "u"}}]'
    attributes = {"gen_ai.prompt.0.content": image, "gen_ai.prompt.prompt_filter_results": "[]"}
    (triplet,) = TracerTraceToTriplet().adapt([call("x", 1, 2, attributes=attributes)])
    assert triplet.prompt["raw_content"] == {"0": {"content": image}, "prompt_filter_results": "[]"}
    assert triplet.prompt["image_urls"] == ["u"]


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_the_input_does_not_matter(seed: int) -> None:
    spans = [*two_agents(), *(proxy_span.model_copy(update={"attempt_id": "at-2"}) for proxy_span in proxied())]
    expected = TracerTraceToTriplet().adapt_report(spans)
    random.Random(seed).shuffle(spans)
    assert TracerTraceToTriplet().adapt_report(spans) == expected


def test_calls_come_in_the_order_of_time() -> None:
    spans = [span("s", 0, 20), agent("A", 5, 19, "a", parent="s"), call("late", 9, 10, parent="A"), call("mid", 7, 8)]
    report = TracerTraceToTriplet().adapt([*spans, call("early", 1, 2, parent="s")])
    assert [triplet.metadata["span_ids"][0] for triplet in report] == ["early", "mid", "late"]


def test_a_span_without_a_time_stands_where_its_number_puts_it() -> None:
    spans = [
        *(call("a", 1, 2, number=1), call("b", None, number=2), reward("r", None, 0.5, number=3)),
        call("c", 3, 4, number=4),
    ]
    assert rewards_of(spans) == {"a": None, "b": 0.5, "c": None}
    assert list(rewards_of(spans)) == ["a", "b", "c"]


def test_without_any_time_the_numbers_decide() -> None:
    spans = [call("a", None, number=1), reward("r", None, 0.5, number=2), call("b", None, number=3)]
    assert rewards_of(spans) == {"a": 0.5, "b": None}


def test_a_cycle_of_parents_is_broken_at_its_smallest_number() -> None:
    spans = [
        agent("x", 1, 2, "x", parent="z", number=3),
        agent("y", 1, 2, "y", parent="x", number=1),
        call("z", 1, 2, parent="y", number=2),
        span("root", 0, 9),
    ]
    tree = TraceTree.from_spans(spans)
    subtree = tree.find_id("y")
    assert subtree is not None
    assert [node.id for node in subtree.traverse()] == ["y", "z", "x"]
    assert [triplet.metadata["agent_name"] for triplet in TracerTraceToTriplet().adapt(spans)] == ["y"]


def test_a_call_moves_to_the_tightest_agent_around_it_at_every_level() -> None:
    spans = [
        span("root", 0, 100),
        span("flow", 1, 90, parent="root"),
        agent("outer", 2, 50, "outer", parent="flow"),
        agent("inner", 3, 20, "inner", parent="outer"),
        call("x", 5, 6, parent="flow"),
        call("y", 30, 31, parent="flow"),
        call("z", 60, 61, parent="flow"),
    ]
    agents = [triplet.metadata["agent_name"] for triplet in TracerTraceToTriplet().adapt(spans)]
    assert agents == ["inner", "outer", "*"]


def test_repairing_loses_no_span_where_children_outlast_their_parents() -> None:
    spans = [
        span("root", 0, 10),
        *(span("a", 4, 5, parent="root"), span("x", 1, 9, parent="a")),
        *(span("b", 3, 6, parent="root"), span("y", 2, 7, parent="b")),
    ]
    tree = TraceTree.from_spans(spans)
    tree.repair_hierarchy()
    assert sorted(node.id for node in tree.traverse()) == ["a", "b", "root", "x", "y"]
    assert [node.id for node in tree.traverse()] == ["root", "a", "x", "b", "y"]


def test_a_call_that_ran_beside_a_longer_one_is_not_put_into_it() -> None:
    spans = [span("root", 0, 9), call("long", 1, 8, parent="root"), call("short", 2, 3, parent="root")]
    assert len(TracerTraceToTriplet().adapt(spans)) == 2


def test_the_attempts_of_a_rollout_are_adapted_apart() -> None:
    spans = [
        call("x", 1, 2, attempt="at-1"),
        call("x", 11, 12, attempt="at-2"),
        reward("r", 13, 1.0, attempt="at-1"),
    ]
    adapted = TracerTraceToTriplet().adapt(spans)
    assert [(triplet.metadata["attempt_id"], triplet.reward) for triplet in adapted] == [("at-1", 1.0), ("at-2", None)]


def test_items_that_are_not_spans_are_reported_and_the_rest_adapted() -> None:
    items: list[Any] = [None, 3, {"name": "x"}, call("x", 1, 2), call("x", 5, 6, number=4), Span.model_construct()]
    report = TracerTraceToTriplet().adapt_report([*items, call("y", 3, 4).model_dump()])
    assert [triplet.metadata["span_ids"] for triplet in report.triplets] == [["x"], ["y"]]
    assert report.reasons() == {"duplicate_span": 1, "not_a_span": 4}


@pytest.mark.parametrize("adapter", [TracerTraceToTriplet(), LlmProxyTraceToTriplet()])
def test_no_spans_give_no_triplets(adapter: TracerTraceToTriplet | LlmProxyTraceToTriplet) -> None:
    assert adapter.adapt([]) == []
    wrong: Any = 3
    with pytest.raises(Invalid, match="source: int is not a sequence of spans"):
        adapter.adapt(wrong)


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"llm_call_match": "("}, "llm_call_match: .* is not a regular expression"),
        ({"agent_match": "["}, "agent_match: "),
        ({"reward_match": "best"}, "reward_match: 'best' is not a policy; use one of first_sibling, first_occ"),
        ({"reward_match": "broadcast", "strict_upstream": True}, "reward_match: Agent-lightning 0.3 has no broadcast"),
    ],
)
def test_a_mistake_in_the_settings_is_found_at_once(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        TracerTraceToTriplet(**settings)


@pytest.mark.filterwarnings("ignore")
def test_live_spans_of_the_sdk_are_taken_too() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("agent", attributes={"agent.name": "me", "agentlightning.rollout_id": "ro-9"}):
        pass
    with tracer.start_as_current_span("openai.chat.completion") as one:
        one.set_attributes({"gen_ai.response.id": "R1", "agentlightning.rollout_id": "ro-9"})
    (triplet,) = TracerTraceToTriplet().adapt(exporter.get_finished_spans())
    assert (triplet.metadata["response_id"], triplet.metadata["rollout_id"]) == ("R1", "ro-9")
    provider.shutdown()


def numbered(number: int, tokens: list[int], **attributes: Any) -> Span:
    return call(
        f"c{number}",
        9.0 - number,
        number=number,
        name="litellm_request",
        tokens=(tokens, tokens),
        attributes=attributes,
    )


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_proxys_calls_are_rewarded_by_number_whatever_the_clocks_say(is_strict: bool) -> None:
    calls = [numbered(2, [2]), numbered(4, [4]), numbered(6, [6])]
    rewards = [reward(f"r{number}", 0.0, value, number=number) for number, value in ((5, 0.1), (7, 0.2), (8, 0.3))]
    adapted = LlmProxyTraceToTriplet(strict_upstream=is_strict)([*rewards, *calls])
    assert [(triplet.prompt["token_ids"], triplet.reward) for triplet in adapted] == [
        ([2], 0.3),
        ([4], 0.1),
        ([6], 0.2),
    ]


def test_a_reward_with_the_number_of_a_call_is_not_its() -> None:
    report = LlmProxyTraceToTriplet().adapt_report([numbered(2, [2]), reward("r", 5, 1.0, number=2)])
    assert report.triplets[0].reward is None
    assert report.lost_rewards == [Lost("r", 1.0, "no_call_before")]


@pytest.mark.parametrize("is_strict, expected", [(False, [[2], [4]]), (True, [[2]])])
def test_only_strict_merges_two_calls_of_a_proxy_with_one_response_id(
    is_strict: bool, expected: list[list[int]]
) -> None:
    first, again = numbered(2, [2], **{"gen_ai.response.id": "R"}), numbered(4, [4], **{"gen_ai.response.id": "R"})
    adapted = LlmProxyTraceToTriplet(strict_upstream=is_strict).adapt([again, first, numbered(5, []), call("x", 1, 2)])
    assert [triplet.response["token_ids"] for triplet in adapted] == expected


def choices(*token_ids: list[int], prompt: list[int] | None = None) -> dict[str, Any]:
    """The attributes of a response with several choices, as the proxy records them."""
    attributes: dict[str, Any] = {"prompt_token_ids": prompt} if prompt else {}
    for number, ids in enumerate(token_ids):
        prefix = f"gen_ai.completion.{number}"
        attributes |= {f"{prefix}.role": "assistant", f"{prefix}.content": "ABC"[number]}
        if ids:
            logprobs = json.dumps([{"logprob": -float(token_id)} for token_id in ids])
            attributes["response_token_ids" if number == 0 else f"{prefix}.token_ids"] = ids
            attributes["logprobs.content" if number == 0 else f"{prefix}.logprobs.content"] = logprobs
    return attributes


@pytest.mark.parametrize("adapter", [TracerTraceToTriplet(), LlmProxyTraceToTriplet()])
def test_every_choice_with_token_ids_is_a_triplet_with_its_own_reward(
    adapter: TracerTraceToTriplet | LlmProxyTraceToTriplet,
) -> None:
    spans = [
        call("x", 1, 2, number=1, tokens=([1], [9])),
        call("y", 3, 4, number=2, attributes=choices([10], [11, 12], [13], prompt=[2])),
        *(reward(f"r{number}", 5 + number, number / 10, number=5 + number) for number in range(3)),
    ]
    report = adapter.adapt_report(spans)
    first, *others = report.triplets
    assert (first.response["token_ids"], first.reward, "choice" in first.metadata) == ([9], None, False)
    assert [triplet.response["token_ids"] for triplet in others] == [[10], [11, 12], [13]]
    assert [triplet.response["raw_content"][0]["content"] for triplet in others] == ["A", "B", "C"]
    assert [triplet.response["logprobs"][-1]["logprob"] for triplet in others] == [-10, -12, -13]
    assert [triplet.reward for triplet in others] == [0.0, 0.1, 0.2]
    assert [triplet.metadata["choice"] for triplet in others] == [0, 1, 2]
    assert {(tuple(triplet.prompt["token_ids"]), *triplet.metadata["span_ids"]) for triplet in others} == {((2,), "y")}
    assert (report.dropped, report.lost_rewards) == ([], [])


def test_one_reward_goes_to_the_first_choice_unless_it_is_broadcast() -> None:
    spans = [call("y", 3, 4, attributes=choices([10], [11], prompt=[2])), reward("r", 5, 0.5)]
    for policy in ("first_occurrence", "first_sibling", "final_only"):
        assert [triplet.reward for triplet in TracerTraceToTriplet(reward_match=policy).adapt(spans)] == [0.5, None]
    assert [triplet.reward for triplet in TracerTraceToTriplet(reward_match="broadcast").adapt(spans)] == [0.5, 0.5]
    linked = [*spans[:1], *(reward(f"r{at}", 5 + at, at, attributes=link("span_id", "y")) for at in (1, 2))]
    assert [triplet.reward for triplet in TracerTraceToTriplet().adapt(linked)] == [1, 2]


def test_a_choice_without_token_ids_is_reported() -> None:
    bare = choices([], [], prompt=[2])
    report = TracerTraceToTriplet().adapt_report([call("y", 3, 4, attributes=bare)])
    (triplet,) = report.triplets
    assert [choice["content"] for choice in triplet.response["raw_content"]] == ["A", "B"]
    assert report.dropped == [Dropped("y", "choice_without_token_ids", "choice 1")]
    report = TracerTraceToTriplet().adapt_report([call("y", 3, 4, attributes=choices([10], [], [12], prompt=[2]))])
    assert [item.metadata["choice"] for item in report.triplets] == [0, 2]
    assert report.dropped == [Dropped("y", "choice_without_token_ids", "choice 1")]


def test_choices_have_the_texts_of_the_tracer_and_the_token_ids_of_the_proxy() -> None:
    texts = {name: value for name, value in choices([10], [11]).items() if "ids" not in name}
    tokens = choices([10], [11], prompt=[2]) | {"agl.call.backend": "vllm"}
    spans = [
        call("t", 1, 4, response_id="R", attributes={**texts, "gen_ai.completion.1.note": "of the tracer"}),
        call("p", 2, 3, response_id="R", attributes=tokens),
    ]
    report = TracerTraceToTriplet().adapt_report(spans)
    assert [triplet.response["token_ids"] for triplet in report.triplets] == [[10], [11]]
    assert report.triplets[1].response["raw_content"][0]["note"] == "of the tracer"
    assert report.dropped == [Dropped("p", "same_response", "t")]


@pytest.mark.parametrize(
    "attributes",
    [
        {f"{OUTPUT}.choices.0.token_ids": [3], f"{OUTPUT}.choices.1.token_ids": [4]},
        {f"{OUTPUT}.choices.{n}.provider_specific_fields.token_ids": [3 + n] for n in range(2)},
        {
            **{f"{OUTPUT}.choices.{n}.message.content": "x" for n in range(2)},
            **{f"{OUTPUT}.response_token_ids.{n}": [3 + n] for n in range(2)},
        },
        {"llm.hosted_vllm.choices": "[{'token_ids': [3]}, {'token_ids': [4]}]"},
        {"llm.hosted_vllm.choices": "[{'index': 0}, {'index': 1}]", "llm.hosted_vllm.response_token_ids": "[[3], [4]]"},
    ],
)
def test_token_ids_of_choices_are_read_under_the_names_of_each_recorder(attributes: dict[str, Any]) -> None:
    prompt = {"agl.call.prompt_token_ids": [1]}
    if any(name.startswith("llm.") for name in attributes):
        prompt = {"llm.hosted_vllm.prompt_token_ids": "[1]"}
    triplets = TracerTraceToTriplet().adapt([call("x", 1, 2, attributes=attributes | prompt)])
    assert [triplet.response["token_ids"] for triplet in triplets] == [[3], [4]]


@pytest.mark.parametrize(
    "spans, why",
    [
        ([], "there are no spans"),
        ([span("x", 1, parent="y"), span("y", 1, parent="x")], "every span has a parent"),
        ([span("x", None), span("y", 1)], "TypeError"),
        ([span("x", 1, attributes={"agentlightning.reward": 1.0})], "is an attribute itself"),
        ([span("x", 1, attributes={"agentlightning.reward_model": "m"})], "ValidationError"),
        ([call("x", 1, attributes={"gen_ai.prompt": "p"})], "gen_ai.prompt is an attribute itself"),
        ([call("x", 1, attributes={"logprobs.content": "{"})], "JSONDecodeError"),
        ([3], "an item is not a span"),
    ],
)
def test_strict_upstream_explains_errors_that_the_default_tolerates(spans: list[Any], why: str) -> None:
    with pytest.raises(Invalid, match=f"(?s)raises an error for these spans.*{why}.*leave out strict_upstream"):
        TracerTraceToTriplet(strict_upstream=True).adapt(spans)
    TracerTraceToTriplet().adapt(spans)


def test_strict_proxy_adapter_explains_errors_of_agent_lightning() -> None:
    with pytest.raises(Invalid, match="leave out strict_upstream"):
        LlmProxyTraceToTriplet(strict_upstream=True).adapt([span("x", None, number=1), span("y", 1, number=1)])


def test_strict_takes_the_order_of_the_input_and_repairs_one_level_only() -> None:
    spans = [call("late", 5, 6), agent("A", 0, 9, "a"), call("early", 1, 2, parent="A")]
    strict = TracerTraceToTriplet(strict_upstream=True, repair_hierarchy=False).adapt(spans)
    assert [triplet.metadata["agent_name"] for triplet in strict] == ["*", "a"]
    ours = TracerTraceToTriplet(repair_hierarchy=False).adapt(spans)
    assert [triplet.metadata["agent_name"] for triplet in ours] == ["a", "*"]


def score(value: float | None, /, attempt: str = "at-1", **dimensions: float) -> Score:
    error = ScoreError(type="ValueError", message="no answer") if value is None else None
    ids: dict[str, Any] = {"rollout_id": "ro-1", "attempt_id": attempt, "name": "a", "version": "v2"}
    return Score(**ids, value=value, dimensions=dimensions, error=error, number=9, at=0.0)


@pytest.mark.parametrize(
    "policy, expected",
    [
        ("first_occurrence", [None, -2.0]),
        ("first_sibling", [None, -2.0]),
        ("final_only", [None, -2.0]),
        ("broadcast", [-2.0, -2.0]),
    ],
)
def test_score_replaces_the_recorded_rewards(policy: str, expected: list[float | None]) -> None:
    spans = [call("c1", 1, 2), reward("r1", 3, 0.5), call("c2", 4, 5), reward("r2", 6, 0.75)]
    adapter = TracerTraceToTriplet(reward_match=policy)
    triplets = adapter.adapt(spans, [score(-2, tone=3.0)])
    assert [triplet.reward for triplet in triplets] == expected
    assert triplets[-1].metadata["rewards"] == {"primary": -2.0, "tone": 3.0}
    assert [triplet.reward for triplet in adapter.adapt(spans, [score(-2, attempt="at-2")])] == [None, None]
    assert [triplet.reward for triplet in adapter.adapt(spans, [score(None)])] == [None, None]


def test_score_of_a_proxied_attempt_goes_to_its_last_call() -> None:
    tokens = ([1], [2])
    spans = [call("c1", 9, 10, tokens=tokens, number=1), call("c2", 1, 2, tokens=tokens, number=2)]
    triplets = LlmProxyTraceToTriplet().adapt(spans, [score(1)])
    assert [(triplet.metadata["sequence_id"], triplet.reward) for triplet in triplets] == [(1, None), (2, 1.0)]


def test_scores_of_two_versions_and_of_a_strict_adapter_are_refused() -> None:
    with pytest.raises(Invalid, match="reward_version"):
        TracerTraceToTriplet().adapt([call("c1", 1, 2)], [score(1), score(2)])
    for adapter in (TracerTraceToTriplet(strict_upstream=True), LlmProxyTraceToTriplet(strict_upstream=True)):
        with pytest.raises(Invalid, match="strict_upstream"):
            adapter.adapt([call("c1", 1, 2)], [score(1)])
