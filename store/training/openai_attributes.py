"""Conversion of chat completions to span attributes: requests, responses, and streamed responses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from store.training.attrs import flatten_attributes, sanitize_attributes

Json = dict[str, Any]

_SETTINGS: Final = (
    "model",
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
    "top_logprobs",
    "reasoning_effort",
    "tool_choice",
    "response_format",
)
_TEXTS: Final = ("content", "refusal", "reasoning_content")


def dumped(value: Any) -> Any:
    """Return a copy of a value in which the objects of the `openai` client are converted to dicts."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", warnings=False, exclude_none=True)
    if isinstance(value, Mapping):
        return {str(key): dumped(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [dumped(each) for each in cast("Sequence[Any]", value)]
    return value


def _object(value: Any) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def _objects(value: Any) -> Iterable[Json]:
    return map(_object, cast("list[Any]", value)) if isinstance(value, list) else ()


def _is_given(value: Any) -> bool:
    # The client marks omitted arguments with objects of these types.
    return value is not None and type(value).__name__ not in {"NotGiven", "Omit"}


# -- requests --------------------------------------------------------------------------------------------------------


def of_request(request: Mapping[str, Any]) -> Json:
    """Return the span attributes for the arguments of a call. Headers are left out."""
    attributes: Json = {"gen_ai.system": "openai", "gen_ai.request.type": "chat"}
    attributes["gen_ai.request.streaming"] = request.get("stream") is True
    for name in _SETTINGS:
        value = request.get(name)
        if _is_given(value):
            attributes[f"gen_ai.request.{name}"] = value.__name__ if isinstance(value, type) else dumped(value)
    for index, tool in enumerate(_objects(dumped(request.get("tools")))):
        described = _object(tool.get("function"))
        for name in ("name", "description", "parameters"):
            if name in described:
                attributes[f"gen_ai.request.functions.{index}.{name}"] = described[name]
    # Only lists are read, because an iterator of messages can be read only once and the client needs it.
    for index, message in enumerate(_objects(dumped(request.get("messages")))):
        attributes |= _of_message(f"gen_ai.prompt.{index}", message)
    return sanitize_attributes(attributes)


def _of_message(prefix: str, message: Json) -> Json:
    names = ("role", *_TEXTS, "tool_call_id", "name")
    attributes = {f"{prefix}.{name}": message[name] for name in names if message.get(name) is not None}
    if isinstance(message.get("content"), list):
        attributes[f"{prefix}.content"] = json.dumps(message["content"], ensure_ascii=False)
    for index, tool_call in enumerate(_objects(message.get("tool_calls"))):
        function = _object(tool_call.get("function"))
        flat = {"id": tool_call.get("id"), "name": function.get("name"), "arguments": function.get("arguments")}
        attributes |= {
            f"{prefix}.tool_calls.{index}.{name}": value for name, value in flat.items() if value is not None
        }
    return attributes


# -- responses -------------------------------------------------------------------------------------------------------


def of_answer(answer: Mapping[str, Any]) -> Json:
    """Return the attributes of a response, including the token ids and logprobs of its first choice."""
    names = ("id", "model", "system_fingerprint")
    attributes: Json = {f"gen_ai.response.{name}": answer[name] for name in names if answer.get(name) is not None}
    attributes |= {
        f"gen_ai.usage.{name}": value for name, value in flatten_attributes(_object(answer.get("usage"))).items()
    }
    choices = list(_objects(answer.get("choices")))
    for index, choice in enumerate(choices):
        prefix = f"gen_ai.completion.{index}"
        attributes |= _of_message(prefix, _object(choice.get("message")))
        if choice.get("finish_reason") is not None:
            attributes[f"{prefix}.finish_reason"] = choice["finish_reason"]
    return sanitize_attributes(attributes | _of_tokens(answer, choices[0] if choices else {}))


def _of_tokens(answer: Mapping[str, Any], first: Json) -> Json:
    whole: list[Any] = answer.get("response_token_ids") or [None]
    candidates: list[Any] = [
        whole[0],
        first.get("token_ids"),
        _object(first.get("provider_specific_fields")).get("token_ids"),
    ]
    attributes: Json = {"prompt_token_ids": answer.get("prompt_token_ids")}
    attributes["response_token_ids"] = next((ids for ids in candidates if ids), None)
    for name in ("content", "refusal"):
        logprobs = _object(first.get("logprobs")).get(name)
        attributes[f"logprobs.{name}"] = json.dumps(logprobs, ensure_ascii=False) if logprobs else None
    return {name: value for name, value in attributes.items() if value}


# -- streamed responses ---------------------------------------------------------------------------------------------


def assembled(chunks: Sequence[Any]) -> Json:
    """Return the response that the chunks of a stream add up to."""
    answer: Json = {}
    choices: dict[int, Json] = {}
    for chunk in map(_object, map(dumped, chunks)):
        names = ("id", "model", "system_fingerprint", "usage", "prompt_token_ids")
        answer |= {name: chunk[name] for name in names if chunk.get(name)}
        for piece in _objects(chunk.get("choices")):
            choice = choices.setdefault(
                piece.get("index", 0), {"message": {"role": "assistant"}, "token_ids": [], "logprobs": {}}
            )
            _add(choice, piece)
    answer["choices"] = [choices[index] for index in sorted(choices)]
    return answer


def _add(choice: Json, piece: Json) -> None:
    delta, message = _object(piece.get("delta")), choice["message"]
    for name in _TEXTS:
        if delta.get(name):
            message[name] = message.get(name, "") + delta[name]
    for tool_call in _objects(delta.get("tool_calls")):
        _add_tool_call(message.setdefault("tool_calls", []), tool_call)
    choice["finish_reason"] = piece.get("finish_reason") or choice.get("finish_reason")
    provider = _object(piece.get("provider_specific_fields"))
    choice["token_ids"] += piece.get("token_ids") or provider.get("token_ids") or []
    for name, logprobs in _object(piece.get("logprobs")).items():
        choice["logprobs"].setdefault(name, []).extend(logprobs or [])


def _add_tool_call(calls: list[Json], piece: Json) -> None:
    index: int = piece.get("index", 0)
    while len(calls) <= index:
        calls.append({"id": None, "function": {"name": None, "arguments": ""}})
    call, function = calls[index], _object(piece.get("function"))
    call["id"] = call["id"] or piece.get("id")
    call["function"]["name"] = call["function"]["name"] or function.get("name")
    call["function"]["arguments"] += function.get("arguments") or ""
