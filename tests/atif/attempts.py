"""Spans of attempts in many forms: protocols, conventions of attributes, branches, failures and several recorders."""

from __future__ import annotations

import json
from typing import Any

from store.atif.writing import ExportedAttempt
from store.model_calls import Protocol, attributes_of, read_call
from store.model_calls.attributes import BACKEND, CALL_SPAN
from store.models import Attempt, AttemptedRollout, OtelResource, Span, TraceStatus
from store.semconv import REWARD

START = 1_790_000_000.0
SYSTEM = {"role": "system", "content": "Be brief."}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
    }
]


def user(text: Any) -> dict[str, Any]:
    """Return a message of the user."""
    return {"role": "user", "content": text}


def use(call_id: str | None, arguments: str, **message: Any) -> dict[str, Any]:
    """Return a response that calls a tool."""
    call = {"id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **message}


def result(call_id: str, text: Any) -> dict[str, Any]:
    """Return the result of a tool."""
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def chat(number: int, messages: list[Any], *answers: dict[str, Any], **fields: Any) -> Span:
    """Return the span of a call of the Chat API."""
    request = {"model": "qwen", "messages": messages, "temperature": 0.5, **fields.pop("request", {})}
    choices = [
        {"index": index, "message": answer, "finish_reason": "stop", "token_ids": [7, 8, index]}
        for index, answer in enumerate(answers)
    ]
    logprobs = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1}, {"logprob": -0.25}]}
    response = {
        "id": f"chatcmpl-{number}",
        "model": "qwen-2",
        "choices": [{**choice, "logprobs": logprobs} for choice in choices],
        "prompt_token_ids": list(range(number)),
        "usage": {"prompt_tokens": 10 * number, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
    }
    attributes = attributes_of(read_call(Protocol.CHAT, request, response if answers else {}))
    return span(number, {**attributes, **fields.pop("attributes", {})}, name=CALL_SPAN, **fields)


def span(number: int, attributes: dict[str, Any], **fields: Any) -> Span:
    """Return a span that takes half a second."""
    values: dict[str, Any] = {
        "name": "step",
        "attributes": attributes,
        "rollout_id": "ro",
        "attempt_id": "at",
        "sequence_id": number,
        "span_id": f"{number:016x}",
        "trace_id": "0" * 31 + "1",
        "start_time": START + number,
        "end_time": START + number + 0.5,
    }
    return Span.from_attributes(**{**values, **fields})


def record(*spans: Span, **fields: Any) -> ExportedAttempt:
    """Return an attempt with some spans."""
    attempt = {"rollout_id": "ro", "attempt_id": "at", "sequence_id": 1, "start_time": START, "status": "succeeded"}
    rollout = {"rollout_id": "ro", "input": {"task": 1}, "start_time": START, "status": "succeeded", **fields}
    return ExportedAttempt(
        AttemptedRollout.model_validate({**rollout, "attempt": attempt}), Attempt.model_validate(attempt), spans
    )


def _tool_user() -> list[Span]:
    """Return calls with reasoning, tools in spaced JSON, parallel results, and a result that only a span has."""
    thought = use("c1", '{"x": 1, "y": [1.0, null]}', reasoning_content="Hm.")
    two = use("c2", "{}")
    two["tool_calls"].append({"id": "c3", "type": "function", "function": {"name": "look", "arguments": "not JSON"}})
    prompt = [SYSTEM, user("Look.")]
    again = [*prompt, use("c1", '{"x": 1, "y": [1.0, null]}'), result("c1", "seen")]
    third = [*again, two, result("c3", ""), result("c2", [{"type": "text", "text": "both"}]), user("Go on.")]
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look", "gen_ai.tool.call.id": "c9"}
    return [
        chat(1, prompt, thought, request={"tools": TOOLS, "reasoning_effort": "high"}),
        span(2, {"gen_ai.tool.name": "look", "gen_ai.tool.call.id": "c1", "n": True}, parent_id="0" * 15 + "1"),
        chat(3, again, two, request={"tools": TOOLS}),
        chat(4, third, use("c9", '{"a":"é"}'), request={"tools": [{"type": "web_search"}]}),
        span(5, {**tool, "gen_ai.tool.call.result": "late"}),
    ]


def _branches() -> list[Span]:
    """Return calls that go back, a call of another agent, several choices, and a failure."""
    answers = [{"role": "assistant", "content": text} for text in ("one", "two", "three")]
    first = [SYSTEM, user("u")]
    failed = chat(3, [*first, answers[0], user("v")], status=TraceStatus(status_code="ERROR", description="503"))
    return [
        chat(1, first, answers[0]),
        chat(2, [*first, answers[0], user("w")], answers[1], answers[2]),
        failed,
        chat(4, [*first, answers[0], user("v")], answers[2]),
        chat(5, [user("another agent")], {"role": "assistant", "content": ""}),
        chat(6, [user("few"), answers[0], user("shots")], answers[1]),
        chat(7, [*first, answers[0], user("w"), answers[1], user("x")], answers[2]),
    ]


def _recorders() -> list[Span]:
    """Return a call that the agent and a proxy recorded."""
    answer = {"role": "assistant", "content": "hello"}
    agent = chat(1, [user("hi")], answer, end_time=START + 9)
    names = [name for name in agent.attributes if "token_ids" in name or "logprobs" in name]
    attributes = {name: value for name, value in agent.attributes.items() if name not in names}
    proxied = {**agent.attributes, BACKEND: "vllm", "agl.call.model_version": "7", "llm.cost.total": 0.25}
    return [
        agent.model_copy(update={"attributes": attributes}),
        span(2, proxied, name=CALL_SPAN),
        span(3, {f"{REWARD}.0.name": "a", f"{REWARD}.0.value": 1}, name="agentlightning.annotation"),
    ]


def _anthropic() -> list[Span]:
    """Return calls of Anthropic's API with thinking and with several results in one message."""
    content: list[Any] = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "look", "input": {"x": 1}},
        {"type": "tool_use", "id": "t2", "name": "look", "input": {}},
    ]
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a"}]},
        {"type": "tool_result", "tool_use_id": "t2", "content": "b", "is_error": True},
        {"type": "text", "text": "Now answer."},
    ]
    prompt: list[Any] = [user([{"type": "text", "text": "Look.", "cache_control": {"type": "ephemeral"}}])]
    further: list[Any] = [*prompt, {"role": "assistant", "content": content}, {"role": "user", "content": results}]
    spans: list[Span] = []
    for number, messages, answer in ((1, prompt, content), (2, further, [{"type": "text", "text": "ab"}])):
        request = {"model": "claude", "system": "Be brief.", "messages": messages, "max_tokens": 9}
        response = {
            "id": f"msg_{number}",
            "role": "assistant",
            "content": answer,
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 3},
        }
        call = read_call(Protocol.MESSAGES, request, response)
        spans.append(span(number, attributes_of(call), name=CALL_SPAN))
    return spans


