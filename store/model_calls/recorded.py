"""Reader of calls in the attributes of spans, in all common conventions of attribute names.

The conventions are:

- the attributes of this package, and OpenTelemetry's old GenAI convention, such as `gen_ai.prompt.0.content`, which
  Traceloop and AgentOps also use;
- OpenTelemetry's current GenAI convention, such as `gen_ai.input.messages`;
- OpenInference, such as `llm.input_messages.0.message.content`;
- the attributes of Agent-lightning 0.3: of its tracers (OpenAI client, Weave), and of its LiteLLM proxy with any
  provider. Other tracers may use the names `agl.call.*`.

The functions ignore malformed values or return them unchanged. They raise no exceptions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from store.model_calls.attributes import TRUNCATED, decoded_parts, is_part_list
from store.model_calls.items import media_url, read_message
from store.model_calls.json_values import TOO_DEEP, Json, as_count, as_list, as_object, first_text, to_json
from store.model_calls.model_call import Choice, Message, MessagePart, ModelCall, Protocol, Usage
from store.model_calls.nested import below, decoded, indexed
from store.model_calls.reading import read_tool
from store.semconv import FEEDS, OPERATION_INPUT, OPERATION_OUTPUT, REQUEST_MODELS, RESPONSE_MODELS, TOTAL_TOKENS

PROXY_NAMES: Final = frozenset({"raw_gen_ai_request", "litellm_request"})
"""Names of the spans that a LiteLLM proxy records for one call."""

RESPONSE_IDS: Final = ("gen_ai.response.id", f"{OPERATION_OUTPUT}.id", "agl.call.response_id")
PROMPT_TOKENS: Final = (
    "prompt_token_ids",
    f"{OPERATION_OUTPUT}.prompt_token_ids",
    "agl.call.prompt_token_ids",
)
RESPONSE_TOKENS: Final = (
    "response_token_ids",
    f"{OPERATION_OUTPUT}.response_token_ids.0",
    f"{OPERATION_OUTPUT}.choices.0.token_ids",
    f"{OPERATION_OUTPUT}.choices.0.provider_specific_fields.token_ids",
    "agl.call.response_token_ids",
)
_INPUT: Final = "gen_ai.input.messages"
_OUTPUT: Final = "gen_ai.output.messages"
_SYSTEM: Final = "gen_ai.system_instructions"
_TOOL_NAMES: Final = ("gen_ai.tool.name", "tool.name", "traceloop.entity.name", "agentops.entity.name")
_TOOL_INPUTS: Final = (
    "gen_ai.tool.call.arguments",
    "tool.parameters",
    "input.value",
    "traceloop.entity.input",
    "agentops.entity.input",
)
_TOOL_OUTPUTS: Final = (
    "gen_ai.tool.call.result",
    "tool.result",
    "output.value",
    "traceloop.entity.output",
    "agentops.entity.output",
)
_TOOL_CALL_IDS: Final = ("gen_ai.tool.call.id", "tool_call.id", "tool.id", "message.tool_call_id")
_KINDS: Final = ("openinference.span.kind", "traceloop.span.kind", "agentops.span.kind", "gen_ai.operation.name")
_WITH_TOKENS: Final = frozenset((*PROMPT_TOKENS, *RESPONSE_TOKENS))
_LOG_PROBS: Final = ("logprobs.content", "agl.call.logprobs")
_PROVIDER: Final = re.compile(r"llm\.([^.]+)\.(?:id|prompt_token_ids|response_token_ids|choices|messages)")
_LITELLM_PREFIX: Final = "llm."


@dataclass(frozen=True, slots=True)
class CallAttributes:
    """The raw data of a call in one span. A value that the span does not contain is empty or None."""

    response_id: str | None = None
    prompt_ids: tuple[int, ...] = ()
    response_ids: tuple[int, ...] = ()
    logprobs: list[Any] | None = None
    """One entry for each response token, as the inference engine returned it: a number, or an object with `logprob`."""
    prompt: Any = None
    """The messages of the prompt."""
    response: Any = None
    """The recorded choices of the response."""
    request_metadata: Any = None
    response_metadata: Any = None
    image_urls: list[str] = field(default_factory=list[str])

    @property
    def has_tokens(self) -> bool:
        """Whether the span contains token ids of the prompt or of the response."""
        return bool(self.prompt_ids or self.response_ids)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One execution of a tool."""

    name: str
    arguments: str
    result: str
    call_id: str | None = None
    """The id of the tool call that the model requested."""
    media: tuple[MessagePart, ...] = ()
    """The images and other media of a result that is a list of parts."""


