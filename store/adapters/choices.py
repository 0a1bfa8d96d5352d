"""Choices of a response: a request with n > 1 returns several answers to one prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from store.model_calls.nested import decoded, indexed
from store.semconv import OPERATION_OUTPUT

__all__ = ["LaterChoice", "later_choices"]

_PROVIDER_IDS: Final = ".response_token_ids"


@dataclass(frozen=True, slots=True)
class LaterChoice:
    """One choice after the first, as far as a span contains it."""

    token_ids: tuple[int, ...] = ()
    logprobs: list[Any] | None = None
    """One entry for each token, as the inference engine returned it."""
    content: Any = None
    """The recorded choice."""


def later_choices(attributes: Mapping[str, Any], response: Any) -> list[LaterChoice]:
    """Return the choices after the first, in order. Malformed values are ignored; no exception is raised.

    Args:
        attributes: the attributes of the span.
        response: the recorded choices in these attributes.
    """
    contents = indexed(response)
    ids = _ids_by_choice(attributes, len(contents))
    return [
        _choice(contents[number] if number < len(contents) else None, ids[number] if number < len(ids) else None)
        for number in range(1, max(len(contents), len(ids)))
    ]


def _choice(content: Any, ids: Any) -> LaterChoice:
    fields = _object(content)
    candidates = (ids, fields.get("token_ids"), _object(fields.get("provider_specific_fields")).get("token_ids"))
    token_ids = next((found for value in candidates if (found := _token_ids(value))), ())
    entries = decoded(_object(decoded(fields.get("logprobs"))).get("content"))
    logprobs = list(cast("Sequence[Any]", entries)) if isinstance(entries, (list, tuple)) else None
    return LaterChoice(token_ids, logprobs or None, content)


def _ids_by_choice(attributes: Mapping[str, Any], choices: int) -> list[Any]:
    """Return the token ids of every choice, if they are recorded apart from the choices."""
    flat = [attributes.get(f"{OPERATION_OUTPUT}.response_token_ids.{number}") for number in range(choices)]
    if any(flat):
        return flat
    names = sorted(name for name in attributes if name.startswith("llm.") and name.endswith(_PROVIDER_IDS))
    lists = (indexed(decoded(attributes[name])) for name in names)
    return next((found for found in lists if found and all(map(_token_ids, found))), list[Any]())


def _token_ids(value: Any) -> tuple[int, ...]:
    given = decoded(value)
    ids = cast("Sequence[Any]", given) if isinstance(given, (list, tuple)) else ()
    return tuple(ids) if all(type(number) is int and number >= 0 for number in ids) else ()


def _object(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
