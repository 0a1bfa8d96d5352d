"""Range filters of a page: the parameters `reward_min`, `reward_max` and so on."""

from __future__ import annotations

import math
from typing import Final

from store.dashboard.request import PageRequest
from store.db.queries.rollout_list import RANGED, Range
from store.errors import Invalid

RANGE_PARAMETERS: Final = (*(f"{name}_{end}" for name in RANGED for end in ("min", "max")), "reward_below")
"""The parameters. `reward_below` is an upper bound that does not belong to the range, as of a bar of a histogram."""
_MOST: Final = {"step": 2.0**53, "ended": 1e12}


def ranges_of(request: PageRequest) -> list[Range]:
    """Return the ranges that the parameters give.

    Raises:
        Invalid: a bound is not a number, or is outside the range of values that the column can have.
    """
    ranges = [Range(name, _number(request, name, "min"), _number(request, name, "max")) for name in RANGED]
    if (below := _number(request, "reward", "below")) is not None:
        ranges.append(Range("reward", None, math.nextafter(below, -math.inf)))
    return [bounds for bounds in ranges if bounds.least is not None or bounds.most is not None]


def given_ranges(request: PageRequest) -> list[tuple[str, str, str]]:
    """Return the parameter, the label and the text of each given bound, so that a form can send the bounds again."""
    labels = {"min": "from", "max": "to", "below": "below"}
    fields: list[tuple[str, str, str]] = []
    for parameter in RANGE_PARAMETERS:
        name, _, end = parameter.partition("_")
        if request.one(parameter):
            fields.append((parameter, f"{name.capitalize()} {labels[end]}", request.one(parameter)))
    return fields


def _number(request: PageRequest, name: str, end: str) -> float | None:
    parameter = f"{name}_{end}"
    text = request.one(parameter)
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        raise Invalid(parameter, f"{text[:80]!r} is not a number") from None
    if not math.isfinite(number) or abs(number) > _MOST.get(name, math.inf):
        raise Invalid(parameter, f"{text[:80]!r} is outside the range of the column")
    return number
