"""Checks of the metrics of trainers. A store on a database and a store over HTTP make the same checks. Decision 116."""

from __future__ import annotations

import math
from typing import Any, Final

from store.errors import Invalid, TooLarge
from store.validation import arguments
from store.validation.annotations import check_label

MAX_METRICS: Final = 64
"""The maximum number of metrics of one event, with which its data always fit into 8 KiB."""
_MARKS: Final = ("NaN", "Infinity", "-Infinity")
_LARGEST: Final = 2**53


def step_of(value: Any, field: str = "step") -> int:
    """Return a training step.

    Raises:
        Invalid: the value is not an integer from 0 to 2^53.
    """
    if arguments.whole(value, field, "a training step: 0, 1, 2 …", 0) > _LARGEST:
        raise Invalid(field, f"{value} is more than 2^53")
    return value


def values_of(metrics: Any) -> dict[str, float | str]:
    """Return metrics as numbers and marks, sorted by name.

    Raises:
        Invalid: a name is malformed, or a value is not a number.
        TooLarge: there are more than 64 metrics, or a name is longer than 64 bytes.
    """
    items = arguments.mapping(metrics, "metrics")
    if not items:
        raise Invalid("metrics", "is empty; give at least one number, such as {'loss': 0.7}")
    if len(items) > MAX_METRICS:
        raise TooLarge("metrics", len(items), MAX_METRICS, "metrics")
    for name in items:
        check_label(name, "metrics")
    return {name: _value(value, f"metrics.{name}") for name, value in sorted(items.items())}


def _value(value: Any, field: str) -> float | str:
    if isinstance(value, str) and value in _MARKS:
        return value
    # Numbers of numpy and one-element tensors have `__float__`, too; their booleans are not numbers.
    if isinstance(value, bool | str | bytes) or type(value).__name__ in {"bool_", "bool"} or value is None:
        raise Invalid(field, f"{value!r} is not a number")
    try:
        number = float(value)
    except OverflowError:
        raise Invalid(field, "does not fit into a 64-bit float") from None
    except (TypeError, ValueError):
        raise Invalid(field, f"{value!r} is not a number") from None
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
