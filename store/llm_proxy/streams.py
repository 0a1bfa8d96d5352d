"""Assembly of the events of a streamed response into the form that the response has without streaming.

An assembly ignores malformed events. After `limit` bytes of events, an assembly adds no more text, token ids or log
probabilities. In both cases `is_truncated` is True. An assembly still adds the data at the end of the response, such as
the usage.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar, Final

import orjson

from store.llm_proxy.addresses import Endpoint
from store.llm_proxy.parts import Json, as_count, as_list, as_object, as_objects, as_text, parse
from store.llm_proxy.sse import EventReader

_DONE: Final = b"[DONE]"


class Assembly(abc.ABC):
    """The part of one streamed response that was received so far."""

    _GROWS: ClassVar[bool] = True
    """Whether the assembly keeps data of every event. If so, the total size of the events must be limited."""

    def __init__(self, limit: int) -> None:
        self._events = EventReader(limit)
        self._left = limit
        self.is_truncated = False
        self.is_complete = False
        self.is_empty = True
        """Whether no event so far contains anything."""
        self._is_unreadable = False
        self.error: Json | None = None
        """The error that the backend sent after the beginning of its response."""

    def feed(self, chunk: bytes) -> None:
        """Process the next bytes of the stream, and set `is_complete` if they contain the end of the response."""
        for data in self._events.feed(chunk):
            if data == _DONE:
                self.is_complete = True
                continue
            self._left -= len(data) if self._GROWS else 0
            value, is_exact = parse(data)
            self._is_unreadable = self._is_unreadable or not is_exact
            event = as_object(value)
            self.is_empty = self.is_empty and not event
            if error := event.get("error"):
                self.error = as_object(error) or {"message": str(error)}
            self.take(event, keeps=self._left >= 0)
        self.is_truncated = self._left < 0 or self._events.skipped > 0 or self._is_unreadable

    @abc.abstractmethod
    def take(self, event: Json, *, keeps: bool) -> None:
        """Process one event. If `keeps` is False, keep only data whose size does not grow with the stream."""

    @abc.abstractmethod
    def answer(self) -> Json:
        """Return the part of the response received so far, in the form of a response without streaming."""


class _Choice:
    """One choice of a streamed response."""

    def __init__(self) -> None:
        self.role = "assistant"
        self.texts: dict[str, list[str]] = {}
        self.tools: dict[int, Json] = {}
        self.token_ids: list[int] = []
        self.logprobs: dict[str, list[Any]] = {}
        self.finish_reason: str | None = None

    def add_text(self, name: str, value: Any) -> None:
        text = as_text(value)
        if text:
            self.texts.setdefault(name, []).append(text)

    def add_logprobs(self, value: Any) -> None:
        for name, items in as_object(value).items():
            if isinstance(items, list):
                self.logprobs.setdefault(name, []).extend(as_list(items))

    def add_tool(self, delta: Json) -> None:
        index = as_count(delta.get("index"))
        if index is None:
            # Some backends leave the index out. In their streams, a delta with an id begins a new tool call, and any
            # other delta continues the last tool call.
            index = len(self.tools) - (0 if delta.get("id") or not self.tools else 1)
        tool = self.tools.setdefault(index, {"id": None, "type": "function", "name": [], "arguments": []})
        tool["id"] = tool["id"] or as_text(delta.get("id"))
        function = as_object(delta.get("function"))
        name, arguments = as_text(function.get("name")), as_text(function.get("arguments"))
        # Some backends repeat the whole name in every delta.
        if name and name not in tool["name"]:
            tool["name"].append(name)
        if arguments:
            tool["arguments"].append(arguments)

    def tool_calls(self) -> list[Json]:
        return [
            {
                "id": tool["id"],
                "type": tool["type"],
                "function": {"name": "".join(tool["name"]), "arguments": "".join(tool["arguments"])},
            }
            for _, tool in sorted(self.tools.items())
        ]

    def common(self, index: int) -> Json:
        return {
            "index": index,
            "finish_reason": self.finish_reason,
            "token_ids": self.token_ids or None,
            "logprobs": dict(self.logprobs) or None,
        }


class _Choices(Assembly):
    """Common part of the assemblies for the Chat API and for the Completions API."""

    _KEPT: Final = ("id", "object", "created", "model", "system_fingerprint", "usage")

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._head: Json = {}
        self._prompt_ids: Any = None
        self._choices: dict[int, _Choice] = {}

    def take(self, event: Json, *, keeps: bool) -> None:
        self._head.update({name: event[name] for name in self._KEPT if event.get(name) is not None})
        if keeps and event.get("prompt_token_ids"):
            self._prompt_ids = event["prompt_token_ids"]
        for each in as_objects(event.get("choices")):
            choice = self._choices.setdefault(as_count(each.get("index")) or 0, _Choice())
            choice.finish_reason = as_text(each.get("finish_reason")) or choice.finish_reason
            if not keeps:
                continue
            if each.get("prompt_token_ids"):
                self._prompt_ids = each["prompt_token_ids"]
            ids = each.get("token_ids") or as_object(each.get("provider_specific_fields")).get("token_ids")
            choice.token_ids += [one for one in as_list(ids) if as_count(one) is not None]
            choice.add_logprobs(each.get("logprobs"))
            self._take_delta(choice, each)

    @abc.abstractmethod
    def _take_delta(self, choice: _Choice, event: Json) -> None: ...

    @abc.abstractmethod
    def _choice(self, index: int, choice: _Choice) -> Json: ...

    def answer(self) -> Json:
        choices = [self._choice(index, choice) for index, choice in sorted(self._choices.items())]
        return {**self._head, "prompt_token_ids": self._prompt_ids, "choices": choices}


class ChatAssembly(_Choices):
    """Assembly of a stream of `chat.completion.chunk` objects."""

    _TEXTS: Final = ("content", "reasoning_content", "reasoning", "refusal")

    def _take_delta(self, choice: _Choice, event: Json) -> None:
        delta = as_object(event.get("delta"))
        choice.role = as_text(delta.get("role")) or choice.role
        for name in self._TEXTS:
            choice.add_text(name, delta.get(name))
        for tool in as_objects(delta.get("tool_calls")):
            choice.add_tool(tool)

    def _choice(self, index: int, choice: _Choice) -> Json:
        message: Json = {"role": choice.role, "content": None}
        message.update({name: "".join(texts) for name, texts in choice.texts.items()})
        if choice.tools:
            message["tool_calls"] = choice.tool_calls()
        return {**choice.common(index), "message": message}


class CompletionAssembly(_Choices):
    """Assembly of a stream of `text_completion` objects."""

    def _take_delta(self, choice: _Choice, event: Json) -> None:
        choice.add_text("text", event.get("text"))

    def _choice(self, index: int, choice: _Choice) -> Json:
        return {**choice.common(index), "text": "".join(choice.texts.get("text", ()))}


class ResponseAssembly(Assembly):
    """Assembly of a stream of the Responses API. The last event of such a stream contains the whole response."""

    _GROWS = False
    _LAST: Final = frozenset({"response.completed", "response.failed", "response.incomplete"})

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._response: Json = {}

    def take(self, event: Json, *, keeps: bool) -> None:  # noqa: ARG002 - each event replaces the one before
        self._response = as_object(event.get("response")) or self._response
        self.is_complete = self.is_complete or as_text(event.get("type")) in self._LAST

    def answer(self) -> Json:
        return self._response


class MessageAssembly(Assembly):
    """Assembly of a stream of Anthropic's Messages API."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._message: Json = {}
        self._blocks: dict[int, tuple[Json, dict[str, list[str]]]] = {}

    def take(self, event: Json, *, keeps: bool) -> None:
        match event.get("type"):
            case "message_start":
                self._message = dict(as_object(event.get("message")))
            case "content_block_start" if keeps:
                self._blocks[as_count(event.get("index")) or 0] = (as_object(event.get("content_block")), {})
            case "content_block_delta" if keeps:
                _, texts = self._blocks.setdefault(as_count(event.get("index")) or 0, ({}, {}))
                for name, value in as_object(event.get("delta")).items():
                    if name != "type" and isinstance(value, str):
                        texts.setdefault(name, []).append(value)
            case "message_delta":
                self._message.update(as_object(event.get("delta")))
                usage = {**as_object(self._message.get("usage")), **as_object(event.get("usage"))}
                self._message["usage"] = usage
            case "message_stop":
                self.is_complete = True
            case _:
                pass

    def answer(self) -> Json:
        return {**self._message, "content": [self._block(*self._blocks[index]) for index in sorted(self._blocks)]}

    @staticmethod
    def _block(start: Json, texts: dict[str, list[str]]) -> Json:
        block = dict(start)
        for name, pieces in texts.items():
            joined = "".join(pieces)
            if name == "partial_json":
                block["input"] = _parsed(joined)
            else:
                block[name] = (as_text(block.get(name)) or "") + joined
        return block


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


ASSEMBLIES: Final[dict[Endpoint, Callable[[int], Assembly]]] = {
    Endpoint.CHAT: ChatAssembly,
    Endpoint.COMPLETIONS: CompletionAssembly,
    Endpoint.RESPONSES: ResponseAssembly,
    Endpoint.MESSAGES: MessageAssembly,
}
"""The class of assembly for each endpoint that can respond with a stream."""
