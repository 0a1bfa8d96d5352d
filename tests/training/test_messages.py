"""Spans become chat messages in OpenAI's form, with tool calls and tools."""

from __future__ import annotations

from typing import Any

import pytest

from store.adapters.messages import TraceToMessages
from store.models import Span
from tests.training.traced import call, span

PROMPT, COMPLETION, FUNCTION = "gen_ai.prompt", "gen_ai.completion.0", "gen_ai.request.functions.0"


def chat(span_id: str, start: float, **parts: Any) -> Span:
    """A call whose attributes are given with underscores for dots after the first part: `prompt__0__role`."""
    return call(span_id, start, attributes={f"gen_ai.{key.replace('__', '.')}": value for key, value in parts.items()})


def tool(parent: str, start: float, **said: Any) -> Span:
    """The span of a tool that an answer called."""
    return span(
        f"t{start}", start, parent=parent, attributes={f"tool.{key.replace('__', '.')}": said[key] for key in said}
    )


def messages_of(*spans: Span) -> list[list[dict[str, Any]]]:
    return [conversation["messages"] for conversation in TraceToMessages().adapt(spans)]


CALLED = {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def test_a_conversation_with_a_tool_comes_back_as_it_was() -> None:
    asked = chat(
        "x",
        1,
        prompt__0__role="system",
        prompt__0__content="be brief",
        prompt__1__role="user",
        prompt__1__content="1+2?",
        completion__0__role="assistant",
        completion__0__finish_reason="tool_calls",
        request__functions__0__name="add",
        request__functions__0__description="adds",
        request__functions__0__parameters='{"type": "object"}',
    )
    used = tool("x", 2, name="add", parameters='{"a": 1}', call__id="t1", call__type="function")
    answered = chat(
        "y",
        3,
        prompt__0__role="assistant",
        prompt__0__tool_calls__0__id="t1",
        prompt__0__tool_calls__0__name="add",
        prompt__0__tool_calls__0__arguments='{"a": 1}',
        prompt__1__role="tool",
        prompt__1__tool_call_id="t1",
        prompt__1__content="3",
        completion__0__role="assistant",
        completion__0__content="three",
    )
    first, second = TraceToMessages()([answered, used, asked])
    assert first == {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "1+2?"},
            {"role": "assistant", "content": None, "tool_calls": [CALLED]},
        ],
        "tools": [
            {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}}
        ],
    }
    assert second == {
        "messages": [
            {"role": "assistant", "content": None, "tool_calls": [CALLED]},
            {"role": "tool", "content": "3", "tool_call_id": "t1"},
            {"role": "assistant", "content": "three"},
        ],
        "tools": None,
    }


def test_an_answer_may_list_its_tool_calls_itself() -> None:
    listed = {"tool_calls__0__id": "t1", "tool_calls__0__name": "add", "tool_calls__0__arguments": '{"a": 1}'}
    said = {f"completion__0__{key}": value for key, value in listed.items()}
    assert messages_of(chat("x", 1, completion__0__role="assistant", **said)) == [
        [{"role": "assistant", "content": None, "tool_calls": [CALLED]}]
    ]


def test_two_spans_of_one_answer_are_one_conversation() -> None:
    said = {"gen_ai.response.id": "R1", f"{COMPLETION}.role": "assistant", f"{COMPLETION}.content": "yes"}
    asked = {f"{PROMPT}.0.role": "user", f"{PROMPT}.0.content": "the proxy's"}
    proxy = call("p", 0, 3, attributes=said | asked, name="litellm_request")
    assert messages_of(proxy, call("x", 1, 2, attributes=said)) == [[{"role": "assistant", "content": "yes"}]]


