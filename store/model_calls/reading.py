"""Reader of requests and responses in all supported protocols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from store.model_calls.items import read_message, read_part
from store.model_calls.json_values import (
    Json,
    as_count,
    as_ids,
    as_list,
    as_object,
    as_objects,
    as_text,
    first_text,
    to_json,
)  # fmt: skip
from store.model_calls.model_call import Choice, Message, MessagePart, ModelCall, Protocol, Usage

_TOKEN_ID: Final = "token_id:"  # noqa: S105 - the prefix of tokens in vLLM's answers with `return_tokens_as_token_ids`
_SETTINGS: Final[Mapping[str, str]] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "n": "choice.count",
    "stop": "stop_sequences",
    "stop_sequences": "stop_sequences",
    "logprobs": "logprobs",
    "top_logprobs": "top_logprobs",
    "reasoning_effort": "reasoning_effort",
    "reasoning": "reasoning",
    "thinking": "thinking",
    "tool_choice": "tool_choice",
    "response_format": "response_format",
    "text": "text_format",
    "text_format": "text_format",
    "output_format": "response_format",
    "previous_response_id": "previous_response_id",
    "conversation": "conversation",
    "suffix": "suffix",
}
"""For each field of a request: the part of its attribute name after `gen_ai.request.`."""


def read_call(protocol: Protocol, request: Json, response: Json, *, is_incomplete: bool = False) -> ModelCall:
    """Return a call as a `ModelCall`. Malformed fields are left out; no exception is raised.

    Args:
        protocol: the protocol of the call.
        request: the body of the request.
        response: the body of the response, or the result of `StreamReader.response`; empty without a response.
        is_incomplete: whether the end of the response is missing.
    """
    settings = {name: request[field] for field, name in _SETTINGS.items() if request.get(field) is not None}
    choices, prompt_ids = _choices(protocol, response)
    return ModelCall(
        protocol=protocol,
        model=first_text(request, "model"),
        settings={
            name: value if isinstance(value, (bool, int, float)) else to_json(value) for name, value in settings.items()
        },
        tools=tuple(
            read_tool(tool) for tool in [*as_objects(request.get("tools")), *as_objects(request.get("functions"))]
        ),
        messages=tuple(_messages(protocol, request)),
        response_id=first_text(response, "id"),
        response_model=first_text(response, "model"),
        choices=tuple(choices),
        usage=_usage(protocol, as_object(response.get("usage")), prompt_ids, choices),
        prompt_token_ids=prompt_ids,
        is_streaming=request.get("stream") is True,
        is_incomplete=is_incomplete,
        fingerprint=first_text(response, "system_fingerprint"),
    )


def read_tool(tool: Json) -> Json:
    """Return a tool in the form of `ModelCall.tools`."""
    # The Chat API nests a function's fields below `function`, and the Responses API does not. Anthropic calls the
    # schema `input_schema`, and its functions have no type.
    function = as_object(tool.get("function")) or tool
    is_function = as_text(tool.get("type")) in {None, "function"} or "input_schema" in tool
    if not is_function or as_text(function.get("name")) is None:
        name = first_text(as_object(tool.get("custom")), "name") or first_text(tool, "name", "type") or ""
        return {"name": name, "definition": to_json(tool)}
    schema = function.get("parameters") or function.get("input_schema")
    fields = {
        "name": function["name"],
        "description": as_text(function.get("description")),
        "parameters": None if schema is None else to_json(schema),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _messages(protocol: Protocol, request: Json) -> list[Message]:
    match protocol:
        case Protocol.CHAT:
            return _sequence(request.get("messages"))
        case Protocol.MESSAGES:
            return [*_system(request.get("system")), *_sequence(request.get("messages"))]
        case Protocol.RESPONSES:
            return [*_system(request.get("instructions")), *_sequence(request.get("input"))]
        case _:
            prompt = request.get("prompt") if protocol is Protocol.COMPLETIONS else request.get("input")
            texts = [text for text in as_list(prompt) if isinstance(text, str)] or [prompt]
            return [Message("user", (MessagePart("text", to_json(text)),)) for text in texts if text not in (None, "")]


def _sequence(value: Any) -> list[Message]:
    items = as_list(value) if isinstance(value, list) else [] if value is None else [value]
    messages = [
        read_message(item, keeps_unknown=True) or Message("", (read_part(item),)) for item in items if item != ""
    ]
    return [message for message in messages if message.role or message.parts]


def _system(value: Any) -> list[Message]:
    """Return the system prompt. The Responses API also accepts a list of messages as instructions."""
    items = as_list(value)
    if any("role" in as_object(item) for item in items):
        return _sequence(items)
    message = read_message({"role": "system", "content": value})
    return [message] if message is not None and message.parts else []


def _choices(protocol: Protocol, response: Json) -> tuple[list[Choice], list[int]]:
    """Return the choices of a response, and the token ids of the prompt."""
    prompt_ids = as_ids(response.get("prompt_token_ids"))
    match protocol:
        case Protocol.CHAT | Protocol.COMPLETIONS:
            items = sorted(as_objects(response.get("choices")), key=lambda item: as_count(item.get("index")) or 0)
            # Agent-lightning's instrumentation of vLLM adds the token ids of the first choice to the response object.
            first_choice_ids = as_ids(response.get("response_token_ids"))
            choices = [_choice(item, [] if index else first_choice_ids) for index, item in enumerate(items)]
            return choices, prompt_ids or (as_ids(items[0].get("prompt_token_ids")) if items else [])
        case Protocol.RESPONSES if response:
            return [_of_output(response)], prompt_ids
        case Protocol.MESSAGES if response:
            message = read_message({"role": None, **response}, "assistant")
            assert message is not None  # `read_message` returns a message for every object
            return [Choice(message, first_text(response, "stop_reason"), _response_ids(response))], prompt_ids
        case _:
            return [], []


def _choice(item: Json, token_ids: list[int]) -> Choice:
    message = read_message({"role": None, **item}, "assistant", keeps_unknown="message" in item)
    assert message is not None  # `read_message` returns a message for every object
    logprobs = _as_in_chat(as_object(item.get("logprobs")))
    ids = as_ids(item.get("token_ids")) or as_ids(as_object(item.get("provider_specific_fields")).get("token_ids"))
    ids = ids or token_ids or _ids_in(logprobs)
    return Choice(message, first_text(item, "finish_reason"), ids, logprobs)


def _response_ids(response: Json) -> list[int]:
    return as_ids(response.get("response_token_ids")) or as_ids(response.get("token_ids"))


def _as_in_chat(logprobs: Json) -> Json:
    """Return log probabilities in the form of the Chat API, which has one object for each token.

    The Completions API has a list of tokens and a list of values instead.
    """
    values = as_list(logprobs.get("token_logprobs"))
    if not values:
        return {name: tokens for name in ("content", "refusal") if (tokens := as_list(logprobs.get(name)))}
    tokens = as_list(logprobs.get("tokens"))
    return {
        "content": [
            {"token": tokens[index] if index < len(tokens) else None, "logprob": value}
            for index, value in enumerate(values)
        ]
    }


def _ids_in(logprobs: Json) -> list[int]:
    """Return the token ids that stand in place of the tokens in log probabilities; empty if any token is not an id.

    vLLM writes `token_id:<id>` in place of each token if the request contains `return_tokens_as_token_ids`.
    """
    tokens = [as_text(token.get("token")) or "" for token in as_objects(logprobs.get("content"))]
    numbers = [token.removeprefix(_TOKEN_ID) for token in tokens if token.startswith(_TOKEN_ID)]
    return [int(text) for text in numbers] if len(numbers) == len(tokens) and all(map(str.isdecimal, numbers)) else []


def _of_output(response: Json) -> Choice:
    """Return the output items of the Responses API as one choice."""
    parts: list[MessagePart] = []
    logprobs: list[Any] = []
    for item in as_list(response.get("output")):
        if as_object(item).get("type") != "message":
            parts.append(read_part(item))
            continue
        message = read_message(item)
        parts += message.parts if message is not None else ()
        logprobs += [entry for part in as_objects(item.get("content")) for entry in as_list(part.get("logprobs"))]
    reason = first_text(as_object(response.get("incomplete_details")), "reason")
    status = first_text(response, "status")
    return Choice(
        Message("assistant", tuple(parts)),
        reason or (None if status in {"in_progress", "queued"} else status),
        _response_ids(response),
        {"content": logprobs} if logprobs else {},
    )


def _usage(protocol: Protocol, usage: Json, prompt_ids: list[int], choices: list[Choice]) -> Usage:
    details = [as_object(value) for name, value in usage.items() if name.endswith("_details")]
    # LangChain names these fields `…_detail`, without the s.
    details += [
        as_object(value) for name, value in usage.items() if name.endswith("_detail") or name == "cache_creation"
    ]
    prompt = _count([usage], "prompt_tokens", "input_tokens")
    completion = _count([usage], "completion_tokens", "output_tokens")
    total = _count([usage], "total_tokens")
    cached = _count(
        [usage, *details], "cached_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens", "cache_read"
    )
    written = _count(
        [usage, *details],
        "cache_creation_input_tokens",
        "cache_write_tokens",
        "cache_creation_tokens",
        "cache_creation",
    )
    if written is None and (lifetimes := as_object(usage.get("cache_creation"))):
        written = sum(count for value in lifetimes.values() if (count := as_count(value)) is not None)
    if protocol is Protocol.MESSAGES and prompt is not None:
        # Anthropic's count of prompt tokens excludes the tokens that were read from or written to a cache.
        prompt += (cached or 0) + (written or 0)
    # A stream contains the usage only if the client requests it. Otherwise the token ids are counted.
    if prompt is None and prompt_ids:
        prompt = len(prompt_ids)
    if completion is None and any(choice.token_ids for choice in choices):
        completion = sum(len(choice.token_ids) for choice in choices)
    if total is None and prompt is not None and completion is not None:
        total = prompt + completion
    reasoning = _count([usage, *details], "reasoning_tokens", "thinking_tokens", "reasoning")
    return Usage(prompt, completion, total, cached, written, reasoning)


def _count(objects: list[Json], *names: str) -> int | None:
    counts = (as_count(fields.get(name)) for name in names for fields in objects)
    return next((count for count in counts if count is not None and count >= 0), None)
