"""Adapters accept any spans: they never raise, report every unused span, and are deterministic."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.adapters.messages import TraceToMessages
from store.adapters.rewards import RewardMatchPolicy
from store.adapters.rows import trajectories
from store.adapters.triplets import LlmProxyTraceToTriplet, TracerTraceToTriplet
from store.models import Span
from tests.torture import rounds
from tests.training.traced import CALL, call, reward, span, two_agents

NAMES = [CALL, "agentlightning.annotation", "agentlightning.operation", "litellm_request", "raw_gen_ai_request", "step"]
KEYS = [
    *("gen_ai.response.id", "gen_ai.prompt", "gen_ai.prompt.0.role", "gen_ai.prompt.0.content", "gen_ai.prompt.2"),
    *(
        "gen_ai.prompt.x.y",
        "gen_ai.completion.0.role",
        "gen_ai.completion.0.tool_calls.1",
        "gen_ai.request.functions.0",
    ),
    *("gen_ai.request.functions.0.name", "gen_ai.request.functions.0.parameters", "gen_ai.request", "tool.name"),
    *("gen_ai.completion.1.token_ids", "gen_ai.completion.2.logprobs", "gen_ai.completion.0.content"),
    *("tool.call.id", "tool.call", "prompt_token_ids", "response_token_ids", "logprobs.content", "agent.name"),
    *("agentlightning.operation.output.id", "agentlightning.operation.output.choices.0.token_ids"),
    *("agentlightning.operation.name", "llm.hosted_vllm.id", "llm.hosted_vllm.prompt_token_ids", "llm.x.choices"),
    *("agentlightning.reward", "agentlightning.reward.0.value", "agentlightning.reward.0.name", "agentops.task.output"),
    *(
        "agentlightning.reward.1.value",
        "agentlightning.reward_model",
        "reward",
        "agl.call.logprobs",
        "agl.call.backend",
    ),
    *("agentlightning.link.0.key_match", "agentlightning.link.0.value_match", "agentlightning.link", "a..b", ""),
]
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(
        ["R1", "R2", "user", "assistant", "span_id", "s1", "[1, 2]", "[[3]]", "{", "[", '{"type": "reward"}']
    ),
    st.text(max_size=5),
    st.lists(st.integers(0, 9), max_size=3),
    st.lists(st.one_of(st.integers(), st.text(max_size=2), st.none()), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)
IDS = [f"s{number}" for number in range(6)]
TIMES: st.SearchStrategy[Any] = st.one_of(st.none(), st.integers(0, 9), st.floats(), st.just(10**400))


@st.composite
def any_span(draw: st.DrawFn) -> Any:
    if draw(st.integers(0, 20)) == 0:
        wrong: list[Any] = [None, 3, {}, "span", Span.model_construct()]
        return draw(st.sampled_from(wrong))
    # As a program could make one that nobody validated.
    return Span.model_construct(
        rollout_id="ro-1",
        attempt_id=draw(st.sampled_from(["at-1", "at-1", "at-2"])),
        sequence_id=draw(st.integers(-1, 5)),
        trace_id="1" * 32,
        span_id=draw(st.sampled_from(IDS)),
        parent_id=draw(st.one_of(st.none(), st.sampled_from([*IDS, "missing", "", "0" * 16]))),
        name=draw(st.sampled_from(NAMES)),
        start_time=draw(TIMES),
        end_time=draw(TIMES),
        attributes=draw(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6)),
    )


TRACES = st.lists(any_span(), max_size=8)
EXAMPLES = settings(
    max_examples=rounds(150, few=40),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
ADAPTERS = [
    LlmProxyTraceToTriplet(),
    *(
        TracerTraceToTriplet(repairs, agent_match=agent, reward_match=policy)
        for repairs, agent, policy in product((True, False), (None, "."), RewardMatchPolicy)
    ),
]


@pytest.mark.slow
@pytest.mark.torture
@EXAMPLES
@given(TRACES, st.sampled_from(ADAPTERS), st.randoms(use_true_random=False))
def test_the_report_does_not_depend_on_the_order_of_the_spans(
    spans: list[Any], adapter: TracerTraceToTriplet | LlmProxyTraceToTriplet, lot: random.Random
) -> None:
    report = adapter.adapt_report(spans)
    lot.shuffle(spans)
    # Compared as text, in which what is not a number is equal to itself.
    assert repr(adapter.adapt_report(spans)) == repr(report)


@pytest.mark.slow
@pytest.mark.torture
@EXAMPLES
@given(TRACES)
def test_every_call_is_a_triplet_or_dropped_and_no_reward_is_used_twice(spans: list[Any]) -> None:
    report = TracerTraceToTriplet().adapt_report(spans)
    keys = {
        (triplet.metadata["attempt_id"], triplet.metadata["span_ids"][0], triplet.metadata.get("choice"))
        for triplet in report.triplets
    }
    assert len(keys) == len(report.triplets)
    seen = {span_id for _, span_id, _ in keys} | {dropped.span_id for dropped in report.dropped}
    given_spans = [item for item in spans if isinstance(item, Span) and item.model_fields_set]
    assert {item.span_id for item in given_spans if item.name == CALL} <= seen
    given_away = [triplet for triplet in report.triplets if triplet.reward is not None]
    assert len(given_away) + len(report.lost_rewards) <= len(spans)


@pytest.mark.slow
@pytest.mark.torture
@EXAMPLES
@given(TRACES)
def test_any_spans_give_messages_and_rows(spans: list[Any]) -> None:
    for conversation in TraceToMessages().adapt(spans):
        assert all(message["role"] for message in conversation["messages"])
    triplets = TracerTraceToTriplet().adapt(spans)
    for merge in (True, False):
        batch = trajectories(triplets, 0, 2, 2, missing_reward=0.0, long_prompts="truncate", merge_turns=merge)
        assert {len(row) for row in batch.input_ids} <= {4}


@pytest.mark.slow
def test_the_report_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "import json, sys; from store.models import Span; from store.adapters.triplets import TracerTraceToTriplet\n"
        "report = TracerTraceToTriplet().adapt_report([Span(**each) for each in json.load(sys.stdin)])\n"
        "print(repr(report))"
    )
    orphans = [call(f"o{number}", 30 + number, parent=f"lost{number}") for number in range(9)]
    spans = json.dumps([item.model_dump() for item in [*two_agents(), *orphans, reward("r", 50, 0.5)]])
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            input=spans,
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize("depth", [5_000])
@pytest.mark.slow
def test_a_chain_of_thousands_of_spans_causes_no_recursion_error(depth: int) -> None:
    chain = [span(f"s{number}", number, depth, parent=f"s{number - 1}" if number else None) for number in range(depth)]
    report = TracerTraceToTriplet().adapt_report([*chain, call("x", depth, parent=f"s{depth - 1}")])
    assert len(report.triplets) == 1
