"""Checks of the arguments of the store's methods, with the same messages in every store."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar, cast

from pydantic import ValidationError

from store.errors import Invalid
from store.models import PhaseGraph, RolloutConfig, Seal, Span

T = TypeVar("T")

_MOST_ATTEMPTS: Final = 2**63 - 1


def text(value: Any, field: str) -> str:
    """Return a text unchanged.

    Raises:
        Invalid: the value is not text.
    """
    if not isinstance(value, str):
        raise Invalid(field, f"is {type(value).__name__}, not text")
    return value


def whole(value: Any, field: str, meaning: str, least: int | None = None) -> int:
    """Return an integer unchanged; the error message says that the value is not `meaning`, such as "a count".

    Raises:
        Invalid: the value is not an integer, or is below `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        raise Invalid(field, f"{value!r} is not {meaning}")
    return value


def phase_graph(value: Any) -> PhaseGraph | None:
    """Return the argument `graph` unchanged.

    Raises:
        Invalid: the value is neither a phase graph nor None.
    """
    if value is not None and not isinstance(value, PhaseGraph):
        cure = "; read one with PhaseGraph.model_validate" if isinstance(value, Mapping) else ""
        raise Invalid("graph", f"is {type(cast('object', value)).__name__}, not a PhaseGraph{cure}")
    return value


def page(limit: Any, offset: Any) -> None:
    """Check the limit and the offset of a page.

    Raises:
        Invalid: the limit is below -1, the offset is negative, or one of them is not an integer.
    """
    whole(limit, "limit", "a count, or -1 for all", -1)
    whole(offset, "offset", "a number of items to skip, 0 or more", 0)


def part_of_history(after: Any, limit: Any) -> None:
    """Check the arguments of a read of a rollout's history: the number after which the read starts, and the limit.

    Raises:
        Invalid: `after` is negative, the limit is below -1, or one of them is not an integer.
    """
    whole(after, "after", "the number of an event, or 0 for the beginning", 0)
    whole(limit, "limit", "a count, or -1 for all", -1)


def seconds(value: Any, field: str) -> float:
    """Return a duration as float seconds.

    Raises:
        Invalid: the value is not a number.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Invalid(field, f"{value!r} is not a number of seconds")
    return _as_float(value, field)


def rollout_config(config: RolloutConfig, field: str) -> None:
    """Check the limits of a rollout.

    The model does not check these limits, because it also represents limits in old logs, which may be negative.

    Raises:
        Invalid: a duration is negative or not finite, or the number of attempts needs more than 64 bits. The error
            names `field` and the limit, separated by a dot.
    """
    for name in ("timeout_seconds", "unresponsive_seconds"):
        value = getattr(config, name)
        if value is None:
            continue
        if not math.isfinite(value):
            raise Invalid(f"{field}.{name}", f"{value} is not a duration; leave it out for no limit")
        if value < 0:
            raise Invalid(f"{field}.{name}", f"{value:g} is negative; send seconds, or leave it out for no limit")
    if config.max_attempts > _MOST_ATTEMPTS:
        raise Invalid(f"{field}.max_attempts", f"is above {_MOST_ATTEMPTS}, the largest number that can be stored")


def wait_seconds(value: Any) -> float:
    """Return the maximum time in seconds for which a claim waits for a rollout.

    Raises:
        Invalid: the value is not a number, is negative, or is not finite.
    """
    limit = seconds(value, "wait_seconds")
    if not 0 <= limit < math.inf:
        raise Invalid("wait_seconds", f"{value} must be 0 or more, and finite")
    return limit


def timeout(value: Any) -> float | None:
    """Return the maximum time in seconds to wait until rollouts have ended; None for no limit.

    Raises:
        Invalid: the value is neither None nor a number, or is NaN.
    """
    if value is None:
        return None
    limit = seconds(value, "timeout")
    if math.isnan(limit):
        raise Invalid("timeout", f"{value} is not a number of seconds; give None to wait without a limit")
    return limit


def moment(value: Any, field: str) -> float:
    """Return a timestamp as float seconds since the epoch.

    Raises:
        Invalid: the value is not a finite number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid(field, f"is {type(value).__name__}; it must be seconds since the epoch")
    time = _as_float(value, field)
    if not math.isfinite(time):
        raise Invalid(field, f"{value} is not a time; send seconds since the epoch")
    return time


def _as_float(value: float, field: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise Invalid(field, "is too large for a number of seconds") from None


def choice(value: Any, field: str, one: str, other: str) -> None:
    """Check that a value is one of two strings.

    Raises:
        Invalid: the value is neither `one` nor `other`.
    """
    if not isinstance(value, str) or value not in {one, other}:
        raise Invalid(field, f"{value!r} is neither {one!r} nor {other!r}")


def mapping(value: Any, field: str) -> dict[str, Any]:
    """Return a mapping as a dict.

    Raises:
        Invalid: the value is not a mapping.
    """
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    if not isinstance(value, Mapping):
        raise Invalid(field, f"is {type(value).__name__}, not an object")
    return dict(cast("Mapping[str, Any]", value))


def several(values: Iterable[T], field: str) -> list[T]:
    """Return values as a list.

    Raises:
        Invalid: the values are a single text, a mapping, or not iterable.
    """
    if isinstance(values, str):
        raise Invalid(field, f"{values!r} is one text; give a list of texts")
    kind: type = type(values)
    if issubclass(kind, bytes | Mapping) or not issubclass(kind, Iterable):
        raise Invalid(field, f"is {kind.__name__}, not a list")
    return list(values)


def texts(values: Any, field: str) -> list[str]:
    """Return texts as a list.

    Raises:
        Invalid: `several` refuses the values, or one of them is not text.
    """
    items: list[Any] = several(values, field)
    for item in items:
        if not isinstance(item, str):
            raise Invalid(field, f"{item!r} is not text")
    return items


def whole_numbers(values: Any, field: str) -> list[int]:
    """Return integers of 64 bits as a list.

    Raises:
        Invalid: `several` refuses the values, or one of them is not an integer of 64 bits.
    """
    items: list[Any] = several(values, field)
    for item in items:
        if not -(2**63) <= whole(item, field, "a whole number") < 2**63:
            raise Invalid(field, f"{item!r} does not fit into 64 bits")
    return items


def finite(value: Any, field: str) -> float:
    """Return a finite number as a float.

    Raises:
        Invalid: the value is not a number, or it is not finite.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid(field, f"{value!r} is not a number")
    try:
        number = float(value)
    except OverflowError:
        raise Invalid(field, "is too large for a number") from None
    if not math.isfinite(number):
        raise Invalid(field, f"{value} is not a finite number; leave it out for no limit")
    return number


def pairs(values: Any, field: str) -> list[tuple[str, str]]:
    """Return pairs of a rollout id and an attempt id as a list.

    Raises:
        Invalid: `several` refuses the values, or one of them is not a pair of texts.
    """
    items: list[Any] = several(values, field)
    for index, value in enumerate(items):
        if not isinstance(value, tuple | list) or len(cast("tuple[Any, ...]", value)) != 2:
            raise Invalid(f"{field}[{index}]", f"{value!r} is not a pair of a rollout_id and an attempt_id")
        for name, part in zip(("rollout_id", "attempt_id"), cast("tuple[Any, Any]", value), strict=True):
            text(part, f"{field}[{index}].{name}")
    return items


def log_part(types: Any, rollout_id: Any) -> None:
    """Check the filters of a read of the log.

    Raises:
        Invalid: `types` is not a list of texts, or `rollout_id` is not text.
    """
    if types is not None:
        texts(types, "types")
    if rollout_id is not None:
        text(rollout_id, "rollout_id")


def event_number(at: Any) -> None:
    """Check the number of an event of a rollout.

    Raises:
        Invalid: the value is not an integer.
    """
    if not isinstance(at, int) or isinstance(at, bool):
        raise Invalid("at", f"there is no event {at!r}; a rollout's history numbers its events 1, 2, 3 …")


def seal(value: Any) -> None:
    """Check that a value is a seal, the path of a seal, or None.

    Raises:
        Invalid: the value is none of these.
    """
    if value is not None and not isinstance(value, Seal | str | os.PathLike):
        raise Invalid("seal", f"is {type(value).__name__}, neither a Seal nor the path of a seal")


def sdk_span(rollout_id: Any, attempt_id: Any, readable_span: Any, sequence_id: Any) -> Span:
    """Return a finished span of the OpenTelemetry SDK as a span of the store.

    If `sequence_id` is None, the result has the number 0, and the store has to assign a number.

    Raises:
        Invalid: `readable_span` is not a span of the SDK, or another argument has the wrong type.
    """
    text(rollout_id, "rollout_id")
    text(attempt_id, "attempt_id")
    number = 0 if sequence_id is None else whole(sequence_id, "sequence_id", "a span's number, or None for the next")
    if not hasattr(readable_span, "get_span_context"):
        raise Invalid("readable_span", f"is {type(readable_span).__name__}, not a span of the OpenTelemetry SDK")
    try:
        return Span.from_opentelemetry(readable_span, rollout_id, attempt_id, number)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise Invalid(".".join(["readable_span", *map(str, first["loc"])]), first["msg"]) from None
