"""Attributes of the span of a call, under the names that adapters read. Adapters convert spans to training data."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, cast

from store.model_calls.items import to_item
from store.model_calls.json_values import TOO_DEEP, Json, as_count, to_json
from store.model_calls.model_call import FUNCTION, Choice, Message, MessagePart, ModelCall, Protocol
from store.model_calls.nested import decoded
from store.models import AttributeValue
from store.runtime.lenient_json import REPLACEMENT, storable_text
from store.semconv import FULL_TEXT, INDEXED_TEXTS, MAX_INDEXED_BYTES

CALL_SPAN: Final = "openai.chat.completion"
"""The name of the span of each call that generates text, in every protocol. Adapters find calls by this name."""
EMBEDDINGS_SPAN: Final = "openai.embeddings"

BACKEND: Final = "agl.call.backend"
"""The attribute for the name of the model server that a call used. Only the proxy of this package sets it."""
VERSION: Final = "agl.call.model_version"
LATENCY: Final = "agl.call.latency"
FIRST_BYTE: Final = "agl.call.first_byte"
STATUS: Final = "agl.call.status"
TRIES: Final = "agl.call.tries"
CACHED: Final = "agl.call.cached"
TRUNCATED: Final = "agl.call.truncated"
"""The attribute for the incompletely recorded parts of a call: `prompt`, `answer` or both."""
UNKNOWN: Final = "agl.call.unknown_items"
"""The attribute for the types of unknown items in a response. These items are recorded as JSON."""
RAW_REQUEST: Final = "agl.call.raw_request"
RAW_ANSWER: Final = "agl.call.raw_answer"
"""The attribute that contains the text of an answer that is not JSON."""
ERROR: Final = "error.type"

USAGE: Final[Mapping[str, str]] = {
    "prompt": "gen_ai.usage.prompt_tokens",
    "completion": "gen_ai.usage.completion_tokens",
    "total": "gen_ai.usage.total_tokens",
    "cached": "gen_ai.usage.cache_read.input_tokens",
    "cache_write": "gen_ai.usage.cache_write.input_tokens",
    "reasoning": "gen_ai.usage.reasoning.output_tokens",
}
"""The attributes of a call's usage, by the fields of `Usage`."""
OPERATIONS: Final[Mapping[Protocol, str]] = {
    Protocol.CHAT: "chat",
    Protocol.COMPLETIONS: "text_completion",
    Protocol.RESPONSES: "responses",
    Protocol.MESSAGES: "chat",
    Protocol.EMBEDDINGS: "embeddings",
}
_REDACTED: Final = "[key removed]"
_LONGEST_LEAF: Final = 4096
"""The maximum number of characters of each text in a value that exceeds the size limit."""


class AttributeWriter:
    """Writer of a span's attributes. It removes API keys and values that a store refuses, and limits the total size.

    Args:
        secrets: texts to remove from all values.
        limit: the maximum total size in bytes of the names and values that `put_long` adds.
    """

    def __init__(self, secrets: tuple[str, ...] = (), limit: int = sys.maxsize) -> None:
        self._secrets = secrets
        self._bytes_left = limit
        self.values: dict[str, AttributeValue] = {}
        self.is_truncated = False
        self.changes: list[str] = []
        """The changes of values that a store would refuse."""

    def put(self, name: str, value: Any) -> None:
        """Add a value. None and values that a span cannot contain are left out."""
        match value:
            case str():
                self._put_text(name, value)
            case bool():
                self.values[name] = value
            case int() if as_count(value) is not None:
                self.values[name] = value
            case float() if math.isfinite(value):
                self.values[name] = value
            case _:
                pass

    def put_ids(self, name: str, ids: list[int]) -> None:
        """Add token ids, if there are any."""
        if ids:
            self.values[name] = ids

    def put_long(self, name: str, value: Any) -> None:
        """Add text, or another value as JSON.

        If the value exceeds the limit, its long texts are shortened. If it still exceeds the limit, it is left out.
        """
        if value is None:
            return
        text = to_json(value)
        if (size := _size(name, text)) > self._bytes_left:
            self.is_truncated = True
            text = to_json(_shortened(value))
            is_left_out = (size := _size(name, text)) > self._bytes_left
            change = "left out" if is_left_out else "shortened"
            self.changes.append(f"{name}: {change}, because the request is longer than the limit")
            if is_left_out:
                return
        self._bytes_left -= size
        self._put_text(name, text)

    def clean(self, text: str) -> str:
        """Return text with placeholders for keys and for characters that a store refuses."""
        for secret in self._secrets:
            text = text.replace(secret, _REDACTED)
        return storable_text(text)

    def _put_text(self, name: str, text: str) -> None:
        cleaned = self.clean(text)
        if cleaned.count(REPLACEMENT) > text.count(REPLACEMENT):
            self.changes.append(f"{name}: U+0000 or a lone surrogate became U+FFFD")
        if text == TOO_DEEP:
            self.changes.append(f"{name}: nested too deeply to be recorded")
        if name in INDEXED_TEXTS and len(raw := cleaned.encode()) > MAX_INDEXED_BYTES:
            self.values[FULL_TEXT + name] = cleaned
            self.changes.append(f"{name}: shortened; {FULL_TEXT}{name} contains the full text")
            cleaned = raw[:MAX_INDEXED_BYTES].decode(errors="ignore")
        self.values[name] = cleaned


