"""Data of model calls in span attributes: token ids, log probabilities and texts, under all known attribute names.

The names are those of Agent-lightning 0.3: of its tracers (OpenAI client, Weave) and of its LiteLLM proxy with any
provider. Other tracers may use the names `agl.call.*`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import orjson

from store.adapters.nested import below, decoded, indexed
from store.models import Span
from store.semconv import OPERATION_INPUT, OPERATION_OUTPUT

__all__ = [
    "MODEL_VERSION",
    "PROXY_MARK",
    "PROXY_NAMES",
    "CallAttributes",
    "image_urls",
    "may_have_tokens",
    "metadata",
    "raw_content",
    "read",
    "repeated_calls",
    "response_id",
]

PROXY_NAMES: Final = frozenset({"raw_gen_ai_request", "litellm_request"})
"""Names of the spans that a LiteLLM proxy records for one call."""

PROXY_MARK: Final = "agl.call.backend"
"""The attribute for the name of the model server that a call used. Only the proxy of this package sets it."""
MODEL_VERSION: Final = "agl.call.model_version"

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
_WITH_TOKENS: Final = frozenset((*PROMPT_TOKENS, *RESPONSE_TOKENS))
_LOG_PROBS: Final = ("logprobs.content", "agl.call.logprobs")
_PROVIDER: Final = re.compile(r"llm\.([^.]+)\.(?:id|prompt_token_ids|response_token_ids|choices|messages)")
_LITELLM_PREFIX: Final = "llm."


@dataclass(frozen=True, slots=True)
class CallAttributes:
    """The data of a call in one span. A value that the span does not contain is empty or None."""

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


def may_have_tokens(attributes: Mapping[str, Any]) -> bool:
    """Return whether some attribute may contain token ids. This check is quick but inexact; `read` is exact."""
    return not _WITH_TOKENS.isdisjoint(attributes) or any(name.startswith(_LITELLM_PREFIX) for name in attributes)


def read(attributes: Mapping[str, Any]) -> CallAttributes:
    """Return the data of a call in a span's attributes. Malformed values are ignored; no exception is raised."""
    provider = _provider_record(attributes)
    prompt = raw_content(attributes, "gen_ai.prompt", f"{OPERATION_INPUT}.messages") or provider.prompt
    return CallAttributes(
        response_id=response_id(attributes) or provider.response_id,
        prompt_ids=_first_ids(attributes.get(name) for name in PROMPT_TOKENS) or provider.prompt_ids,
        response_ids=_first_ids(attributes.get(name) for name in RESPONSE_TOKENS) or provider.response_ids,
        logprobs=_log_probs(attributes) or provider.logprobs,
        prompt=prompt,
        response=raw_content(attributes, "gen_ai.completion", f"{OPERATION_OUTPUT}.choices") or provider.response,
        request_metadata=metadata(attributes, "gen_ai.request", OPERATION_INPUT, {"messages"}),
        response_metadata=metadata(
            attributes, "gen_ai.response", OPERATION_OUTPUT, {"choices", "prompt_token_ids", "response_token_ids"}
        ),
        image_urls=image_urls(prompt),
    )


def response_id(attributes: Mapping[str, Any], names: Sequence[str] = RESPONSE_IDS) -> str | None:
    """Return the id of the response, or None. All spans that record one call contain the same id."""
    return next((value for name in names if isinstance(value := attributes.get(name), str) and value), None)


def repeated_calls(spans: Iterable[Span]) -> dict[tuple[str, str], Span]:
    """Return the spans that record a call that an earlier span of their attempt records already.

    A proxy and the instrumentation of an agent may both record a call. Their spans contain the same response id.

    Returns:
        By attempt id and span id, the span that recorded the call first, in the order of sequence numbers.
    """
    first: dict[tuple[str, str], Span] = {}
    repeated: dict[tuple[str, str], Span] = {}
    for span in sorted(spans, key=lambda span: span.sequence_id):
        answer = response_id(span.attributes)
        if answer is not None:
            recorded = first.setdefault((span.attempt_id, answer), span)
            if recorded is not span:
                repeated[span.attempt_id, span.span_id] = recorded
    return repeated


def raw_content(attributes: Mapping[str, Any], *prefixes: str) -> Any:
    """Return the nested value below the first prefix that has a value, or None."""
    return next((found for prefix in prefixes if (found := below(attributes, prefix))), None)


def metadata(attributes: Mapping[str, Any], first: str, second: str, without: set[str]) -> Any:
    """Return the parameters of a request or a response.

    Args:
        attributes: the attributes of the span.
        first: the prefix of the attributes' names.
        second: the prefix that is used if no attribute has the first prefix.
        without: the names of parameters to leave out, because other fields of a triplet contain them.
    """
    found = raw_content(attributes, first, second)
    if isinstance(found, dict):
        fields = cast("dict[str, Any]", found)
        return {name: value for name, value in fields.items() if name not in without}
    return found


def image_urls(prompt: Any) -> list[str]:
    """Return the URLs of the images in the messages of a prompt, in order; malformed parts are skipped."""
    messages = indexed(prompt) or ([prompt] if isinstance(prompt, Mapping) else [])
    return [url for message in messages for url in _urls(message)]


def _urls(message: Any) -> Iterable[str]:
    if not isinstance(message, Mapping):
        return
    parts = _parts(cast("Mapping[str, Any]", message).get("content"))
    for part in cast("list[Any]", parts) if isinstance(parts, list) else []:
        if isinstance(part, Mapping):
            fields = cast("Mapping[str, Any]", part)
            image: Any = fields.get("image_url") if fields.get("type") == "image_url" else None
            url: Any = cast("Mapping[str, Any]", image).get("url") if isinstance(image, Mapping) else None
            if isinstance(url, str):
                yield url


def _parts(content: Any) -> Any:
    """Return the parts of a message's content. Tracers store a list of parts as JSON text."""
    if not isinstance(content, str):
        return content
    try:
        return orjson.loads(content)
    except (ValueError, RecursionError):
        return None


def _provider_record(attributes: Mapping[str, Any]) -> CallAttributes:
    """Return the data that LiteLLM records of a provider's response. Its attributes contain Python literals as text."""
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
        logprobs=_entries(_content(choice.get("logprobs"))),
        prompt=messages if isinstance(messages, list) else None,
        response=choices or None,
    )


def _content(logprobs: Any) -> Any:
    """Return the entries of OpenAI's `logprobs` object."""
    return cast("Mapping[str, Any]", logprobs).get("content") if isinstance(logprobs, Mapping) else None


def _first_ids(values: Iterable[Any]) -> tuple[int, ...]:
    """Return the first value that is a non-empty list of token ids, or text that represents such a list."""
    for value in values:
        given = decoded(value)
        if isinstance(given, (list, tuple)):
            ids = cast("Sequence[Any]", given)
            if ids and all(type(number) is int and number >= 0 for number in ids):
                return tuple(ids)
    return ()


def _log_probs(attributes: Mapping[str, Any]) -> list[Any] | None:
    return next((found for name in _LOG_PROBS if (found := _entries(attributes.get(name)))), None)


def _entries(value: Any) -> list[Any] | None:
    given = decoded(value)
    return list(cast("Sequence[Any]", given)) or None if isinstance(given, (list, tuple)) else None
