"""Reader of messages and of their parts, in the forms of all protocols and conventions.

The forms are defined by OpenAI's Chat and Responses APIs, by Anthropic's Messages API, by compatible servers, and by
OpenTelemetry's GenAI convention. An item of an unknown type becomes a part of the kind `unknown`. The functions raise
no exceptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from store.model_calls.json_values import Json, as_list, as_object, as_objects, as_text, compact, first_text, to_json
from store.model_calls.model_call import FUNCTION, Message, MessagePart, PartKind

_TEXTS: Final = frozenset({"text", "input_text", "output_text", "summary_text"})
_THOUGHTS: Final = frozenset({"reasoning", "reasoning_text", "thinking", "redacted_thinking"})
_TOOL_CALLS: Final[Mapping[str, tuple[str, ...]]] = {
    "function": ("arguments", "input", "parameters"),
    "custom": ("input",),
    "tool_call": ("arguments", "input", "parameters"),
    "tool_use": ("input",),
    "function_call": ("arguments",),
    "custom_tool_call": ("input",),
    "server_tool_call": ("server_tool_call",),
    "server_tool_use": ("input",),
    "mcp_tool_use": ("input",),
    "mcp_call": ("arguments",),
    "mcp_approval_request": ("arguments",),
    "tool_search_call": ("arguments",),
    "local_shell_call": ("action",),
    "shell_call": ("action",),
    "apply_patch_call": ("operation",),
    "computer_call": ("action", "actions"),
    "web_search_call": ("action",),
    "file_search_call": ("queries",),
    "code_interpreter_call": ("code",),
    "image_generation_call": (),
}
"""The fields that may contain the arguments, by the type of the tool call."""
_FUNCTIONS: Final = frozenset({"function", "tool_call", "tool_use", "function_call"})
_TOOL_RESULTS: Final = frozenset({
    "tool_result", "tool_call_response", "server_tool_call_response", "function_call_output", "custom_tool_call_output",
    "local_shell_call_output", "shell_call_output", "apply_patch_call_output", "computer_call_output",
    "tool_search_output", "mcp_approval_response", "mcp_list_tools", "mcp_tool_result", "web_search_tool_result",
    "web_fetch_tool_result", "code_execution_tool_result", "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result", "tool_search_tool_result",
})  # fmt: skip
_FUNCTION_RESULTS: Final = frozenset({"tool_result", "tool_call_response", "function_call_output"})
_CUSTOM: Final = frozenset({"custom", "custom_tool_call", "custom_tool_call_output"})
_MEDIA: Final[Mapping[str, PartKind]] = {
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "image_file": "image",
    "input_audio": "audio",
    "output_audio": "audio",
    "audio": "audio",
    "audio_url": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
    "file": "document",
    "input_file": "document",
    "document": "document",
    "document_url": "document",
    "container_upload": "document",
    "search_result": "document",
    "blob": "document",
    "uri": "document",
}
_PART_TYPES: Final = frozenset({*_TEXTS, *_THOUGHTS, "refusal", *_TOOL_CALLS, *_TOOL_RESULTS, *_MEDIA})
_MODALITIES: Final[Mapping[str, PartKind]] = {"image": "image", "audio": "audio", "video": "video"}

_REASONING_FIELDS: Final = ("reasoning_content", "reasoning", "thinking")
_REASONING_DETAILS: Final = ("reasoning_details", "thinking_blocks", "reasoning_signature", "reasoning_opaque")
_CITATIONS: Final = ("annotations", "citations")
_MESSAGE_FIELDS: Final = frozenset({
    *_REASONING_FIELDS, *_REASONING_DETAILS, *_CITATIONS, "audio", "content", "finish_details", "finish_reason",
    "function_call", "id", "images", "index", "logprobs", "message", "name", "object", "parsed", "parts",
    "prompt_token_ids", "provider_specific_fields", "refusal", "role", "status", "stop_reason", "text", "token_ids",
    "tool_call_id", "tool_calls", "type",
})  # fmt: skip
_COMMON_FIELDS: Final = frozenset({"role", "content", "tool_calls", "tool_call_id", "name"})
"""The usual fields of messages. If a message has no other fields, the slow search for other fields is skipped."""
_SPEAKERS: Final = ("system", "developer", "user", "assistant")
_OF_CLIENTS: Final = frozenset({"parsed", "parsed_arguments", "parsed_output"})
"""Fields that the client libraries of the APIs add to items."""


def read_message(value: Any, role: str = "", *, keeps_unknown: bool = False) -> Message | None:
    """Return the message of a value.

    Args:
        value: a message, a choice with a message, an item of the Responses API, or the content of a message as text.
        role: the role of a message that does not name its role.
        keeps_unknown: whether unknown fields of the message become parts of the kind `unknown`.

    Returns:
        None for empty text, and for a value that is neither text nor an object.
    """
    if isinstance(value, str):
        return Message(role or "user", (MessagePart("text", value),)) if value else None
    if not isinstance(value, dict):
        return None
    fields = cast("Json", value)
    content = fields.get("content")
    if isinstance(content, str) and fields.keys() == {"role", "content"} and fields["role"] in _SPEAKERS:
        return Message(fields["role"], (MessagePart("text", content),))  # most messages are of this form
    if inner := as_object(fields.get("message")):
        fields = {**fields, **inner}
    kind = as_text(fields.get("type")) or ""
    if "role" not in fields and (kind in _PART_TYPES or (keeps_unknown and kind not in {"", "message"})):
        part = read_part(fields)
        return Message(_role_of(part, role), (part,))
    parts = [read_part(item) for item in _items(fields.get("parts"))] or _parts(fields, keeps_unknown=keeps_unknown)
    call_id = first_text(fields, "tool_call_id")
    item_role = as_text(fields.get("role")) or ""
    is_result = any(part.kind == "tool_result" for part in parts)
    if (call_id is not None or item_role in {"tool", "function"}) and not is_result:
        parts = [_result_of(call_id, fields, parts)]
        is_result = True
    return Message(item_role or role or ("tool" if is_result else ""), tuple(parts), first_text(fields, "name"))


def _role_of(part: MessagePart, role: str) -> str:
    if part.kind in {"tool_call", "reasoning"}:
        return "assistant"
    if part.kind == "tool_result":
        return "assistant" if part.tool == "mcp_list_tools" else "tool"
    return role


def _items(value: Any) -> list[Any]:
    """Return the items of a list of content; other content as the only item; nothing for None."""
    if value is None:
        return []
    return as_list(value) if isinstance(value, list) else [value]


def _parts(fields: Json, *, keeps_unknown: bool) -> list[MessagePart]:
    content = [read_part(item) for item in _items(fields.get("content")) or _items(fields.get("text"))]
    if fields.keys() <= _COMMON_FIELDS:
        return [*content, *(_tool_call(item) for item in _items(fields.get("tool_calls")))]
    if citations := {name: fields[name] for name in _CITATIONS if as_list(fields.get(name))}:
        content = [_with(part, citations) if part.kind == "text" else part for part in content]
    parts = [*_reasoning(fields), *content]
    if refusal := first_text(fields, "refusal"):
        parts.append(MessagePart("refusal", refusal))
    if audio := as_object(fields.get("audio")):
        parts.append(read_part({"type": "audio", **audio}))
    parts += [read_part(item) for item in as_list(fields.get("images"))]
    parts += [_tool_call(item) for item in _items(fields.get("tool_calls"))]
    if as_object(fields.get("function_call")):
        parts.append(_tool_call({**as_object(fields["function_call"]), "type": "function_call"}))
    if keeps_unknown:
        parts += [
            read_part({"type": name, name: item})
            for name, item in fields.items()
            if name and name not in _MESSAGE_FIELDS and item and isinstance(item, (str, list, dict))
        ]
    return parts


def _reasoning(fields: Json) -> list[MessagePart]:
    details = {name: fields[name] for name in _REASONING_DETAILS if fields.get(name)}
    value = next((fields[name] for name in _REASONING_FIELDS if fields.get(name)), None)
    if value is None and not details:
        return []
    return [_with(read_part({"type": "reasoning", "text": value or ""}), details)]


def _with(part: MessagePart, details: Json) -> MessagePart:
    """Return a part with further fields in its item."""
    return read_part({**to_item(part), **details}) if details else part


def _tool_call(value: Any) -> MessagePart:
    fields = as_object(value)
    kind = as_text(fields.get("type")) or ("custom" if as_object(fields.get("custom")) else "function")
    return read_part({**fields, "type": kind} if fields else value)


def _result_of(call_id: str | None, fields: Json, parts: list[MessagePart]) -> MessagePart:
    content = [to_item(part) for part in parts] if isinstance(fields.get("content"), list) else fields.get("content")
    return read_part({"type": "tool_result", "tool_use_id": call_id, "content": "" if content is None else content})


def read_part(value: Any) -> MessagePart:
    """Return one part of a message's content, or one item of a response's output."""
    if isinstance(value, str):
        return MessagePart("text", value)
    if not isinstance(value, dict):
        return _untyped(value)
    received = cast("Json", value)
    item = {name: field for name, field in compact(received).items() if name not in _OF_CLIENTS}
    kind = as_text(item.get("type")) or ""
    if kind in _TOOL_CALLS:
        return _call(kind, item, received)
    if kind in _TOOL_RESULTS:
        return _result(kind, item)
    return _content_part(kind, item)


def _content_part(kind: str, item: Json) -> MessagePart:
    if kind in _TEXTS or (not kind and isinstance(item.get("text"), str)):
        return _text(item)
    if kind in _THOUGHTS:
        return _thought(item)
    if kind == "refusal":
        return MessagePart("refusal", first_text(item, "refusal", "content") or "")
    if kind in _MEDIA:
        modality = first_text(item, "modality") or ""
        medium = _MODALITIES[modality] if modality in _MODALITIES else _MEDIA[kind]
        return MessagePart(medium, first_text(item, "transcript") or "", item=item)
    return MessagePart("unknown", first_text(item, "text") or "", item=item) if kind else _untyped(item)


def _untyped(value: Any) -> MessagePart:
    return MessagePart("unknown", item={"type": "unknown", "value": value})


def _text(item: Json) -> MessagePart:
    text = as_text(item.get("text")) if "text" in item else as_text(item.get("content"))
    if text is None:
        return MessagePart("unknown", item=item)
    item.pop("logprobs", None)
    is_plain = item.keys() <= {"type", "text"} or item.keys() <= {"type", "content"}
    return MessagePart("text", text, item={} if is_plain else {"type": "text", **item})


def _thought(item: Json) -> MessagePart:
    texts = [item[name] for name in ("text", "thinking", "reasoning", "summary", "content") if name in item]
    text = "".join(_plain_text(value) or "" for value in texts)
    has_text_alone = len(item) == 1 + len(texts) and len(texts) <= 1 and item["type"] != "redacted_thinking"
    is_plain = has_text_alone and all(_plain_text(value) is not None for value in texts)
    return MessagePart("reasoning", text, item={} if is_plain else item)


def _plain_text(value: Any) -> str | None:
    """Return text, or the joined texts of the objects in a list; None if the value contains anything else."""
    if not isinstance(value, list):
        return as_text(value)
    texts = [as_text(inner.get("text")) for inner in as_objects(value) if inner.keys() <= {"type", "text"}]
    return "".join(text or "" for text in texts) if len(texts) == len(as_list(value)) else None


def _call(kind: str, item: Json, received: Json) -> MessagePart:
    tool = FUNCTION if kind in _FUNCTIONS else "custom" if kind in _CUSTOM else kind
    nested = as_object(received.get(kind)) if kind in {"function", "custom"} else {}
    fields = nested or (received if tool in {FUNCTION, "custom"} else item)
    arguments = next((value for name in _TOOL_CALLS[kind] if (value := fields.get(name)) is not None), None)
    call_id = first_text(item, "call_id", "id")
    name = first_text(fields, "name") or ("" if tool == FUNCTION else kind.removesuffix("_call"))
    # Clients may change the order of fields, but not in arguments that a model wrote. Sorting makes the texts equal.
    text = "" if arguments is None else to_json(arguments, is_sorted=tool not in {FUNCTION, "custom"})
    call_fields = {"type", "index", "id", "call_id", "name", "status", "function", *_TOOL_CALLS[kind]}
    is_plain = item.keys() <= call_fields and as_object(item.get(kind)).keys() <= {
        "name",
        *_TOOL_CALLS[kind],
        *_OF_CLIENTS,
    }
    return MessagePart("tool_call", text, name, call_id, tool, item={} if tool == FUNCTION and is_plain else item)


def _result(kind: str, item: Json) -> MessagePart:
    value = next((item[name] for name in ("response", "result", "output", "content") if name in item), "")
    parts = tuple(read_part(inner) for inner in as_list(value))
    joined = "\n".join(part.text for part in parts if part.text)
    text = value if isinstance(value, str) else joined or to_json(value, is_sorted=True)
    call_id = first_text(item, "tool_use_id", "call_id", "tool_call_id", "approval_request_id", "id")
    tool = FUNCTION if kind in _FUNCTION_RESULTS else "custom" if kind in _CUSTOM else kind
    result_fields = {"type", "tool_use_id", "call_id", "id", "status", "response", "result", "output", "content"}
    is_plain = tool == FUNCTION and isinstance(value, str) and item.keys() <= result_fields
    return MessagePart("tool_result", text, call_id=call_id, tool=tool, parts=parts, item={} if is_plain else item)


def to_item(part: MessagePart) -> Json:
    """Return a part as an object from which `read_part` makes an equal part."""
    if part.item:
        return part.item
    match part.kind:
        case "tool_call":
            fields = {"call_id": part.call_id, "name": part.name, "arguments": part.text}
            return {"type": "function_call", **{name: value for name, value in fields.items() if value is not None}}
        case "tool_result":
            identity = {} if part.call_id is None else {"tool_use_id": part.call_id}
            return {"type": "tool_result", **identity, "content": part.text}
        case "refusal":
            return {"type": "refusal", "refusal": part.text}
        case kind:
            return {"type": kind, "text": part.text}


def media_url(part: MessagePart) -> str | None:
    """Return the URL of an image or another medium.

    If the item contains the bytes, the URL is a `data:` URL. If the item has neither a URL nor bytes, return None.
    """
    item = part.item
    kind = as_text(item.get("type")) or ""
    inner = as_object(item.get("source")) or as_object(item.get(kind))
    url = (
        first_text(inner, "url", "file_data")
        or first_text(as_object(inner.get("image")), "url")
        or first_text(item, kind, "image_url", "url", "uri", "file_url")
    )
    if url is not None:
        return url
    data = first_text(inner, "data") or first_text(item, "data", "file_data", "content")
    if data is None or as_text(inner.get("type")) == "text":
        return None
    audio_format = first_text(inner, "format") or first_text(item, "format")
    media_type = first_text(inner, "media_type") or first_text(item, "mime_type", "media_type")
    media_type = media_type or f"{part.kind}/{audio_format or '*'}"
    return f"data:{media_type};base64,{data}"