def _size(name: str, text: str) -> int:
    return len(name) + (len(text) if text.isascii() else len(text.encode(errors="surrogatepass")))


def _shortened(value: Any) -> Any:
    """Return a value with shortened texts. Each shortened text ends with a mark that states the original length."""
    match value:
        case str() if len(value) > _LONGEST_LEAF:
            return f"{value[:_LONGEST_LEAF]} [{len(value):,} characters in all]"
        case dict():
            return {name: _shortened(item) for name, item in cast("Json", value).items()}
        case list():
            return [_shortened(item) for item in cast("list[Any]", value)]
        case _:
            return value


def attributes_of(call: ModelCall) -> dict[str, AttributeValue]:
    """Return the attributes of a call, without a limit of size."""
    writer = AttributeWriter()
    put_call(writer, call)
    put_truncated(writer, call)
    return writer.values


def put_call(writer: AttributeWriter, call: ModelCall) -> None:
    """Add the attributes of a call's request and response."""
    put_request(writer, call)
    put_response(writer, call)


def put_response(writer: AttributeWriter, call: ModelCall) -> None:
    """Add the attributes of a call's response."""
    writer.put("gen_ai.response.id", call.response_id)
    writer.put("gen_ai.response.model", call.response_model)
    writer.put("gen_ai.response.system_fingerprint", call.fingerprint)
    for field, count in asdict(call.usage).items():
        writer.put(USAGE[field], count)
    writer.put_ids("prompt_token_ids", call.prompt_token_ids)
    for index, choice in enumerate(call.choices):
        _put_choice(writer, index, choice)
    if unknown := call.unknown_items:
        writer.values[UNKNOWN] = [writer.clean(kind) for kind in unknown]


def put_truncated(writer: AttributeWriter, call: ModelCall, *, is_cut: bool = False) -> None:
    """Add the mark of the parts that are not recorded completely, if there are any.

    Args:
        writer: the writer, after all other attributes of the call.
        call: the call.
        is_cut: whether a part of the response was too long or could not be read.
    """
    cut = [("prompt", writer.is_truncated), ("answer", is_cut or call.is_incomplete)]
    writer.put(TRUNCATED, ", ".join(name for name, is_part_cut in cut if is_part_cut) or None)


def put_request(writer: AttributeWriter, call: ModelCall) -> None:
    """Add the attributes of a call's request."""
    if call.protocol is not None:
        operation = OPERATIONS[call.protocol]
        writer.put("gen_ai.system", "anthropic" if call.protocol is Protocol.MESSAGES else "openai")
        writer.put("gen_ai.operation.name", operation)
        writer.put("gen_ai.request.type", "completion" if call.protocol is Protocol.COMPLETIONS else operation)
    writer.put("gen_ai.request.model", call.model)
    writer.put("gen_ai.request.streaming", call.is_streaming)
    for name, value in call.settings.items():
        if isinstance(value, str):
            writer.put_long(f"gen_ai.request.{name}", value)
        else:
            writer.put(f"gen_ai.request.{name}", value)
    for index, tool in enumerate(call.tools):
        for name, value in tool.items():
            writer.put_long(f"gen_ai.request.functions.{index}.{name}", value)
    for index, message in enumerate(call.messages):
        _put_message(writer, f"gen_ai.prompt.{index}", message)