def may_have_tokens(attributes: Mapping[str, Any]) -> bool:
    """Return whether some attribute may contain token ids. This check is quick but inexact; `read` is exact."""
    return not _WITH_TOKENS.isdisjoint(attributes) or any(name.startswith(_LITELLM_PREFIX) for name in attributes)


def read(attributes: Mapping[str, Any]) -> CallAttributes:
    """Return the data of a call in a span's attributes. Malformed values are ignored; no exception is raised."""
    call = _raw(attributes, *_both_listed(attributes))
    return replace(call, image_urls=image_urls(call.prompt))


def _raw(attributes: Mapping[str, Any], listed_prompt: list[Any], listed_response: list[Any]) -> CallAttributes:
    provider = _provider_record(attributes)
    prompt = raw_content(attributes, "gen_ai.prompt", f"{OPERATION_INPUT}.messages") or provider.prompt
    response = raw_content(attributes, "gen_ai.completion", f"{OPERATION_OUTPUT}.choices") or provider.response
    return CallAttributes(
        response_id=response_id(attributes) or provider.response_id,
        prompt_ids=_first_ids(attributes.get(name) for name in PROMPT_TOKENS) or provider.prompt_ids,
        response_ids=_first_ids(attributes.get(name) for name in RESPONSE_TOKENS) or provider.response_ids,
        logprobs=next((tokens for name in _LOG_PROBS if (tokens := _entries(attributes.get(name)))), None)
        or provider.logprobs,
        prompt=prompt or listed_prompt,
        response=response or listed_response,
        request_metadata=metadata(attributes, "gen_ai.request", OPERATION_INPUT, {"messages"}),
        response_metadata=metadata(
            attributes, "gen_ai.response", OPERATION_OUTPUT, {"choices", "prompt_token_ids", "response_token_ids"}
        ),
    )


def response_id(attributes: Mapping[str, Any], names: Sequence[str] = RESPONSE_IDS) -> str | None:
    """Return the id of the response, or None. All spans that record one call contain the same id."""
    return next((value for name in names if isinstance(value := attributes.get(name), str) and value), None)


def raw_content(attributes: Mapping[str, Any], *prefixes: str) -> Any:
    """Return the nested value below the first prefix that has a value, or None."""
    return next((value for prefix in prefixes if (value := below(attributes, prefix))), None)


def metadata(attributes: Mapping[str, Any], first: str, second: str, without: set[str]) -> Any:
    """Return the parameters of a request or a response.

    Args:
        attributes: the attributes of the span.
        first: the prefix of the attributes' names.
        second: the prefix that is used if no attribute has the first prefix.
        without: the names of parameters to leave out, because other fields of a triplet contain them.
    """
    parameters = raw_content(attributes, first, second)
    if isinstance(parameters, dict):
        fields = cast("dict[str, Any]", parameters)
        return {name: value for name, value in fields.items() if name not in without}
    return parameters


def image_urls(prompt: Any) -> list[str]:
    """Return the URLs of the images in the messages of a prompt, in order; malformed parts are skipped."""
    messages = indexed(prompt) or ([prompt] if isinstance(prompt, Mapping) else [])
    parts = (part for message in messages for part in _media_of(message))
    return [url for part in parts if part.kind == "image" and (url := media_url(part)) is not None]


def _media_of(message: Any) -> Sequence[MessagePart]:
    content = decoded_parts(as_object(message).get("content"))
    if not isinstance(content, list):
        return ()
    parsed = read_message({"role": "user", "content": content})
    return () if parsed is None else parsed.media


def _provider_record(attributes: Mapping[str, Any]) -> CallAttributes:
    """Return the data that LiteLLM records of a provider's response.

    LiteLLM's attributes contain Python literals as text.
    """
    names = {
        match[1]
        for name in attributes
        if isinstance(cast("Any", name), str) and name.startswith(_LITELLM_PREFIX) and (match := _PROVIDER.match(name))
    }
    if not names:
        return CallAttributes()
    prefix = f"{_LITELLM_PREFIX}{min(names, key=lambda name: (name != 'hosted_vllm', name))}."
    choices = indexed(decoded(attributes.get(f"{prefix}choices")))
    choice = cast("dict[str, Any]", choices[0]) if choices and isinstance(choices[0], dict) else dict[str, Any]()
    response_ids = _first_ids(indexed(decoded(attributes.get(f"{prefix}response_token_ids")))[:1])
    messages = decoded(attributes.get(f"{prefix}messages"))
    return CallAttributes(
        response_id=response_id(attributes, (f"{prefix}id",)),
        prompt_ids=_first_ids([attributes.get(f"{prefix}prompt_token_ids")]),
        response_ids=response_ids or _first_ids([choice.get("token_ids")]),
        logprobs=_entries(as_object(choice.get("logprobs")).get("content")),
        prompt=messages if isinstance(messages, list) else None,
        response=choices or None,
    )