@pytest.mark.parametrize(
    "attributes, expected",
    [
        ({"gen_ai.operation.name": "chat"}, 1),
        ({"gen_ai.operation.name": "text_completion"}, 1),
        ({"gen_ai.operation.name": "generate_content"}, 1),
        ({"gen_ai.operation.name": "responses"}, 1),
        ({"gen_ai.operation.name": "my_chat", f"{COMPLETION}.role": "assistant"}, 1),
        ({"openinference.span.kind": "LLM"}, 1),
        ({"agentops.span.kind": "llm"}, 1),
        ({"gen_ai.output.messages": "[]"}, 1),
        ({"gen_ai.operation.name": "invoke_agent"}, 0),
        ({"gen_ai.operation.name": "create_agent"}, 0),
        ({"gen_ai.operation.name": "execute_tool"}, 0),
        ({"gen_ai.operation.name": "embeddings"}, 0),
        ({"gen_ai.operation.name": "invoke_agent", f"{COMPLETION}.role": "assistant"}, 0),
        ({"gen_ai.operation.name": "search_memory"}, 0),
        ({"openinference.span.kind": "CHAIN"}, 0),
        ({"openinference.span.kind": "AGENT", "gen_ai.output.messages": "[]"}, 0),
        ({"traceloop.span.kind": "workflow"}, 0),
        ({"agentops.span.kind": "agent"}, 0),
    ],
)
def test_only_calls_of_models_are_conversations(attributes: dict[str, Any], expected: int) -> None:
    spans = [span("x", 1, attributes=attributes | {"gen_ai.request.model": "m"})]
    assert len(messages_of(*spans)) == expected


def test_a_call_that_failed_is_no_conversation_unless_it_was_answered_in_part() -> None:
    asked = {f"{PROMPT}.0.role": "user", f"{PROMPT}.0.content": "hi"}
    begun = {f"{COMPLETION}.role": "assistant", f"{COMPLETION}.content": "I th"}
    failed = call("x", 1, attributes=asked, status="ERROR")
    assert [
        len(conversation)
        for conversation in messages_of(failed, call("y", 2, attributes=asked | begun, status="ERROR"))
    ] == [2]


def test_message_without_role_is_omitted_unless_its_fields_imply_one() -> None:
    assert messages_of(
        chat(
            "x",
            1,
            prompt__0__content="who?",
            prompt__1__tool_call_id="t1",
            prompt__1__content="3",
            prompt__2__role="dog",
        )
    ) == [[{"role": "tool", "content": "3", "tool_call_id": "t1"}]]


@pytest.mark.parametrize("missing", ["name", "call__id"])
def test_a_tool_that_cannot_be_called_is_left_out(missing: str) -> None:
    said = {"name": "add", "parameters": "{}", "call__id": "t1"}
    used = tool("x", 2, **{key: value for key, value in said.items() if key != missing})
    assert messages_of(chat("x", 1, completion__0__role="assistant"), used) == [
        [{"role": "assistant", "content": None}]
    ]


def test_a_tool_without_a_type_is_a_function_and_without_parameters_gets_none() -> None:
    (messages,) = messages_of(chat("x", 1, completion__0__role="assistant"), tool("x", 2, name="f", call__id="t"))
    assert messages[0]["tool_calls"] == [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


@pytest.mark.parametrize(
    "said, messages",
    [
        ({"prompt": "whole"}, None),
        ({"prompt__role": "user", "prompt__content": "hi"}, [{"role": "user", "content": "hi"}]),
        ({"prompt__0__role": "user", "prompt__filter": "x"}, [{"role": "user", "content": ""}]),
        ({"completion__0__role": "tool", "completion__0__content": "x"}, []),
        ({"request__0": "x", "request__functions": "f"}, []),
        ({"request__model": "m"}, []),
        ({"response__model": "m"}, []),
    ],
)
def test_malformed_message_attributes_are_ignored(said: dict[str, Any], messages: list[Any] | None) -> None:
    assert messages_of(chat("x", 1, **said)) == ([] if messages is None else [messages])


def test_parameters_that_are_no_json_are_left_out_of_the_tool() -> None:
    (conversation,) = TraceToMessages().adapt(
        [call("x", 1, attributes={f"{FUNCTION}.name": "f", f"{FUNCTION}.parameters": "{"})]
    )
    assert conversation["tools"] == [
        {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}
    ]
