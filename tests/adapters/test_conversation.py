"""What was said in a call is read in every convention, and whatever is malformed."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.adapters.conversation import ChatMessage, ModelExchange, ToolCall, ToolUse, exchange_of, tool_use_of


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


_SEARCH = ToolCall("search", '{"q":1}', "call-1")
_ASKED = (ChatMessage("system", "Be brief."), ChatMessage("user", "Who?"))
_ANSWERED = (ChatMessage("assistant", "Ada.", "Let me think.", (_SEARCH,)),)

_OLD = {
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "Be brief.",
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.1.content": "Who?",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "Ada.",
    "gen_ai.completion.0.reasoning_content": "Let me think.",
    "gen_ai.completion.0.tool_calls.0.id": "call-1",
    "gen_ai.completion.0.tool_calls.0.name": "search",
    "gen_ai.completion.0.tool_calls.0.arguments": '{"q":1}',
}
_NEW = {
    "gen_ai.system_instructions": _json([{"type": "text", "content": "Be brief."}]),
    "gen_ai.input.messages": _json([{"role": "user", "parts": [{"type": "text", "content": "Who?"}]}]),
    "gen_ai.output.messages": _json(
        [
            {
                "role": "assistant",
                "parts": [
                    {"type": "reasoning", "content": "Let me think."},
                    {"type": "text", "content": "Ada."},
                    {"type": "tool_call", "id": "call-1", "name": "search", "arguments": {"q": 1}},
                ],
            }
        ]
    ),
}
_INFERENCE = {
    "llm.input_messages.0.message.role": "system",
    "llm.input_messages.0.message.content": "Be brief.",
    "llm.input_messages.1.message.role": "user",
    "llm.input_messages.1.message.contents.0.message_content.type": "text",
    "llm.input_messages.1.message.contents.0.message_content.text": "Who?",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "Ada.",
    "llm.output_messages.0.message.reasoning_content": "Let me think.",
    "llm.output_messages.0.message.tool_calls.0.tool_call.id": "call-1",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "search",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": '{"q":1}',
}
_OPERATION = {
    "agentlightning.operation.input.messages.0.role": "system",
    "agentlightning.operation.input.messages.0.content": "Be brief.",
    "agentlightning.operation.input.messages.1.role": "user",
    "agentlightning.operation.input.messages.1.content": "Who?",
    "agentlightning.operation.output.choices.0.message.role": "assistant",
    "agentlightning.operation.output.choices.0.message.content": "Ada.",
    "agentlightning.operation.output.choices.0.message.reasoning": "Let me think.",
    "agentlightning.operation.output.choices.0.message.tool_calls.0.id": "call-1",
    "agentlightning.operation.output.choices.0.message.tool_calls.0.function.name": "search",
    "agentlightning.operation.output.choices.0.message.tool_calls.0.function.arguments": '{"q":1}',
}


@pytest.mark.parametrize("attributes", [_OLD, _NEW, _INFERENCE, _OPERATION], ids=["old", "new", "inference", "ours"])
def test_a_call_reads_the_same_in_every_convention(attributes: dict[str, Any]) -> None:
    assert exchange_of(attributes) == ModelExchange(_ASKED, _ANSWERED)


def test_what_is_no_text_is_counted_and_a_text_of_json_stays_a_text() -> None:
    parts = _json([{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": "data:…"}}])
    asked = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": parts}
    read = exchange_of(asked | {"gen_ai.prompt.1.role": "user", "gen_ai.prompt.1.content": '["a", {"b": 1}]'})
    assert read is not None
    assert read.prompt == (ChatMessage("user", "Look:", attached=1), ChatMessage("user", '["a", {"b": 1}]'))


def test_the_answer_of_a_tool_names_the_call() -> None:
    response = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call-1", "response": {"found": 3}}]}
    read = exchange_of({"gen_ai.input.messages": _json([response])})
    assert read is not None
    assert read.prompt == (ChatMessage("tool", '{"found":3}', call_id="call-1"),)


def test_a_message_said_again_is_known_by_its_key_without_its_thoughts() -> None:
    assert ChatMessage("assistant", "Ada. ", "thought").key == ChatMessage("assistant", "Ada.").key
    assert ChatMessage("assistant", "Ada.").key != ChatMessage("user", "Ada.").key


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.tool.name": "add", "gen_ai.tool.call.arguments": "[1, 2]", "gen_ai.tool.call.result": "3"},
        {"tool.name": "add", "tool.parameters": "[1, 2]", "tool.result": "3"},
        {"openinference.span.kind": "TOOL", "tool.name": "add", "input.value": "[1, 2]", "output.value": "3"},
        {
            "traceloop.span.kind": "tool",
            "traceloop.entity.name": "add",
            "traceloop.entity.input": "[1, 2]",
            "traceloop.entity.output": "3",
        },
    ],
    ids=["genai", "agentops", "inference", "traceloop"],
)
def test_a_tool_at_work_reads_the_same_in_every_convention(attributes: dict[str, Any]) -> None:
    assert tool_use_of(attributes) == ToolUse("add", "[1, 2]", "3")


def test_other_spans_tell_of_neither() -> None:
    attributes = {"http.method": "GET", "input.value": "x", "llm.model_name": "m"}
    assert exchange_of(attributes) is None
    assert tool_use_of(attributes) is None


_NAMES = st.sampled_from(sorted({*_OLD, *_NEW, *_INFERENCE, *_OPERATION, "gen_ai.prompt", "tool.name", "input.value"}))
_VALUES = st.one_of(
    st.text(max_size=12),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.lists(st.text(max_size=4), max_size=3),
    st.sampled_from(['[{"role": 1, "parts": [1, {"type": []}]}]', "[[", '[{"type": "text"}]', "{}", "null", "[null]"]),
)


@settings(deadline=None)
@given(st.dictionaries(_NAMES, _VALUES, max_size=8))
def test_nothing_that_a_span_may_hold_is_refused(attributes: dict[str, Any]) -> None:
    read = exchange_of(attributes)
    for said in () if read is None else (*read.prompt, *read.answer):
        assert isinstance(said.text, str)
        assert isinstance(said.role, str)
    tool_use_of(attributes)
