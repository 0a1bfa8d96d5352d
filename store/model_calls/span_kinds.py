"""The kind of a span: a call of a model or of a tool, a reward, or a span that groups others. Decision 113."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from store import semconv

SPAN_KINDS: Final = ("agent", "chain", "llm", "tool", "retriever", "reward", "other")
"""The kinds of spans. Spans of the kinds `agent` and `chain` contain the work of other spans."""
CONTAINERS: Final = frozenset({"agent", "chain"})
KIND_ATTRIBUTES: Final = (
    "openinference.span.kind",
    "gen_ai.operation.name",
    "traceloop.span.kind",
    "agentops.span.kind",
    "langfuse.observation.type",
)
"""The attributes that state the kind of a span, in the order in which they are read."""

_BY_VALUE: Final[Mapping[str, str]] = {
    "agent": "agent",
    "invoke_agent": "agent",
    "create_agent": "agent",
    "session": "agent",
    "chain": "chain",
    "workflow": "chain",
    "invoke_workflow": "chain",
    "task": "chain",
    "operation": "chain",
    "span": "chain",
    "llm": "llm",
    "chat": "llm",
    "responses": "llm",
    "text_completion": "llm",
    "completion": "llm",
    "generate_content": "llm",
    "generation": "llm",
    "tool": "tool",
    "execute_tool": "tool",
    "mcp_tool": "tool",
    "guardrail": "other",
    "retriever": "retriever",
    "retrieval": "retriever",
    "reranker": "retriever",
    "embedding": "retriever",
    "embeddings": "retriever",
    "evaluator": "reward",
}
_NAMES: Final[Mapping[str, str]] = {
    semconv.REWARD_SPAN: "reward",
    semconv.MESSAGE_SPAN: "other",
    semconv.OBJECT_SPAN: "other",
    semconv.EXCEPTION_SPAN: "other",
    semconv.OPERATION_SPAN: "chain",
    semconv.ANNOTATION_SPAN: "other",
    semconv.VIRTUAL_SPAN: "chain",
    "openai.chat.completion": "llm",
    "openai.embeddings": "retriever",
}
# The conventions of OpenTelemetry name a span by its operation and the object: `chat gpt-4o`, `execute_tool bash`.
_OPERATION: Final = re.compile(
    r"(?:(invoke_agent|create_agent|invoke_workflow|execute_tool|generate_content|text_completion)(?: .*)?"
    r"|(chat|embeddings|retrieval) \S+)",
    re.DOTALL,
)
_LLM_PREFIXES: Final = ("gen_ai.prompt", "gen_ai.completion", "llm.input_messages", "llm.output_messages")
_LLM_NAMES: Final = frozenset({"llm.model_name", "gen_ai.response.model", "gen_ai.request.model"})
_TOOL_NAMES: Final = frozenset({"gen_ai.tool.name", "gen_ai.tool.call.id", "tool.name"})


def kind_of_name(name: str) -> str | None:
    """Return the kind of a span if its name alone determines it, and otherwise None."""
    if name in _NAMES:
        return _NAMES[name]
    operation = _OPERATION.fullmatch(name)
    return None if operation is None else _BY_VALUE[operation[1] or operation[2]]


def kind_of_attributes(attributes: Mapping[str, Any]) -> str | None:
    """Return the kind that an attribute states: `openinference.span.kind`, `gen_ai.operation.name` or another one.

    Return None if no attribute states a kind of `SPAN_KINDS`.
    """
    for attribute in KIND_ATTRIBUTES:
        value = attributes.get(attribute)
        if isinstance(value, str) and (kind := _BY_VALUE.get(value.lower())) is not None:
            return kind
    return None


def span_kind(name: str, attributes: Mapping[str, Any]) -> str:
    """Return the kind of a span, one of `SPAN_KINDS`.

    A span with a reward is a reward. Otherwise the kind is what the name states, or else what an attribute states, or
    else what the attributes of a call of a tool or of a model suggest.
    """
    if semconv.summarise(name, attributes).rewards or semconv.invalid_rewards(attributes):
        return "reward"
    stated = kind_of_name(name) or kind_of_attributes(attributes)
    if stated is not None:
        return stated
    if not _TOOL_NAMES.isdisjoint(attributes):
        return "tool"
    is_llm = not _LLM_NAMES.isdisjoint(attributes) or any(key.startswith(_LLM_PREFIXES) for key in attributes)
    return "llm" if is_llm else "other"