def _first_ids(values: Iterable[Any]) -> tuple[int, ...]:
    """Return the first value that is a non-empty list of token ids, or text that represents such a list."""
    for value in values:
        items = decoded(value)
        if isinstance(items, (list, tuple)):
            ids = cast("Sequence[Any]", items)
            if ids and all(type(number) is int and number >= 0 for number in ids):
                return tuple(ids)
    return ()


def _entries(value: Any) -> list[Any] | None:
    items = decoded(value)
    return list(cast("Sequence[Any]", items)) or None if isinstance(items, (list, tuple)) else None


MessageMemory = dict[bytes, Message | None]
"""The messages that were read, by their JSON. The calls of an attempt repeat their messages."""


def call_of(attributes: Mapping[str, Any], memory: MessageMemory | None = None) -> ModelCall:
    """Return the call that a span records. If the span records no call, the result has no messages.

    Args:
        attributes: the attributes of the span.
        memory: the messages of earlier calls, to which the messages of this call are added.
    """
    listed_prompt, listed_response = _both_listed(attributes)
    raw = _raw(attributes, listed_prompt, listed_response)
    prompt = listed_prompt or raw.prompt
    system = decoded(attributes.get(_SYSTEM))
    items = [*([{"role": "system", "content": system}] if system else []), *_entries_of(prompt)]
    response = listed_response or raw.response
    answers = [(item, _message(item, "assistant")) for item in _entries_of(response)]
    return ModelCall(
        protocol=_protocol(attributes),
        model=first_text(attributes, *REQUEST_MODELS),
        settings=_settings(attributes),
        tools=tuple(_tools(attributes)),
        messages=tuple(message for item in items if (message := _remembered(item, memory)) is not None),
        response_id=raw.response_id,
        response_model=first_text(attributes, *RESPONSE_MODELS),
        choices=tuple(
            _choice(item, message, {} if index else _of_first_choice(raw, attributes))
            for index, (item, message) in enumerate(answers)
            if message is not None
        ),
        usage=Usage(**{name: _count(attributes, names) for name, names in _USAGE.items()}),
        prompt_token_ids=list(raw.prompt_ids),
        is_streaming=attributes.get("gen_ai.request.streaming") is True,
        is_incomplete="answer" in str(attributes.get(TRUNCATED) or ""),
        fingerprint=first_text(attributes, "gen_ai.response.system_fingerprint"),
    )


def tool_use_of(attributes: Mapping[str, Any]) -> ToolUse | None:
    """Return the execution of a tool that a span records; None if the span does not record a tool."""
    kinds = {str(attributes.get(name, "")).lower() for name in _KINDS}
    is_tool = bool(kinds & {"tool", "execute_tool"}) or not {"gen_ai.tool.name", "tool.name"}.isdisjoint(attributes)
    if not is_tool:
        return None
    values = [_first(attributes, names) for names in (_TOOL_INPUTS, _TOOL_OUTPUTS)]
    arguments, result = ("" if value is None else to_json(value) for value in values)
    parts = decoded_parts(values[1])
    output = read_message({"role": "tool", "content": parts}) if is_part_list(parts) else None
    return ToolUse(
        first_text(attributes, *_TOOL_NAMES) or "tool",
        arguments,
        result,
        first_text(attributes, *_TOOL_CALL_IDS),
        () if output is None else output.media,
    )


def requested_tools(attributes: Mapping[str, Any]) -> int | None:
    """Return the number of tool calls in the response that a span records, without reading the prompt.

    None if the span records no response.
    """
    response = (
        _listed(attributes, _OUTPUT, "llm.output_messages")
        or raw_content(attributes, "gen_ai.completion", f"{OPERATION_OUTPUT}.choices")
        or _provider_record(attributes).response
    )
    answers = (_message(item, "assistant") for item in _entries_of(response))
    return sum(len(answer.tool_calls) for answer in answers if answer is not None) if response else None


