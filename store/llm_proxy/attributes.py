"""Attributes of the span of a call, under the names that adapters read. Adapters convert spans to training data."""

from __future__ import annotations

import math
from typing import Any, Final

from store.adapters.calls import MODEL_VERSION, PROXY_MARK
from store.llm_proxy.addresses import Endpoint
from store.llm_proxy.parts import Json, as_count, as_list, as_object, as_objects, as_text
from store.llm_proxy.readings import TOO_DEEP, AnswerChoice, ParsedAnswer, as_json
from store.models import AttributeValue
from store.runtime.lenient_json import REPLACEMENT, storable_text
from store.semconv import FULL_TEXT, INDEXED_TEXTS, MAX_INDEXED_BYTES

CALL_SPAN: Final = "openai.chat.completion"
"""The name of the span of each call that generates text, for every endpoint. Adapters find calls by this name."""
EMBEDDINGS_SPAN: Final = "openai.embeddings"

BACKEND: Final = PROXY_MARK
VERSION: Final = MODEL_VERSION
LATENCY: Final = "agl.call.latency"
FIRST_BYTE: Final = "agl.call.first_byte"
STATUS: Final = "agl.call.status"
TRIES: Final = "agl.call.tries"
CACHED: Final = "agl.call.cached"
TRUNCATED: Final = "agl.call.truncated"
"""The attribute that names the part of a call that is not recorded completely: `prompt`, `answer` or both."""
RAW_REQUEST: Final = "agl.call.raw_request"
RAW_ANSWER: Final = "agl.call.raw_answer"
"""The attribute that contains the text of an answer that is not JSON."""
ERROR: Final = "error.type"

_OPERATIONS: Final = {
    Endpoint.CHAT: "chat",
    Endpoint.COMPLETIONS: "text_completion",
    Endpoint.RESPONSES: "responses",
    Endpoint.MESSAGES: "chat",
    Endpoint.EMBEDDINGS: "embeddings",
}
_SETTINGS: Final = {
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
}
_REDACTED: Final = "[key removed]"


class Attributes:
    """Builder of a span's attributes. It removes API keys and values that a store refuses, and limits the total size.

    Args:
        secrets: texts to remove from all values.
        limit: the maximum total size in bytes of the names and values that `put_long` adds.
    """

    def __init__(self, secrets: tuple[str, ...], limit: int) -> None:
        self._secrets = secrets
        self._left = limit
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
        """Add text, or another value as JSON. A value that exceeds the limit is left out."""
        if value is None:
            return
        text = as_json(value)
        self._left -= len(name) + (len(text) if text.isascii() else len(text.encode(errors="surrogatepass")))
        if self._left < 0:
            self.is_truncated = True
        else:
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


def put_request(into: Attributes, endpoint: Endpoint, request: Json) -> None:
    """Add the attributes of the request."""
    into.put("gen_ai.system", "anthropic" if endpoint.is_anthropic else "openai")
    into.put("gen_ai.operation.name", _OPERATIONS.get(endpoint))
    into.put("gen_ai.request.type", "completion" if endpoint is Endpoint.COMPLETIONS else _OPERATIONS.get(endpoint))
    into.put("gen_ai.request.model", as_text(request.get("model")))
    into.put("gen_ai.request.streaming", request.get("stream") is True)
    for name, attribute in _SETTINGS.items():
        into.put(f"gen_ai.request.{attribute}", request.get(name))
    for index, tool in enumerate(as_objects(request.get("tools"))):
        # The Chat API nests a function's fields below `function`, and the Responses API does not. Anthropic calls the
        # schema `input_schema`.
        function = as_object(tool.get("function")) or tool
        prefix = f"gen_ai.request.functions.{index}"
        into.put_long(f"{prefix}.name", as_text(function.get("name")))
        into.put_long(f"{prefix}.description", function.get("description"))
        into.put_long(f"{prefix}.parameters", function.get("parameters") or function.get("input_schema"))
    for index, message in enumerate(_messages(endpoint, request)):
        _put_message(into, f"gen_ai.prompt.{index}", message)


def _messages(endpoint: Endpoint, request: Json) -> list[Json]:
    match endpoint:
        case Endpoint.CHAT:
            return as_objects(request.get("messages"))
        case Endpoint.MESSAGES:
            system = request.get("system")
            return [*([{"role": "system", "content": system}] if system else []), *as_objects(request.get("messages"))]
        case Endpoint.RESPONSES:
            given, system = request.get("input"), request.get("instructions")
            items = as_objects(given) if isinstance(given, list) else [{"role": "user", "content": given}]
            return [*([{"role": "system", "content": system}] if system else []), *map(_message_of_item, items)]
        case _:
            given = request.get("prompt") if endpoint is Endpoint.COMPLETIONS else request.get("input")
            texts = [each for each in as_list(given) if isinstance(each, str)]
            several: list[Any] = texts or [given]
            return [{"role": "user", "content": each} for each in several]


def _message_of_item(item: Json) -> Json:
    """Return an item of the Responses API as a chat message."""
    match item.get("type"):
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            return {"role": "assistant", "tool_calls": [{"id": item.get("call_id"), "function": function}]}
        case "function_call_output":
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
        case _:
            return {"role": item.get("role") or "assistant", "content": item.get("content")}


def _put_message(into: Attributes, prefix: str, message: Json) -> None:
    into.put_long(f"{prefix}.role", as_text(message.get("role")))
    into.put_long(f"{prefix}.content", message.get("content"))
    into.put_long(f"{prefix}.tool_call_id", as_text(message.get("tool_call_id")))
    for index, tool in enumerate(as_objects(message.get("tool_calls"))):
        function = as_object(tool.get("function"))
        into.put_long(f"{prefix}.tool_calls.{index}.id", as_text(tool.get("id")))
        into.put_long(f"{prefix}.tool_calls.{index}.name", as_text(function.get("name")))
        into.put_long(f"{prefix}.tool_calls.{index}.arguments", function.get("arguments"))


def put_reading(into: Attributes, reading: ParsedAnswer) -> None:
    """Add the attributes of the response.

    Attribute names of token ids and log probabilities contain the number of the choice, except for the first choice.
    """
    into.put("gen_ai.response.id", reading.response_id)
    into.put("gen_ai.response.model", reading.model)
    into.put("gen_ai.usage.prompt_tokens", reading.tokens_in)
    into.put("gen_ai.usage.completion_tokens", reading.tokens_out)
    into.put("gen_ai.usage.total_tokens", reading.tokens_total)
    into.put_ids("prompt_token_ids", reading.prompt_token_ids)
    for index, choice in enumerate(reading.choices):
        _put_choice(into, index, choice)


def _put_choice(into: Attributes, index: int, choice: AnswerChoice) -> None:
    prefix = f"gen_ai.completion.{index}"
    into.put(f"{prefix}.role", choice.role)
    into.put(f"{prefix}.finish_reason", choice.finish_reason)
    for name, text in choice.texts.items():
        into.put(f"{prefix}.{name}", text)
    for number, (call_id, name, arguments) in enumerate(choice.tool_calls):
        into.put(f"{prefix}.tool_calls.{number}.id", call_id)
        into.put(f"{prefix}.tool_calls.{number}.name", name)
        into.put(f"{prefix}.tool_calls.{number}.arguments", arguments)
    # Adapters read the token ids of the first choice under a name without a number.
    into.put_ids("response_token_ids" if index == 0 else f"{prefix}.token_ids", choice.token_ids)
    for name, values in choice.logprobs.items():
        if values:
            into.put(f"logprobs.{name}" if index == 0 else f"{prefix}.logprobs.{name}", as_json(values))
