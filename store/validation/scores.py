"""Checks of scores. A store on a database and a store over HTTP make the same checks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

from store.errors import Invalid, TooLarge
from store.models.queries import MAX_ROLLOUTS
from store.models.scores import NewScore, ScoreError
from store.validation import arguments
from store.validation.annotations import check_label
from store.validation.json_limits import check_text

MAX_DIMENSIONS: Final = 64
MAX_EXPLANATION_BYTES: Final = 64 * 1024
MAX_MESSAGE: Final = 200
"""The maximum number of characters of an error's message."""


class VersionKey(NamedTuple):
    """The name and the version of a reward."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


def version_key(text: Any, field: str = "reward_version") -> VersionKey:
    """Return the name and the version in a text such as `helpful@v2`.

    Raises:
        Invalid: the text has another form.
        TooLarge: the name or the version is longer than 64 bytes.
    """
    name, at, version = arguments.text(text, field).partition("@")
    if not at or not name or not version:
        raise Invalid(field, f"{text!r} is not of the form name@version, such as helpful@v2")
    for part in (name, version):
        _check_word(part, field)
    return VersionKey(name, version)


def check(scores: Any) -> list[NewScore]:
    """Return the scores of a call as a list.

    Raises:
        Invalid, TooLarge: see `StoreAnnotations.record_scores`.
    """
    items: list[Any] = arguments.several(scores, "scores")
    for index, score in enumerate(items):
        _check_score(score, f"scores[{index}]")
    return items


def rollout_ids(value: Any) -> list[str]:
    """Return the ids of rollouts whose scores are read, sorted.

    Raises:
        Invalid: the value is neither an id nor a list of ids, or the list has too many ids.
    """
    ids = [value] if isinstance(value, str) else sorted(set(arguments.texts(value, "rollout_id")))
    if len(ids) > MAX_ROLLOUTS:
        raise Invalid("rollout_id", f"has {len(ids):,} ids, and one query reads at most {MAX_ROLLOUTS:,}; split it")
    return [check_text(rollout_id, "rollout_id", 2**31) for rollout_id in ids]


def _check_score(score: Any, path: str) -> None:
    if not isinstance(score, NewScore):
        raise Invalid(path, f"is {type(score).__name__}, not a NewScore")
    for field in ("rollout_id", "attempt_id"):
        check_text(getattr(score, field), f"{path}.{field}")
    for field in ("name", "version"):
        _check_word(getattr(score, field), f"{path}.{field}")
    if (score.value is None) == (score.error is None):
        raise Invalid(f"{path}.value", "a score has either a value or an error; give one of them")
    if score.value is not None:
        arguments.finite(score.value, f"{path}.value")
    if score.error is not None:
        _check_error(score.error, f"{path}.error")
    _check_dimensions(score.dimensions, f"{path}.dimensions")
    if score.code_sha256 is not None:
        check_text(score.code_sha256, f"{path}.code_sha256", 64)
    if score.explanation is not None:
        check_text(score.explanation, f"{path}.explanation", MAX_EXPLANATION_BYTES)


def _check_error(error: ScoreError, path: str) -> None:
    check_text(error.type, f"{path}.type", MAX_MESSAGE)
    check_text(error.message, f"{path}.message", 4 * MAX_MESSAGE)
    if len(error.message) > MAX_MESSAGE:
        raise TooLarge(f"{path}.message", len(error.message), MAX_MESSAGE, "characters")


def _check_dimensions(dimensions: dict[str, float], path: str) -> None:
    if len(dimensions) > MAX_DIMENSIONS:
        raise TooLarge(path, len(dimensions), MAX_DIMENSIONS, "dimensions")
    for name, value in dimensions.items():
        check_label(name, path)
        arguments.finite(value, f"{path}.{name}")


def _check_word(text: str, path: str) -> None:
    if not _is_word(text):
        check_label(text, path)
        raise Invalid(path, f"{text!r} contains @, which separates name and version")


@lru_cache(maxsize=256)
def _is_word(text: str) -> bool:
    """Return whether a text is a valid name or version. Results are cached, because calls repeat names and versions."""
    try:
        check_label(text, "")
    except (Invalid, TooLarge):
        return False
    return "@" not in text
