"""Parsing of responses in all supported protocols."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import orjson

from store.llm_proxy.addresses import Endpoint
from store.llm_proxy.parts import Json, as_count, as_ids, as_list, as_object, as_objects, as_text

TOO_DEEP = "[nested too deeply]"
_TOKEN_ID = "token_id:"  # noqa: S105 - the prefix of tokens in vLLM's answers with `return_tokens_as_token_ids`


@dataclass(slots=True)
class AnswerChoice:
    """One choice of a response."""

    role: str = "assistant"
    texts: dict[str, str] = field(default_factory=dict[str, str])
    """`content`, and `reasoning_content` and `refusal` if present."""
    tool_calls: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    """The id, the name, and the arguments as JSON text of each tool call."""
    finish_reason: str | None = None
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: Json = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType] - of JSON's own types


@dataclass(slots=True)
class ParsedAnswer:
    """The parsed response of a backend."""

    response_id: str | None = None
    model: str | None = None
    choices: list[AnswerChoice] = field(default_factory=list[AnswerChoice])
    prompt_token_ids: list[int] = field(default_factory=list[int])
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_total: int | None = None


def read(endpoint: Endpoint, answer: Json) -> ParsedAnswer:
    """Return the fields of a response from the given endpoint. Malformed fields are left out."""
    reading = ParsedAnswer(response_id=as_text(answer.get("id")), model=as_text(answer.get("model")))
    match endpoint:
        case Endpoint.CHAT | Endpoint.COMPLETIONS:
            _read_choices(reading, answer)
        case Endpoint.RESPONSES:
            reading.choices = [_of_output(answer)]
            reading.prompt_token_ids = as_ids(answer.get("prompt_token_ids"))
        case Endpoint.MESSAGES:
            reading.choices = [_of_blocks(answer)]
            reading.prompt_token_ids = as_ids(answer.get("prompt_token_ids"))
        case _:
            pass
    _read_usage(reading, as_object(answer.get("usage")))
    return reading


def _read_choices(reading: ParsedAnswer, answer: Json) -> None:
    choices = as_objects(answer.get("choices"))
    reading.choices = [_of_choice(each) for each in choices]
    own = as_ids(choices[0].get("prompt_token_ids")) if choices else []
    reading.prompt_token_ids = as_ids(answer.get("prompt_token_ids")) or own
    first = as_ids(answer.get("response_token_ids"))
    if first and reading.choices and not reading.choices[0].token_ids:
        reading.choices[0].token_ids = first


def _of_choice(given: Json) -> AnswerChoice:
    message = as_object(given.get("message"))
    texts = {"content": as_text(message.get("content")) or as_text(given.get("text"))}
    texts["reasoning_content"] = as_text(message.get("reasoning_content")) or as_text(message.get("reasoning"))
    texts["refusal"] = as_text(message.get("refusal"))
    logprobs = _as_in_chat(as_object(given.get("logprobs")))
    ids = as_ids(given.get("token_ids")) or as_ids(as_object(given.get("provider_specific_fields")).get("token_ids"))
    return AnswerChoice(
        role=as_text(message.get("role")) or "assistant",
        texts={name: text for name, text in texts.items() if text is not None},
        tool_calls=[_of_tool(each) for each in as_objects(message.get("tool_calls"))],
        finish_reason=as_text(given.get("finish_reason")),
        token_ids=ids or _ids_in(logprobs),
        logprobs=logprobs,
    )


def _as_in_chat(logprobs: Json) -> Json:
    """Return log probabilities in the form of the Chat API, which has one object for each token.

    The Completions API has a list of tokens and a list of values instead.
    """
    values = as_list(logprobs.get("token_logprobs"))
    if not values:
        return logprobs
    tokens = as_list(logprobs.get("tokens"))
    return {
        "content": [
            {"token": tokens[place] if place < len(tokens) else None, "logprob": value}
            for place, value in enumerate(values)
        ]
    }


def _ids_in(logprobs: Json) -> list[int]:
    """Return the token ids from the tokens of log probabilities; empty if some token is not an id.

    vLLM writes `token_id:<id>` in place of each token if the request contains `return_tokens_as_token_ids`.
    """
    tokens = [as_text(each.get("token")) or "" for each in as_objects(logprobs.get("content"))]
    numbers = [token.removeprefix(_TOKEN_ID) for token in tokens if token.startswith(_TOKEN_ID)]
    return [int(each) for each in numbers] if len(numbers) == len(tokens) and all(map(str.isdecimal, numbers)) else []


def _of_tool(tool: Json) -> tuple[str, str, str]:
    function = as_object(tool.get("function"))
    return as_text(tool.get("id")) or "", as_text(function.get("name")) or "", as_json(function.get("arguments"))


def _of_output(answer: Json) -> AnswerChoice:
    """Return the output items of the Responses API as one choice."""
    choice, texts = AnswerChoice(finish_reason=as_text(answer.get("status"))), dict[str, list[str]]()
    why = as_text(as_object(answer.get("incomplete_details")).get("reason"))
    choice.finish_reason = why or choice.finish_reason
    for item in as_objects(answer.get("output")):
        match item.get("type"):
            case "message":
                for part in as_objects(item.get("content")):
                    name = "refusal" if part.get("type") == "refusal" else "content"
                    texts.setdefault(name, []).append(as_text(part.get("text") or part.get("refusal")) or "")
                    choice.logprobs.setdefault("content", []).extend(as_list(part.get("logprobs")))
            case "function_call":
                call = as_text(item.get("call_id")) or "", as_text(item.get("name")) or ""
                choice.tool_calls.append((*call, as_json(item.get("arguments"))))
            case "reasoning":
                parts = [*as_objects(item.get("summary")), *as_objects(item.get("content"))]
                texts.setdefault("reasoning_content", []).extend(as_text(each.get("text")) or "" for each in parts)
            case _:
                pass
    choice.texts = {name: "".join(parts) for name, parts in texts.items()}
    choice.token_ids = as_ids(answer.get("response_token_ids")) or as_ids(answer.get("token_ids"))
    return choice


def _of_blocks(answer: Json) -> AnswerChoice:
    """Return the content blocks of Anthropic's Messages API as one choice."""
    choice, texts = AnswerChoice(finish_reason=as_text(answer.get("stop_reason"))), dict[str, list[str]]()
    for block in as_objects(answer.get("content")):
        match block.get("type"):
            case "text":
                texts.setdefault("content", []).append(as_text(block.get("text")) or "")
            case "thinking":
                texts.setdefault("reasoning_content", []).append(as_text(block.get("thinking")) or "")
            case "tool_use":
                call = as_text(block.get("id")) or "", as_text(block.get("name")) or ""
                choice.tool_calls.append((*call, as_json(block.get("input"))))
            case _:
                pass
    choice.texts = {name: "".join(parts) for name, parts in texts.items()}
    choice.token_ids = as_ids(answer.get("response_token_ids")) or as_ids(answer.get("token_ids"))
    return choice


