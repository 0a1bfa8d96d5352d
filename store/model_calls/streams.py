"""Readers of streamed responses. A reader returns the received part in the form of a response without streaming.

A reader ignores malformed events. After `limit` bytes of events, a reader adds no more text, token ids or log
probabilities. In both cases `is_truncated` is True. A reader still adds the data at the end of the response, such as
the usage.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Final

import orjson

from store.model_calls.json_values import Json, as_count, as_list, as_object, as_objects, as_text, parse, to_json
from store.model_calls.model_call import Protocol
from store.wire.sse import EventReader

_DONE: Final = b"[DONE]"


class StreamReader(abc.ABC):
    """Reader of one streamed response. It accumulates the events received so far."""

    def __init__(self, limit: int) -> None:
        self._events = EventReader(limit)
        self._bytes_left = limit
        self._is_unreadable = False
        self._has_end_mark = False
        self.is_empty = True
        """Whether all events so far were empty."""
        self.error: Json | None = None
        """The error that the backend sent after the beginning of its response."""

    def feed(self, chunk: bytes) -> None:
        """Process the next bytes of the stream."""
        for data in self._events.feed(chunk):
            if data == _DONE:
                self._has_end_mark = True
                continue
            self._bytes_left -= len(data)
            value, is_exact = parse(data)
            self._is_unreadable = self._is_unreadable or not is_exact
            self.add(as_object(value))

    def mark_end(self) -> None:
        """Record that the end mark was received. Client libraries do not return this mark as an event."""
        self._has_end_mark = True

    def add(self, event: Json) -> None:
        """Process the next event, which is already parsed."""
        self.is_empty = self.is_empty and not event
        if error := event.get("error"):
            self.error = as_object(error) or {"message": str(error)}
        self._take(event, keeps=self._bytes_left >= 0)

    @property
    def is_complete(self) -> bool:
        """Whether the end of the response was received."""
        return self._is_finished or (self._has_end_mark and self.error is None)

    @property
    def has_end_mark(self) -> bool:
        """Whether the stream's end mark was received. After the mark, no usage follows.

        If `is_complete` is True and this is False, the usage may still follow.
        """
        return self._has_end_mark

    @property
    def is_truncated(self) -> bool:
        """Whether a part of the response was too long or could not be read."""
        return self._bytes_left < 0 or self._events.skipped > 0 or self._is_unreadable

    @property
    @abc.abstractmethod
    def _is_finished(self) -> bool:
        """Whether the events show that the model finished."""

    @abc.abstractmethod
    def _take(self, event: Json, *, keeps: bool) -> None:
        """Process one event. If `keeps` is False, keep only data whose size does not grow with the stream."""

    @abc.abstractmethod
    def response(self) -> Json:
        """Return the part received so far, in the form of a response without streaming."""


def stream_reader(protocol: Protocol, limit: int) -> StreamReader:
    """Return a reader of one stream.

    Args:
        protocol: the protocol of the stream.
        limit: the maximum size in bytes of the events to keep.

    Raises:
        KeyError: the protocol is `EMBEDDINGS`, which has no streams.
    """
    return _READERS[protocol](limit)


def _merged(usage: Any, event: Any) -> Json:
    """Return the usage with the numbers of a later event. A null in the later event does not replace an earlier
    number.
    """
    return {**as_object(usage), **{name: value for name, value in as_object(event).items() if value is not None}}


def _append(fields: Json, name: str, value: Any) -> None:
    """Add a piece of a field: text and lists are joined, objects are joined by field, other values are replaced."""
    before = fields.get(name)
    match value:
        case None:
            return
        case str() if isinstance(before, str) and name not in {"id", "type", "role", "format"}:
            fields[name] = before + value
        case list() if isinstance(before, list):
            as_list(before).extend(as_list(value))
        case dict():
            inner = fields[name] = as_object(before)
            for key, item in as_object(value).items():
                _append(inner, key, item)
        case list():
            fields[name] = list(as_list(value))
        case _:
            fields[name] = value


class _Choice:
    """One choice of a streamed response of the Chat or Completions API."""

    def __init__(self) -> None:
        self.texts: dict[str, list[str]] = {}
        self.content: list[Any] = []
        """The pieces of the content, if some pieces are not text."""
        self.fields: Json = {}
        self.tools: list[tuple[int, Json]] = []
        """The tool calls with their indexes."""
        self.token_ids: list[int] = []
        self.logprobs: dict[str, list[Any]] = {}
        self.finish_reason: str | None = None

    def add(self, event: Json) -> None:
        ids = event.get("token_ids") or as_object(event.get("provider_specific_fields")).get("token_ids")
        if ids:
            self.token_ids += [token for token in as_list(ids) if as_count(token) is not None]
        if "logprobs" in event:
            self._add_logprobs(as_object(event["logprobs"]))
        self.add_text("text", event.get("text"))
        # Some servers send a complete message in the last event.
        for name, value in as_object(event.get("delta") or event.get("message")).items():
            if name == "tool_calls":
                for delta in as_objects(value):
                    self.add_tool(delta)
            elif name == "content" and isinstance(value, list):
                self.content += [*_text_item(self.texts.pop("content", [])), *as_list(value)]
            elif isinstance(value, str) and name != "role":
                self.add_text(name, value)
            else:
                _append(self.fields, name, value)

    def _add_logprobs(self, logprobs: Json) -> None:
        for name, items in logprobs.items():
            if isinstance(items, list):
                self.logprobs.setdefault(name, []).extend(as_list(items))

    def add_text(self, name: str, value: Any) -> None:
        if isinstance(value, str):
            self.texts.setdefault(name, []).append(value)

    def add_tool(self, delta: Json) -> None:
        tool = self._tool_of(delta)
        for kind in ("function", "custom"):
            for name, value in as_object(delta.get(kind)).items():
                inner = tool.setdefault(kind, {})
                if name != "name":
                    # Some servers send the arguments as an object.
                    _append(inner, name, value if value is None or isinstance(value, str) else to_json(value))
                elif value != inner.get(name):
                    # Some servers repeat the full name in every delta.
                    _append(inner, name, value)
        for name, value in delta.items():
            if name not in {"index", "function", "custom", "id"}:
                _append(tool, name, value)

    def _tool_of(self, delta: Json) -> Json:
        """Return the tool call that a delta continues or begins.

        Some servers leave out the index, or send the same index for all calls. In their streams, a delta with a new id
        begins a call, a delta with a known id continues that call, and a delta without an id continues the last call.
        """
        text = delta.get("index")
        index = as_count(int(text) if isinstance(text, str) and text.isdecimal() else text)
        call_id = as_text(delta.get("id")) or None
        same = [tool for number, tool in self.tools if index in {None, number}]
        last = same[-1] if same else None
        if last is not None and call_id is not None and last.get("id") not in {None, call_id}:
            last = next((tool for tool in same if tool.get("id") == call_id), None)
        if last is None:
            last = dict[str, Any]()
            self.tools.append((len(self.tools) if index is None else index, last))
        if call_id is not None:
            last["id"] = call_id
        return last

    def message(self) -> Json:
        message: Json = {"role": "assistant", "content": None, **self.fields}
        message.update({name: "".join(pieces) for name, pieces in self.texts.items()})
        if self.content:
            message["content"] = _joined_items([*self.content, *_text_item(self.texts.get("content", []))])
        if self.tools:
            ordered = sorted(self.tools, key=lambda pair: pair[0])
            message["tool_calls"] = [
                {"type": "custom" if "custom" in tool else "function", **tool} for _, tool in ordered
            ]
        return message

    def common(self, index: int) -> Json:
        return {
            "index": index,
            "finish_reason": self.finish_reason,
            "token_ids": self.token_ids or None,
            "logprobs": dict(self.logprobs) or None,
        }


def _text_item(pieces: list[str]) -> list[Json]:
    text = "".join(pieces)
    return [{"type": "text", "text": text}] if text else []


def _joined_items(items: list[Any]) -> list[Any]:
    """Return content items. Adjacent text items are joined, and so are adjacent items of reasoning."""
    joined: list[Any] = []
    for item in items:
        fields, last = as_object(item), as_object(joined[-1]) if joined else {}
        name = next((name for name in ("text", "thinking") if name in fields), None)
        if name and fields.get("type") == last.get("type") and fields.keys() == last.keys() == {"type", name}:
            if isinstance(last[name], str):
                joined[-1] = {**last, name: last[name] + str(fields[name])}
            else:
                joined[-1] = {**last, name: _joined_items([*as_list(last[name]), *as_list(fields[name])])}
        else:
            joined.append(item)
    return joined


class _Choices(StreamReader):
    """Reader for the Chat API and for the Completions API."""

    _FIELDS: Final = ("id", "object", "created", "model", "system_fingerprint")

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._head: Json = {}
        self._choices: dict[int, _Choice] = {}

    @property
    def _is_finished(self) -> bool:
        return bool(self._choices) and all(choice.finish_reason for choice in self._choices.values())

    def _take(self, event: Json, *, keeps: bool) -> None:
        for name in self._FIELDS:
            if value := event.get(name):
                self._head[name] = value
        choices = as_objects(event.get("choices"))
        # Moonshot sends the usage inside a choice, and Groq inside `x_groq`.
        for holder in (event, event.get("x_groq"), *choices):
            if holder and (usage := as_object(holder).get("usage")):
                self._head["usage"] = _merged(self._head.get("usage"), usage)
        for item in choices:
            choice = self._choices.setdefault(as_count(item.get("index")) or 0, _Choice())
            choice.finish_reason = as_text(item.get("finish_reason")) or choice.finish_reason
            if keeps:
                choice.add(item)
            if keeps and (prompt_ids := event.get("prompt_token_ids") or item.get("prompt_token_ids")):
                self._head["prompt_token_ids"] = prompt_ids

    def response(self) -> Json:
        choices = [self._choice(index, choice) for index, choice in sorted(self._choices.items())]
        return {**self._head, "choices": choices}

    @abc.abstractmethod
    def _choice(self, index: int, choice: _Choice) -> Json: ...


class _ChatReader(_Choices):
    def _choice(self, index: int, choice: _Choice) -> Json:
        return {**choice.common(index), "message": choice.message()}


class _CompletionReader(_Choices):
    def _choice(self, index: int, choice: _Choice) -> Json:
        return {**choice.common(index), "text": "".join(choice.texts.get("text", ()))}


class _ResponseReader(StreamReader):
    """Reader for the Responses API.

    The last event contains the complete response. The other events are read too, because some servers send the last
    event without output, and a client may stop before the last event.
    """

    _ENDS: Final = frozenset({"response.completed", "response.failed", "response.incomplete"})
    _TEXT_FIELDS: Final = {
        "output_text": "text",
        "refusal": "refusal",
        "reasoning_text": "text",
        "reasoning_summary_text": "text",
        "function_call_arguments": "arguments",
        "mcp_call_arguments": "arguments",
        "custom_tool_call_input": "input",
        "code_interpreter_call_code": "code",
    }
    """For each type of event: the field to which its deltas are appended, in an item or in a part of the item."""
    _PARTS: Final = frozenset({"content_part", "reasoning_summary_part", "output_text.annotation"})

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._response: Json = {}
        self._items: dict[int | str, Json] = {}

    @property
    def _is_finished(self) -> bool:
        return self._has_end_mark

    @property
    def is_truncated(self) -> bool:
        """Whether a part of the response was too long or unreadable, and the last event did not repeat this part."""
        return super().is_truncated and not (self._has_end_mark and as_list(self._response.get("output")))

    def _take(self, event: Json, *, keeps: bool) -> None:
        kind = as_text(event.get("type")) or ""
        if response := as_object(event.get("response")):
            output = as_list(response.get("output")) or self._response.get("output")
            self._response = {**self._response, **response, "output": output}
            self.error = as_object(response.get("error")) or self.error
        if kind in self._ENDS:
            self._has_end_mark = True
        elif kind == "error":
            self.error = self.error or {name: value for name, value in event.items() if name != "type"}
        elif keeps and kind.startswith("response."):
            self._take_item(kind.removeprefix("response."), event)

    def _take_item(self, kind: str, event: Json) -> None:
        index = event.get("output_index", event.get("item_id"))
        if not isinstance(index, (int, str)):
            return
        subject, _, stage = kind.rpartition(".")
        if subject == "output_item":
            # The last event of an item should contain the complete item. Some servers omit fields that they sent as
            # deltas.
            self._items[index] = {**self._items.get(index, {}), **_present(as_object(event.get("item")))}
            return
        if subject not in self._TEXT_FIELDS and subject not in self._PARTS:
            return
        item = self._items.setdefault(index, {"type": _ITEM_TYPES.get(subject, "message")})
        target = self._target_of(item, subject, event)
        if subject in {"content_part", "reasoning_summary_part"}:
            part = as_object(event.get("part"))
            target.update({**part, **target, **_present(part)})
        elif (name := self._TEXT_FIELDS.get(subject)) is not None:
            if stage == "delta":
                _append(target, name, event.get("delta"))
                _append(target, "logprobs", event.get("logprobs") or None)
            elif isinstance(event.get(name), str):
                target[name] = event[name]
        elif subject == "output_text.annotation":
            _append(target, "annotations", [event.get("annotation")])

    def _target_of(self, item: Json, subject: str, event: Json) -> Json:
        """Return the object that an event extends: the item, or a part of its content or summary."""
        is_summary = subject.startswith("reasoning_summary")
        index = as_count(event.get("summary_index" if is_summary else "content_index"))
        if index is None or not 0 <= index < _MOST_PARTS:
            return item
        parts = item["summary" if is_summary else "content"] = as_list(item.get("summary" if is_summary else "content"))
        kind = "summary_text" if is_summary else subject if subject in {"refusal", "reasoning_text"} else "output_text"
        while len(parts) <= index:
            parts.append({"type": kind})
        parts[index] = dict(as_object(parts[index]))
        return parts[index]

    def response(self) -> Json:
        if as_list(self._response.get("output")):
            return self._response
        return (
            {**self._response, "output": [self._items[index] for index in sorted(self._items, key=_order)]}
            if self._items
            else self._response
        )


def _order(index: int | str) -> tuple[bool, int, str]:
    """Return the sort key of an item: its number, or its id if the events have no numbers."""
    return (False, index, "") if isinstance(index, int) else (True, 0, index)


def _present(fields: Json) -> Json:
    """Return the fields that are not empty."""
    return {name: value for name, value in fields.items() if value not in (None, "", [])}


_MOST_PARTS: Final = 10_000
"""The maximum number of parts of an item. Events for further parts are malformed."""
_ITEM_TYPES: Final = {
    "reasoning_text": "reasoning",
    "reasoning_summary_text": "reasoning",
    "reasoning_summary_part": "reasoning",
    "function_call_arguments": "function_call",
    "mcp_call_arguments": "mcp_call",
    "custom_tool_call_input": "custom_tool_call",
    "code_interpreter_call_code": "code_interpreter_call",
}
"""The type of an item whose first event is missing, by the kind of the event that was received instead."""


class _MessageReader(StreamReader):
    """Reader for Anthropic's Messages API."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._message: Json = {}
        self._blocks: dict[int, Json] = {}
        self._inputs: dict[int, list[str]] = {}

    @property
    def _is_finished(self) -> bool:
        return self._has_end_mark or bool(self._message.get("stop_reason"))

    def _take(self, event: Json, *, keeps: bool) -> None:
        index = as_count(event.get("index")) or 0
        match event.get("type"):
            case "message_start":
                self._message = dict(as_object(event.get("message")))
                # A server that only simulates streaming sends the complete content here.
                self._blocks = dict(enumerate(as_objects(self._message.pop("content", None))))
            case "content_block_start" if keeps:
                self._blocks[index] = dict(as_object(event.get("content_block")))
            case "content_block_delta" if keeps:
                self._add_delta(index, as_object(event.get("delta")))
            case "message_delta":
                delta = {name: value for name, value in as_object(event.get("delta")).items() if value is not None}
                usage = _merged(self._message.get("usage"), event.get("usage"))
                self._message.update({**delta, "usage": usage})
            case "message_stop":
                self._has_end_mark = True
            case _:
                pass

    def _add_delta(self, index: int, delta: Json) -> None:
        block = self._blocks.setdefault(index, {"type": _BLOCK_TYPES.get(as_text(delta.get("type")) or "", "text")})
        for name, value in delta.items():
            if name == "partial_json":
                self._inputs.setdefault(index, []).append(as_text(value) or "")
            elif name == "citation":
                _append(block, "citations", [value])
            elif name != "type":
                _append(block, name, value)

    def response(self) -> Json:
        blocks = dict(self._blocks)
        for index, pieces in self._inputs.items():
            # A tool without arguments has no pieces, or empty pieces.
            if text := "".join(pieces).strip():
                blocks[index] = {**blocks[index], "input": _parsed(text)}
        return (
            {**self._message, "content": [blocks[index] for index in sorted(blocks)]} if self._message or blocks else {}
        )


_BLOCK_TYPES: Final = {"input_json_delta": "tool_use", "thinking_delta": "thinking", "signature_delta": "thinking"}
"""The type of a block whose first event is missing, by the type of the delta that was received instead."""


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


_READERS: Final[dict[Protocol, Callable[[int], StreamReader]]] = {
    Protocol.CHAT: _ChatReader,
    Protocol.COMPLETIONS: _CompletionReader,
    Protocol.RESPONSES: _ResponseReader,
    Protocol.MESSAGES: _MessageReader,
}