def _first(attributes: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((value for name in names if (value := attributes.get(name)) not in (None, "")), None)


_USAGE: Final[Mapping[str, tuple[str, ...]]] = {
    "prompt": FEEDS["tokens_in"],
    "completion": FEEDS["tokens_out"],
    "total": TOTAL_TOKENS,
    "cached": FEEDS["tokens_cached"],
    "cache_write": FEEDS["tokens_written"],
    "reasoning": FEEDS["tokens_reasoning"],
}
_OPERATIONS: Final[Mapping[str, Protocol]] = {
    "chat": Protocol.CHAT,
    "text_completion": Protocol.COMPLETIONS,
    "completion": Protocol.COMPLETIONS,
    "responses": Protocol.RESPONSES,
    "embeddings": Protocol.EMBEDDINGS,
}
_NO_SETTINGS: Final = ("model", "type", "streaming", "functions.")


def _protocol(attributes: Mapping[str, Any]) -> Protocol | None:
    operation = first_text(attributes, "gen_ai.operation.name", "gen_ai.request.type") or ""
    protocol = _OPERATIONS.get(operation)
    is_anthropic = attributes.get("gen_ai.system") == "anthropic"
    return Protocol.MESSAGES if protocol is Protocol.CHAT and is_anthropic else protocol


def _settings(attributes: Mapping[str, Any]) -> Json:
    prefix = "gen_ai.request."
    names = (name for name in attributes if name.startswith(prefix))
    return {
        name.removeprefix(prefix): attributes[name]
        for name in names
        if not name.removeprefix(prefix).startswith(_NO_SETTINGS)
    }


def _count(attributes: Mapping[str, Any], names: Sequence[str]) -> int | None:
    return next((count for name in names if (count := as_count(attributes.get(name))) is not None), None)


def _tools(attributes: Mapping[str, Any]) -> list[Json]:
    request = raw_content(attributes, "gen_ai.request")
    functions = indexed(as_object(request).get("functions"))
    definitions = as_list(decoded(attributes.get("gen_ai.tool.definitions")))
    schemas = [
        as_object(as_object(entry).get("tool")).get("json_schema") for entry in indexed(below(attributes, "llm.tools"))
    ]
    others = [read_tool(as_object(decoded(tool))) for tool in definitions or schemas]
    return [as_object(tool) for tool in functions] or others


def _both_listed(attributes: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the messages of the prompt and those of the response, as `_listed` returns them."""
    return _listed(attributes, _INPUT, "llm.input_messages"), _listed(attributes, _OUTPUT, "llm.output_messages")


def _listed(attributes: Mapping[str, Any], name: str, prefix: str) -> list[Any]:
    """Return the messages in OpenTelemetry's current convention, or else in the convention of OpenInference."""
    return as_list(decoded(attributes.get(name))) or _inference(attributes, prefix)


def _inference(attributes: Mapping[str, Any], prefix: str) -> list[Json]:
    """Return the messages of OpenInference below a prefix in the form of the Chat API."""
    messages: list[Json] = []
    for entry in indexed(below(attributes, prefix)):
        fields = as_object(as_object(entry).get("message"))
        calls = [as_object(call).get("tool_call") for call in indexed(fields.get("tool_calls"))]
        contents = [as_object(part).get("message_content") for part in indexed(fields.get("contents"))]
        messages.append({**fields, "tool_calls": calls, "content": fields.get("content") or contents})
    return messages


def _entries_of(value: Any) -> list[Any]:
    """Return the items of a list, which may be an object with numbers as keys; any other value is the only item."""
    return indexed(value) or ([value] if value else [])


def _remembered(item: Any, memory: MessageMemory | None) -> Message | None:
    key = b"" if memory is None else to_json(item).encode(errors="surrogatepass")
    if memory is None or key == TOO_DEEP.encode():
        return _message(item, "")
    if key not in memory:
        memory[key] = _message(item, "")
    return memory[key]


def _message(value: Any, role: str) -> Message | None:
    """Return a recorded message, in which lists may be objects with numbers as keys, or texts of JSON."""
    item = decoded(value)
    fields = as_object(item)
    fields = {**fields, **as_object(fields.get("message"))}
    if not fields:
        return read_message(item, role)
    fields.pop("message", None)
    for name in ("tool_calls", "content", "parts"):
        if name not in fields:
            continue
        parts = decoded_parts(fields[name])
        if isinstance(parts, Mapping) and indexed(parts):
            parts = indexed(parts)
        if name != "content" or not isinstance(fields[name], str) or is_part_list(parts):
            fields[name] = parts
    message = read_message(fields, role)
    return None if message is None or not (message.parts or message.role) else message


def _of_first_choice(raw: CallAttributes, attributes: Mapping[str, Any]) -> Json:
    """Return the token ids and log probabilities of the first choice, whose attribute names contain no number."""
    logprobs = {"content": raw.logprobs, "refusal": attributes.get("logprobs.refusal")}
    return {"token_ids": list(raw.response_ids), "logprobs": logprobs}


def _choice(value: Any, message: Message, first_choice_fields: Json) -> Choice:
    fields = {**as_object(decoded(value)), **first_choice_fields}
    logprobs = {name: _entries(tokens) for name, tokens in as_object(fields.get("logprobs")).items()}
    return Choice(
        message,
        first_text(fields, "finish_reason"),
        list(_first_ids([fields.get("token_ids")])),
        {name: entries for name, entries in logprobs.items() if entries},
    )