def _read_usage(reading: ParsedAnswer, usage: Json) -> None:
    reading.tokens_in = _count(usage, "prompt_tokens", "input_tokens")
    reading.tokens_out = _count(usage, "completion_tokens", "output_tokens")
    # A stream contains the usage only if the client requests it. Otherwise the token ids are counted.
    if reading.tokens_in is None and reading.prompt_token_ids:
        reading.tokens_in = len(reading.prompt_token_ids)
    if reading.tokens_out is None and any(each.token_ids for each in reading.choices):
        reading.tokens_out = sum(len(each.token_ids) for each in reading.choices)
    total = as_count(usage.get("total_tokens"))
    if total is None and reading.tokens_in is not None and reading.tokens_out is not None:
        total = reading.tokens_in + reading.tokens_out
    reading.tokens_total = total


def _count(usage: Json, *names: str) -> int | None:
    return next((count for name in names if (count := as_count(usage.get(name))) is not None), None)


def as_json(value: object) -> str:
    """Return text unchanged and any other value as JSON."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except TypeError as refused:
        # orjson reads four times as many nested levels as it writes.
        if "ecursion" in str(refused):
            return TOO_DEEP
    try:
        # Unlike orjson, Python writes surrogates and integers of more than 64 bits.
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return TOO_DEEP
