"""Calls and tools are read from spans of every convention, and malformed spans are read without errors."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.model_calls import Message, MessagePart, call_of
from store.model_calls.recorded import ToolUse, tool_use_of


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _text(role: str, text: str) -> Message:
    return Message(role, (MessagePart("text", text),))


_SEARCH = MessagePart("tool_call", '{"q":1}', "search", "call-1", "function")
_PROMPT = (_text("system", "Be brief."), _text("user", "Who?"))
_ANSWER = Message("assistant", (MessagePart("reasoning", "Let me think."), MessagePart("text", "Ada."), _SEARCH))

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
def test_call_is_equal_in_every_convention(attributes: dict[str, Any]) -> None:
    call = call_of(attributes)
    assert (call.messages, call.answers) == (_PROMPT, (_ANSWER,))


def test_images_are_media_and_text_of_json_stays_text() -> None:
    parts = _json([{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": "data:…"}}])
    prompt = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": parts}
    first, second = call_of(
        prompt | {"gen_ai.prompt.1.role": "user", "gen_ai.prompt.1.content": '["a", {"b": 1}]'}
    ).messages
    assert (first.text, [part.kind for part in first.media]) == ("Look:", ["image"])
    assert second == _text("user", '["a", {"b": 1}]')


@pytest.mark.parametrize("modality", ["image", "audio", "video", "document"])
def test_bytes_of_a_blob_are_not_text(modality: str) -> None:
    blob = {"type": "blob", "modality": modality, "mime_type": "x/y", "content": "QUJD" * 1000}
    (message,) = call_of({"gen_ai.input.messages": _json([{"role": "user", "parts": [blob]}])}).messages
    assert (message.text, [part.kind for part in message.media]) == ("", [modality])


def test_result_of_a_tool_names_the_call() -> None:
    response = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call-1", "response": {"found": 3}}]}
    (message,) = call_of({"gen_ai.input.messages": _json([response])}).messages
    assert (message.role, message.text, message.call_id) == ("tool", '{"found":3}', "call-1")


def test_key_of_a_repeated_message_omits_its_reasoning() -> None:
    repeated = Message("assistant", (MessagePart("reasoning", "thought"), MessagePart("text", "Ada. ")))
    assert repeated.key == _text("assistant", "Ada.").key
    assert repeated.key != _text("user", "Ada.").key


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
def test_execution_of_a_tool_is_equal_in_every_convention(attributes: dict[str, Any]) -> None:
    assert tool_use_of(attributes) == ToolUse("add", "[1, 2]", "3")


def test_other_spans_record_neither_a_call_nor_a_tool() -> None:
    attributes = {"http.method": "GET", "input.value": "x", "llm.model_name": "m"}
    call = call_of(attributes)
    assert (call.messages, call.choices) == ((), ())
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
def test_any_attributes_give_a_call(attributes: dict[str, Any]) -> None:
    call = call_of(attributes)
    for message in (*call.messages, *call.answers):
        assert isinstance(message.text, str)
        assert isinstance(message.role, str)
    tool_use_of(attributes)
