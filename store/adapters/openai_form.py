"""Conversion of messages and tools to the form of OpenAI's Chat API, for fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from store.model_calls import Message, MessagePart
from store.model_calls.items import media_url
from store.model_calls.json_values import Json, as_object
from store.model_calls.model_call import FUNCTION

_ROLES: Final = frozenset({"assistant", "developer", "function", "system", "tool", "user"})


def prompt_messages(message: Message) -> list[Json]:
    """Return a message of a prompt as messages of the Chat API.

    Each tool result becomes a message of the role `tool`, before the rest of the message. Reasoning is left out. If the
    role of the message is unknown, only the tool results are returned.
    """
    results = [_result(part, message) for part in message.parts if part.kind == "tool_result"]
    content = [part for part in message.parts if part.kind not in {"tool_call", "tool_result", "reasoning"}]
    calls = [call for part in message.tool_calls if (call := tool_call(part)) is not None]
    role = message.role or ("assistant" if message.tool_calls else "")
    if role not in _ROLES or (results and not content and not calls):
        return results
    if calls and role == "assistant":
        return [*results, {"role": role, "content": _content(content) or None, "tool_calls": calls}]
    return [*results, {"role": role, "content": _content(content)}]


def answer_message(message: Message, calls: Sequence[Json]) -> Json | None:
    """Return a message of a response as a message of the Chat API; None if its role is not `assistant`.

    Args:
        message: the message.
        calls: the tool calls that spans of tools describe. If empty, the tool calls of the message are used.
    """
    if message.role != "assistant":
        return None
    texts = [part.text for part in message.parts if part.kind == "text"]
    answer: Json = {"role": "assistant", "content": "".join(texts) if texts else None}
    if refusal := "".join(part.text for part in message.parts if part.kind == "refusal"):
        answer["refusal"] = refusal
    tool_calls = list(calls) or [call for part in message.tool_calls if (call := tool_call(part)) is not None]
    return {**answer, "tool_calls": tool_calls} if tool_calls else answer


def tool_call(part: MessagePart) -> Json | None:
    """Return a tool call; None if a call of a function has no id or no name, because OpenAI requires both.

    For any other tool, `type` is the tool's type, and the field with the name of this type contains the call.
    """
    if part.tool == FUNCTION:
        return function_call(part.call_id, part.name, part.text or "{}")
    if part.tool == "custom":
        custom = {"name": part.name, "input": part.text}
        return {"id": part.call_id, "type": "custom", "custom": custom}
    return {"id": part.call_id, "type": part.tool, part.tool: part.item}


def function_call(call_id: Any, name: Any, arguments: str) -> Json | None:
    """Return the call of a function; None if the id or the name is missing or invalid."""
    if not isinstance(call_id, str) or not isinstance(name, str) or not name:
        return None
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(part: MessagePart, message: Message) -> Json:
    content = _content(list(part.parts)) if part.parts else part.text
    if message.role == "function":
        return {"role": "function", "content": content, "name": message.name}
    return {"role": "tool", "content": content, "tool_call_id": part.call_id}


def _content(parts: Sequence[MessagePart]) -> str | list[Json]:
    """Return text, or a list of parts if there are several parts or a part that is not text."""
    if not parts:
        return ""
    if len(parts) == 1 and parts[0].kind == "text":
        return parts[0].text
    return [_content_part(part) for part in parts]


def _content_part(part: MessagePart) -> Json:
    if part.kind == "text":
        return {"type": "text", "text": part.text}
    if part.kind == "refusal":
        return {"type": "refusal", "refusal": part.text}
    if part.kind == "image" and (url := media_url(part)) is not None:
        # The Responses API puts `detail` beside the URL, and the Chat API into the object with the URL.
        detail: Json = {"detail": part.item["detail"]} if part.item.get("detail") else {}
        return {"type": "image_url", "image_url": {**detail, **as_object(part.item.get("image_url")), "url": url}}
    return part.item


def openai_tool(tool: Mapping[str, Any]) -> Json:
    """Return a tool of a request in the form of the Chat API. A tool that is not a function is returned as received."""
    if "definition" in tool:
        return as_object(_parsed(tool["definition"])) or {"type": tool.get("name")}
    parameters = _parsed(tool.get("parameters"))
    return {
        "type": "function",
        "function": {
            "name": tool["name"],
            "description": tool.get("description", ""),
            "parameters": dict[str, Any]() if parameters is None else parameters,
        },
    }


def _parsed(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return orjson.loads(text)
    except (ValueError, RecursionError):
        return None
