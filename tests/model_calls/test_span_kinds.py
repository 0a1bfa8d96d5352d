"""Kinds of spans by name, by the conventions of attributes, and by rewards."""

from __future__ import annotations

from typing import Any

import pytest

from store.model_calls.span_kinds import SPAN_KINDS, span_kind


@pytest.mark.parametrize(
    "name, attributes, kind",
    [
        ("invoke_agent solver", {"gen_ai.request.model": "small"}, "agent"),
        ("chat gpt-4o", {}, "llm"),
        ("chat", {}, "other"),
        ("chat with the user", {}, "other"),
        ("execute_tool bash", {}, "tool"),
        ("embeddings text-3", {}, "retriever"),
        ("openai.chat.completion", {}, "llm"),
        ("solve", {"openinference.span.kind": "CHAIN"}, "chain"),
        ("solve", {"openinference.span.kind": "AGENT", "llm.model_name": "small"}, "agent"),
        ("search", {"openinference.span.kind": "RETRIEVER"}, "retriever"),
        ("chat", {"openinference.span.kind": "TOOL"}, "tool"),
        ("step", {"gen_ai.operation.name": "generate_content"}, "llm"),
        ("step", {"gen_ai.operation.name": "unheard-of", "traceloop.span.kind": "workflow"}, "chain"),
        ("step", {"gen_ai.operation.name": 7}, "other"),
        ("bash", {"gen_ai.tool.name": "bash"}, "tool"),
        ("ask", {"llm.input_messages.0.message.role": "user"}, "llm"),
        ("ask", {"gen_ai.response.model": "small"}, "llm"),
        ("agentlightning.annotation", {"agentlightning.reward.0.value": 0.5}, "reward"),
        ("agentlightning.annotation", {"agentlightning.reward.0.value": "nan"}, "reward"),
        ("agentlightning.annotation", {"note": "x"}, "other"),
        ("execute_tool grade", {"agentlightning.reward.0.value": 1.0}, "reward"),
        ("anything", {}, "other"),
    ],
)
def test_kind_follows_reward_then_name_then_attribute_then_content(
    name: str, attributes: dict[str, Any], kind: str
) -> None:
    assert span_kind(name, attributes) == kind
    assert kind in SPAN_KINDS
