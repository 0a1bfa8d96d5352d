"""Conversion between messages of model calls and the steps and observations of ATIF, in both directions.

If the fields of ATIF do not represent a message completely, `extra` contains the rest, so that a reader of the document
gets the same message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from mimetypes import guess_type
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from store.atif.form import AGENT, SYSTEM, USER, extra_of, note
from store.model_calls import Message, MessagePart
from store.model_calls.items import media_url, read_part, to_item
from store.model_calls.json_values import Json, as_list, as_object, as_objects, as_text
from store.model_calls.model_call import FUNCTION

IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_SOURCES: Final[Mapping[str, str]] = {"system": SYSTEM, "developer": SYSTEM, "assistant": AGENT}
_ROLES: Final[Mapping[str, str]] = {SYSTEM: "system", USER: "user", AGENT: "assistant"}
_TEXTS: Final = frozenset({"text", "refusal", "unknown"})


def step_of(message: Message) -> Json:
    """Return a step with a message, without `step_id`. The message has no tool results."""
    source = _SOURCES.get(message.role, USER)
    step: Json = {"source": source, "message": _content(message.parts)}
    if source == AGENT:
        if message.thinking:
            step["reasoning_content"] = message.thinking
        if message.tool_calls:
            step["tool_calls"] = _tool_calls(message.tool_calls)
    if message.role != _ROLES[source]:
        note(step, role=message.role)
    if message.name is not None:
        note(step, name=message.name)
    if message_of(step) != message:
        note(step, parts=[to_item(part) for part in message.parts])
    return step


def message_of(step: Json) -> Message | None:
    """Return the message of a step; None if the step represents no message."""
    extra = extra_of(step)
    if extra.get("is_message") is False:
        return None
    role, name = as_text(extra.get("role")), as_text(extra.get("name"))
    role = _ROLES[step["source"]] if role is None else role
    if "parts" in extra:
        return Message(role, tuple(read_part(item) for item in as_list(extra["parts"])), name)
    reasoning = step.get("reasoning_content")
    parts = [MessagePart("reasoning", reasoning)] if reasoning else []
    parts += [read_part(item) for item in _items(step["message"])]
    parts += [_tool_call(call) for call in step.get("tool_calls") or ()]
    return Message(role, tuple(parts), name)


def encoded(message: Message) -> Json:
    """Return a message as an object for `extra`."""
    name: Json = {} if message.name is None else {"name": message.name}
    return {"role": message.role, **name, "parts": [to_item(part) for part in message.parts]}


def decoded(value: Any) -> Message:
    """Return the message that an object in `extra` represents; see `encoded`."""
    fields = as_object(value)
    parts = tuple(read_part(item) for item in as_list(fields.get("parts")))
    return Message(as_text(fields.get("role")) or "", parts, as_text(fields.get("name")))


def add_results(steps: list[Json], message: Message) -> None:
    """Add the tool results of a message to the observation of the last step. Add its other parts as a new step."""
    if not steps:
        steps.append({"source": SYSTEM, "message": ""})
        note(steps[-1], is_message=False)
    results = as_list(steps[-1].setdefault("observation", {"results": []})["results"])
    ids = {call["tool_call_id"] for call in steps[-1].get("tool_calls") or ()}
    parts = [part for part in message.parts if part.kind == "tool_result"]
    others = [part for part in message.parts if part.kind != "tool_result"]
    for number, part in enumerate(parts):
        identity: Json = {"source_call_id": part.call_id} if part.call_id in ids else {}
        result: Json = {**identity, "content": _content(part.parts) if part.parts else part.text}
        if number:
            note(result, is_message=False)
        elif others or len(parts) > 1 or next(iter(_messages((result,))), None) != message:
            note(result, message=encoded(message))
        results.append(result)
    if others:
        step: Json = {"source": _SOURCES.get(message.role, USER), "message": _content(others)}
        note(step, is_message=False)
        steps.append(step)


def add_result_of_span(step: Json, call_id: str, text: str, span_id: str) -> None:
    """Add to a step the result of a tool call that a span of the tool records, but that no prompt contains."""
    result: Json = {"source_call_id": call_id, "content": text}
    note(result, is_message=False, span_id=span_id)
    step.setdefault("observation", {"results": []})["results"].append(result)


def result_messages(step: Json) -> Iterator[Message]:
    """Yield the messages in the observation of a step, in their order in a prompt."""
    return _messages(as_objects(as_object(step.get("observation")).get("results")))


def _messages(results: Iterable[Json]) -> Iterator[Message]:
    for result in results:
        extra = extra_of(result)
        if "message" in extra:
            yield decoded(extra["message"])
        elif extra.get("is_message") is not False:
            call_id, items = result.get("source_call_id"), _items(result.get("content"))
            if call_id is None:
                # The result of an action that is not a tool call, such as a command in the text of the agent.
                if items:
                    yield Message("user", tuple(read_part(item) for item in items))
                continue
            content = result.get("content")
            fields = {
                "type": "tool_result",
                "tool_use_id": call_id,
                "content": items if isinstance(content, list) else content or "",
            }
            yield Message("tool", (read_part(fields),))


def _content(parts: Sequence[MessagePart]) -> str | list[Json]:
    """Return the content for ATIF: a text, or a list of texts and images if an image has an address."""
    images = [image for part in parts if part.kind == "image" and (image := _image(part)) is not None]
    if not images:
        return "\n".join(part.text for part in parts if part.kind in _TEXTS and part.text)
    items: list[Json] = []
    for part in parts:
        if part.kind == "image" and (image := _image(part)) is not None:
            items.append(image)
        elif part.kind in _TEXTS and part.text:
            items.append({"type": "text", "text": part.text})
    return items


def _image(part: MessagePart) -> Json | None:
    """Return an image for ATIF; None if the image has no address, or has a type that ATIF does not allow."""
    url = media_url(part)
    if url is None or url.startswith("data:"):
        return None
    kind = as_text(as_object(part.item.get("source")).get("media_type")) or guess_type(urlsplit(url).path)[0]
    return {"type": "image", "source": {"media_type": kind, "path": url}} if kind in IMAGES else None


def _items(content: Any) -> list[Json]:
    """Return the content of a step or of a result in ATIF as items of a message."""
    if not isinstance(content, list):
        return [{"type": "text", "text": content}] if content else []
    items: list[Json] = []
    for part in as_objects(content):
        if part["type"] == "text":
            items.append({"type": "text", "text": part["text"]})
        else:
            source = as_object(part["source"])
            details = {name: value for name, value in source.items() if name != "path"}
            items.append({"type": part["type"], "source": {"type": "url", "url": source["path"], **details}})
    return items


def _tool_calls(parts: Sequence[MessagePart]) -> list[Json]:
    calls: list[Json] = []
    ids: set[str] = set()
    for number, part in enumerate(parts, start=1):
        arguments = _object(part.text)
        call_id = part.call_id or f"call_{number}"
        while call_id in ids:
            call_id = f"{call_id}_{number}"
        ids.add(call_id)
        call: Json = {"tool_call_id": call_id, "function_name": part.name, "arguments": arguments or {}}
        if call_id != part.call_id:
            note(call, call_id=part.call_id)
        if arguments is None or _text(arguments) != part.text:
            note(call, arguments=part.text)
        calls.append(call)
    return calls


def _tool_call(call: Json) -> MessagePart:
    extra = extra_of(call)
    text = as_text(extra.get("arguments"))
    return MessagePart(
        "tool_call",
        _text(call["arguments"]) if text is None else text,
        call["function_name"],
        as_text(extra["call_id"]) if "call_id" in extra else call["tool_call_id"],
        FUNCTION,
    )


def _object(text: str) -> Json | None:
    """Return the object in a JSON text; None if the text is not a JSON object, or is nested too deeply."""
    try:
        value: Any = orjson.loads(text)
        orjson.dumps(value)
    except (ValueError, TypeError, RecursionError):
        return None
    return as_object(value) if isinstance(value, dict) else None


def _text(arguments: Json) -> str:
    return orjson.dumps(arguments).decode()