def _media() -> list[Span]:
    """Return calls with an image at an address, an image in the message, audio, and a refusal."""
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}}
    inline = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    text = {"type": "text", "text": "What is this?"}
    refusal = {"role": "assistant", "content": None, "refusal": "No."}
    return [
        chat(1, [user([text, image])], {"role": "assistant", "content": "A cat."}),
        chat(2, [user([text, inline, audio])], refusal),
        chat(3, [{"role": "developer", "name": "d", "content": "x"}, result("lost", "r")], use(None, "[]")),
    ]


def _conventions() -> list[Span]:
    """Return calls whose attributes other tracers wrote, with and without their texts."""
    messages = [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]
    answers = [{"role": "assistant", "parts": [{"type": "text", "content": "yo"}], "finish_reason": "stop"}]
    return [
        span(
            1,
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": "gpt",
                "gen_ai.input.messages": json.dumps(messages),
                "gen_ai.output.messages": json.dumps(answers),
                "gen_ai.usage.input_tokens": 3,
            },
            name="chat gpt",
        ),
        span(
            2,
            {
                "openinference.span.kind": "LLM",
                "llm.input_messages.0.message.role": "user",
                "llm.input_messages.0.message.content": "hi",
                "llm.output_messages.0.message.role": "assistant",
                "llm.output_messages.0.message.content": "yo",
                "llm.model_name": "m",
            },
        ),
        span(3, {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 4}),
    ]


def _bare() -> list[Span]:
    """Return spans that are no calls, without times, and with times that have no text."""
    rich = span(1, {"flag": True, "list": [1, 2], "text": "x"}, start_time=None, end_time=None)
    return [
        rich.model_copy(
            update={"resource": OtelResource(attributes={"service.name": "a"}, schema_url="s"), "kind": "C"}
        ),
        chat(2, [user("u")], {"role": "assistant", "content": "v"}, start_time=1e300, end_time=None),
    ]


ATTEMPTS = {
    "a tool user": _tool_user(),
    "branches": _branches(),
    "several recorders": _recorders(),
    "Anthropic's API": _anthropic(),
    "media": _media(),
    "other conventions": _conventions(),
    "bare spans": _bare(),
    "no spans": [],
}
