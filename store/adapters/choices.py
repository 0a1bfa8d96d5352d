"""Choices of a response after the first. A request with n > 1 gets several choices for one prompt."""

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
    """The data of one choice after the first. A value that the span does not contain is empty or None."""

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
    token_ids = next((token_ids for value in candidates if (token_ids := _token_ids(value))), ())
    entries = decoded(_object(decoded(fields.get("logprobs"))).get("content"))
    logprobs = list(cast("Sequence[Any]", entries)) if isinstance(entries, (list, tuple)) else None
    return LaterChoice(token_ids, logprobs or None, content)


def _ids_by_choice(attributes: Mapping[str, Any], choices: int) -> list[Any]:
    """Return the token ids of every choice, if attributes outside of the choices contain them; else an empty list."""
    flat = [attributes.get(f"{OPERATION_OUTPUT}.response_token_ids.{number}") for number in range(choices)]
    if any(flat):
        return flat
    names = sorted(name for name in attributes if name.startswith("llm.") and name.endswith(_PROVIDER_IDS))
    lists = (indexed(decoded(attributes[name])) for name in names)
    return next((ids for ids in lists if ids and all(map(_token_ids, ids))), list[Any]())


def _token_ids(value: Any) -> tuple[int, ...]:
    items = decoded(value)
    ids = cast("Sequence[Any]", items) if isinstance(items, (list, tuple)) else ()
    return tuple(ids) if all(type(number) is int and number >= 0 for number in ids) else ()


def _object(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
