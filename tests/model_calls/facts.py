"""Comparison of model calls with the facts of the corpus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from store.model_calls import Choice, MessagePart, ModelCall, Protocol, StreamReader, read_call, stream_reader
from store.model_calls.json_values import parse
from store.runtime.lenient_json import storable_text
from tests.model_calls.entries import Answer, Entry

LIMIT = 1_000_000
_MEDIA = {"image", "audio", "video", "document"}


def protocol_of(entry: Entry) -> Protocol:
    """Return the protocol of an entry."""
    return Protocol(entry.protocol)


def call_of_response(entry: Entry) -> ModelCall:
    """Return the call with the response without streaming."""
    body, _ = parse(entry.body)
    return read_call(protocol_of(entry), entry.request, body)


def reader_of(entry: Entry, *pieces: bytes) -> StreamReader:
    """Return a reader that received these pieces of the stream."""
    reader = stream_reader(protocol_of(entry), LIMIT)
    for piece in pieces:
        reader.feed(piece)
    return reader


def call_of_stream(entry: Entry, reader: StreamReader) -> ModelCall:
    """Return the call with the response of a reader of its stream."""
    request = {**entry.request, "stream": True}
    is_incomplete = not reader.is_complete or reader.is_truncated
    return read_call(protocol_of(entry), request, reader.response(), is_incomplete=is_incomplete)


def differences(call: ModelCall, entry: Entry) -> list[str]:
    """Return the facts of an entry that a call contradicts or lacks."""
    checks: list[tuple[str, Any, Any]] = [
        ("protocol", call.protocol, entry.protocol),
        ("model of the request", call.model, entry.request["model"]),
        ("response id", call.response_id, entry.response_id),
        ("model of the response", call.response_model, entry.model),
        ("usage", {name: count for name, count in asdict(call.usage).items() if count is not None}, entry.usage),
        ("token ids of the prompt", tuple(call.prompt_token_ids), entry.prompt_token_ids),
        ("incomplete", call.is_incomplete, call.is_streaming and not (entry.ends and entry.is_readable)),
        ("number of choices", len(call.choices), len(entry.answers)),
    ]
    if entry.prompt is not None:
        checks += _of_prompt(call, entry.prompt)
    if entry.tools is not None:
        checks.append(("tools", tuple(tool.get("name") for tool in call.tools), entry.tools))
    if entry.settings is not None:
        checks.append(("settings", {name: call.settings.get(name) for name in entry.settings}, entry.settings))
    for index, (choice, answer) in enumerate(zip(call.choices, entry.answers, strict=False)):
        checks += [(f"choice {index}: {name}", ours, fact) for name, ours, fact in _of_choice(choice, answer)]
    return [f"{entry.name}: {name}: {ours!r}, right {fact!r}" for name, ours, fact in checks if ours != fact]


def _of_choice(choice: Choice, answer: Answer) -> Iterator[tuple[str, Any, Any]]:
    parts = choice.message.parts
    for kind in ("text", "reasoning", "refusal"):
        text = "".join(part.text for part in parts if part.kind == kind)
        yield kind, storable_text(text), getattr(answer, kind)
    calls = choice.message.tool_calls
    yield "tool calls", len(calls), len(answer.tools)
    for call, (tool, name, arguments) in zip(calls, answer.tools, strict=False):
        yield "kind of tool", call.tool, tool
        if name:
            yield "name", call.name, name
        if arguments is not None:
            yield "arguments", call.text if isinstance(arguments, str) else _parsed(call.text), arguments
    if answer.call_ids is not None:
        yield "ids of tool calls", tuple(call.call_id for call in calls), answer.call_ids
    results = [part for part in parts if part.kind == "tool_result"]
    yield "tool results", len(results), len(answer.results)
    for part, text in zip(results, answer.results, strict=False):
        yield f"tool result with {text}", text in dumped(part), True
    yield "media", tuple(part.kind for part in parts if part.kind in _MEDIA), answer.media
    unknown = tuple(part.item.get("type") for part in parts if part.kind == "unknown")
    yield "unknown items", unknown, answer.unknown
    for text in answer.fragments:
        yield f"part with {text}", any(text in dumped(part) for part in parts), True
    if answer.kinds is not None:
        yield "kinds", tuple(part.kind for part in parts), answer.kinds
    yield "finish reason", choice.finish_reason, answer.finish
    yield "token ids", tuple(choice.token_ids), answer.token_ids
    values = tuple(token["logprob"] for token in choice.logprobs.get("content", ()))
    if answer.logprobs:
        yield "log probabilities", values, answer.logprobs
    yield "role", choice.message.role, answer.role


def _of_prompt(call: ModelCall, facts: tuple[tuple[str, ...], ...]) -> Iterator[tuple[str, Any, Any]]:
    parts = [(message, part) for message in call.messages for part in message.parts]
    kinds = [part.kind for _, part in parts]
    yield "kinds of the prompt", kinds, [kind for _, kind, *_ in facts]
    if len(parts) != len(facts):
        return
    for index, ((message, part), (role, kind, *values)) in enumerate(zip(parts, facts, strict=True)):
        if kind != "tool_result":
            yield f"role of part {index} of the prompt", message.role, role
        ours, right = _prompt_values(part, values)
        yield f"part {index} of the prompt", ours, right


def _prompt_values(part: MessagePart, values: list[str]) -> tuple[Any, Any]:
    match part.kind:
        case "tool_call":
            tool, name, arguments = values
            is_exact = part.tool in {"function", "custom", "server_tool_use"}
            has_arguments = part.text == arguments if is_exact else arguments in dumped(part)
            return (part.tool, part.name if name else "", has_arguments), (tool, name, True)
        case "tool_result":
            call_id, text = values
            return (part.call_id or "", text in dumped(part)), (call_id, True)
        case "text" | "reasoning" | "refusal":
            return part.text, values[0]
        case _:
            return values[0] in dumped(part), True


def dumped(part: MessagePart) -> str:
    """Return everything that a part contains, as text."""
    texts = [part.text, part.name, part.call_id or "", json.dumps(part.item, ensure_ascii=False)]
    return "\n".join([*texts, *map(dumped, part.parts)])


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def unequal(name: str, ours: ModelCall, right: ModelCall) -> list[str]:
    """Return the fields in which two calls differ."""
    return [
        f"{name}: {field}:\n    {getattr(ours, field)!r}\n    {getattr(right, field)!r}"
        for field in ours.__slots__
        if getattr(ours, field) != getattr(right, field)
    ]