def _put_message(writer: AttributeWriter, prefix: str, message: Message) -> None:
    """Add a message of the prompt.

    The content is text, or a JSON list of the parts if the message has several parts or a part that is not text.
    Reasoning at the start of the message and function calls at its end have separate attributes, as in the Chat API.
    """
    parts = list(message.parts)
    calls: list[MessagePart] = []
    while parts and _is_plain_call(parts[-1]):
        calls.insert(0, parts.pop())
    reasoning = parts.pop(0) if parts and parts[0].kind == "reasoning" and _is_field(parts[0]) else None
    result = (
        parts[0]
        if message.role in {"tool", "function"} and len(parts) == 1 and parts[0].kind == "tool_result"
        else None
    )
    writer.put_long(f"{prefix}.role", message.role or None)
    if reasoning is not None:
        writer.put_long(f"{prefix}.reasoning_content", reasoning.text)
    if result is not None and not result.item:
        writer.put_long(f"{prefix}.content", _unambiguous(result.text))
        writer.put_long(f"{prefix}.tool_call_id", result.call_id)
    elif len(parts) == 1 and parts[0].kind == "text" and _is_plain(parts[0]):
        writer.put_long(f"{prefix}.content", _unambiguous(parts[0].text))
    elif parts:
        # The list of parts needs no item of a tool result around it, because the message names the call.
        is_bare = result is not None and bool(result.parts) and result.item.keys() <= _BARE_RESULT
        content = result.parts if result is not None and is_bare else parts
        writer.put_long(f"{prefix}.content", [to_item(part) for part in content])
        writer.put_long(f"{prefix}.tool_call_id", result.call_id if result is not None else None)
    writer.put_long(f"{prefix}.name", message.name)
    for index, call in enumerate(calls):
        writer.put_long(f"{prefix}.tool_calls.{index}.id", call.call_id)
        writer.put_long(f"{prefix}.tool_calls.{index}.name", call.name)
        writer.put_long(f"{prefix}.tool_calls.{index}.arguments", call.text)


_BARE_RESULT: Final = frozenset({"type", "tool_use_id", "content"})


def _is_plain(part: MessagePart) -> bool:
    """Return whether a part has no content besides its text."""
    return not part.item and not part.parts


def _is_plain_call(part: MessagePart) -> bool:
    return part.kind == "tool_call" and part.tool == FUNCTION and _is_plain(part)


def _unambiguous(text: str) -> str | list[Json]:
    """Return the text. If the text parses as a JSON list of parts, return a list with one text part instead."""
    return [{"type": "text", "text": text}] if is_part_list(decoded_parts(text)) else text


def decoded_parts(content: Any) -> Any:
    """Parse content that is the text of a JSON list; return any other content unchanged."""
    return decoded(content) if isinstance(content, str) and content.lstrip()[:1] == "[" else content


def is_part_list(value: Any) -> bool:
    """Return whether a value is a list of parts of a message: objects with a type."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return bool(items) and all(isinstance(item, dict) and "type" in item for item in items)


def _put_choice(writer: AttributeWriter, index: int, choice: Choice) -> None:
    """Add a choice of the response.

    If the texts and the tool calls do not represent the message completely, an attribute contains all parts in order.
    Attribute names of token ids and log probabilities contain the number of the choice, except for the first choice.
    """
    prefix, message = f"gen_ai.completion.{index}", choice.message
    writer.put(f"{prefix}.role", message.role)
    writer.put(f"{prefix}.finish_reason", choice.finish_reason)
    for name, kinds in _TEXT_FIELDS.items():
        texts = [part.text for part in message.parts if part.kind in kinds]
        if texts:
            writer.put(f"{prefix}.{name}", "".join(texts))
    for number, call in enumerate(message.tool_calls):
        writer.put(f"{prefix}.tool_calls.{number}.id", call.call_id)
        writer.put(f"{prefix}.tool_calls.{number}.name", call.name)
        writer.put(f"{prefix}.tool_calls.{number}.arguments", call.text)
        if call.tool != FUNCTION:
            writer.put(f"{prefix}.tool_calls.{number}.type", call.tool)
    if not _is_flat(message):
        writer.put(f"{prefix}.parts", to_json([to_item(part) for part in message.parts]))
    writer.put(f"{prefix}.name", message.name)
    # Adapters read the token ids of the first choice under a name without a number.
    writer.put_ids("response_token_ids" if index == 0 else f"{prefix}.token_ids", choice.token_ids)
    for name, values in choice.logprobs.items():
        writer.put(f"logprobs.{name}" if index == 0 else f"{prefix}.logprobs.{name}", to_json(values))


_TEXT_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "content": frozenset({"text"}),
    "reasoning_content": frozenset({"reasoning"}),
    "refusal": frozenset({"refusal"}),
}
"""The kinds of parts whose texts a field of a choice contains."""
_ORDER: Final = ("reasoning", "text", "refusal", "tool_call")


def _is_field(part: MessagePart) -> bool:
    """Return whether the fields of a choice can contain a part."""
    if part.kind in {"reasoning", "refusal"}:
        return _is_plain(part) and bool(part.text)
    return _is_plain_call(part) or (part.kind == "text" and _is_plain(part))


def _is_flat(message: Message) -> bool:
    """Return whether the text fields and the tool calls of a choice represent its message completely."""
    ranks = [_ORDER.index(part.kind) if _is_field(part) else -1 for part in message.parts]
    texts = [rank for rank in ranks if rank != _ORDER.index("tool_call")]
    is_in_order = ranks == sorted(ranks) and -1 not in ranks and len(texts) == len(set(texts))
    content = next((part.text for part in message.parts if part.kind == "text"), "")
    return is_in_order and not is_part_list(decoded_parts(content))
