"""Each protocol that the proxy passes on is recorded under the same names, streamed or not."""

from __future__ import annotations

from typing import Any

import aiohttp
import orjson
import pytest

from tests.llm_proxy.model_server import MESSAGES, MODEL, ModelServer, events, replies, streams
from tests.llm_proxy.proxied_agent import CLIENT_KEY, Agent

ANTHROPIC: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": MODEL,
    "content": [
        {"type": "thinking", "thinking": "seven sixes"},
        {"type": "text", "text": "It is 42."},
        {"type": "tool_use", "id": "toolu_1", "name": "multiply", "input": {"a": 7}},
    ],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 5, "output_tokens": 6},
}
ANTHROPIC_STREAM: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**ANTHROPIC, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "seven sixes"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "It is "}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "42."}},
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "tool_use", "id": "toolu_1", "name": "multiply", "input": {}},
    },
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"a"'}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": ":7}"}},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 6}},
    {"type": "message_stop"},
]


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_anthropic_messages_are_forwarded_and_recorded(
    agent: Agent, model: ModelServer, http: aiohttp.ClientSession, is_stream: bool
) -> None:
    raw = b"".join(
        b"event: " + str(event["type"]).encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"
        for event in ANTHROPIC_STREAM
    )
    model.will(streams(raw[:100], raw[100:]) if is_stream else replies(ANTHROPIC))
    asked = {"model": MODEL, "system": "Be brief.", "max_tokens": 9, "stream": is_stream, "messages": MESSAGES}
    async with http.post(f"{agent.url}/messages", json=asked, headers={"x-api-key": CLIENT_KEY}) as response:
        received = await response.read()
    assert received == (raw if is_stream else orjson.dumps(ANTHROPIC))
    assert model.asked[0].path == "/v1/messages"
    span = await agent.span()
    assert span.name == "openai.chat.completion"
    assert (
        span.attributes.items()
        >= {
            "gen_ai.system": "anthropic",
            "gen_ai.prompt.0.role": "system",
            "gen_ai.prompt.0.content": "Be brief.",
            "gen_ai.prompt.1.content": "What is seven times six?",
            "gen_ai.completion.0.content": "It is 42.",
            "gen_ai.completion.0.reasoning_content": "seven sixes",
            "gen_ai.completion.0.finish_reason": "tool_use",
            "gen_ai.completion.0.tool_calls.0.id": "toolu_1",
            "gen_ai.completion.0.tool_calls.0.arguments": '{"a":7}',
            "gen_ai.response.id": "msg_1",
            "gen_ai.usage.prompt_tokens": 5,
            "gen_ai.usage.completion_tokens": 6,
            "gen_ai.usage.total_tokens": 11,
        }.items()
    )


RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "model": MODEL,
    "status": "completed",
    "output": [
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "seven sixes"}]},
        {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "It is 42.", "annotations": []}],
        },
        {"type": "function_call", "id": "f", "call_id": "call-1", "name": "multiply", "arguments": '{"a":7}'},
    ],
    "usage": {"input_tokens": 5, "output_tokens": 6, "total_tokens": 11},
}


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.slow
async def test_responses_api_calls_are_forwarded_and_recorded(
    agent: Agent, model: ModelServer, is_stream: bool
) -> None:
    stream: list[Any] = [
        {"type": "response.created", "sequence_number": 0, "response": {**RESPONSE, "output": [], "usage": None}},
        {"type": "response.output_text.delta", "sequence_number": 1, "delta": "It is 42."},
        {"type": "response.completed", "sequence_number": 2, "response": RESPONSE},
    ]
    model.will(streams(events(*stream)) if is_stream else replies(RESPONSE))
    conversation: Any = [
        {"role": "user", "content": "What is seven times six?"},
        {"type": "function_call", "call_id": "call-0", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call-0", "output": "13"},
    ]
    asked: Any = {"model": MODEL, "instructions": "Be brief.", "input": conversation}
    if is_stream:
        assert len([event async for event in await agent.client.responses.create(**asked, stream=True)]) == 3
    else:
        create: Any = agent.client.responses.create
        assert (await create(**asked)).output_text == "It is 42."
    assert (await agent.span()).attributes.items() >= {
        "gen_ai.prompt.0.role": "system",
        "gen_ai.prompt.1.content": "What is seven times six?",
        "gen_ai.prompt.2.tool_calls.0.name": "add",
        "gen_ai.prompt.3.role": "tool",
        "gen_ai.prompt.3.tool_call_id": "call-0",
        "gen_ai.prompt.3.content": "13",
        "gen_ai.completion.0.content": "It is 42.",
        "gen_ai.completion.0.reasoning_content": "seven sixes",
        "gen_ai.completion.0.finish_reason": "completed",
        "gen_ai.completion.0.tool_calls.0.id": "call-1",
        "gen_ai.response.id": "resp_1",
        "gen_ai.usage.completion_tokens": 6,
    }.items()


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_plain_completions_are_forwarded_and_recorded(agent: Agent, model: ModelServer, is_stream: bool) -> None:
    def choice(text: str, ids: list[int], finish: str | None, **more: Any) -> dict[str, Any]:
        values = {"tokens": ["t"] * len(ids), "token_logprobs": [-0.5] * len(ids)}
        said = {"index": 0, "text": text, "token_ids": ids, "finish_reason": finish, "logprobs": values, **more}
        return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL, "choices": [said]}

    parts = [choice("It ", [1], None, prompt_token_ids=[8, 9]), choice("is 42.", [2, 3], "stop")]
    answer = choice("It is 42.", [1, 2, 3], "stop", prompt_token_ids=[8, 9])
    model.will(streams(events(*parts)) if is_stream else replies(answer))
    asked: Any = {"model": MODEL, "prompt": "Seven times six?"}
    if is_stream:
        assert len([chunk async for chunk in await agent.client.completions.create(**asked, stream=True)]) == 2
    else:
        create: Any = agent.client.completions.create
        assert (await create(**asked)).choices[0].text == "It is 42."
    attributes = (await agent.span()).attributes
    assert attributes["gen_ai.request.type"] == "completion"
    assert attributes["gen_ai.prompt.0.content"] == "Seven times six?"
    assert attributes["gen_ai.completion.0.content"] == "It is 42."
    assert attributes["prompt_token_ids"] == [8, 9]
    assert attributes["response_token_ids"] == [1, 2, 3]
    assert len(orjson.loads(str(attributes["logprobs.content"]))) == 3


async def test_embeddings_are_forwarded_and_recorded_without_their_vectors(agent: Agent, model: ModelServer) -> None:
    vector = {"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    model.will(replies({"object": "list", "data": [vector], "model": MODEL, "usage": usage}))
    response = await agent.client.embeddings.create(model=MODEL, input=["a", "b"], encoding_format="float")
    span = await agent.span()
    assert response.data[0].embedding == [0.5, 0.25]
    assert span.name == "openai.embeddings"
    assert span.attributes["gen_ai.prompt.1.content"] == "b"
    assert span.attributes["gen_ai.usage.prompt_tokens"] == 2
    assert not [value for value in span.attributes.values() if value == [0.5, 0.25]]
