"""Range filters of a page: the parameters `reward_min`, `reward_max` and so on."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

from store.dashboard.request import PageRequest
from store.db.queries.rollout_list import RANGED, Range
from store.errors import Invalid

RANGE_PARAMETERS: Final = (*(f"{name}_{end}" for name in RANGED for end in ("min", "max")), "reward_below")
"""The parameters. `reward_below` is an upper bound that does not belong to the range, as of a bar of a histogram."""
_MOST: Final = {
    **dict.fromkeys(("step", "tokens", "spans"), 2.0**53),
    **dict.fromkeys(("duration", "ended"), 1e12),
    "attempts": 2.0**31 - 1,
}


def range_bound(request: PageRequest, parameter: str) -> float | None:
    """Return the bound that a parameter gives; None if it is missing. A time may be seconds or a date with a time.

    Raises:
        Invalid: the bound is not a number, or is outside the range of values that the column can have.
    """
    text, name = request.one(parameter), parameter.partition("_")[0]
    if not text:
        return None
    try:
        number = _seconds(text) if name == "ended" else float(text)
    except ValueError:
        raise Invalid(parameter, f"{text[:80]!r} is not a {'time' if name == 'ended' else 'number'}") from None
    if not math.isfinite(number) or abs(number) > _MOST.get(name, math.inf):
        raise Invalid(parameter, f"{text[:80]!r} is outside the range of the column")
    return number


def ranges_from(bounds: dict[str, float | None]) -> list[Range]:
    """Return the ranges that the bounds of the parameters give."""
    ranges = [Range(name, bounds[f"{name}_min"], bounds[f"{name}_max"]) for name in RANGED]
    if (below := bounds["reward_below"]) is not None:
        ranges.append(Range("reward", None, math.nextafter(below, -math.inf)))
    return [bounds for bounds in ranges if bounds.least is not None or bounds.most is not None]


def field_text(parameter: str, text: str) -> str:
    """Return a bound as the field of a form shows it: a number with at most 12 digits, or a time in UTC."""
    try:
        if parameter.startswith("ended"):
            return f"{datetime.fromtimestamp(_seconds(text), UTC):%Y-%m-%dT%H:%M:%S}"
        return f"{float(text):.12g}"
    except (ValueError, OverflowError, OSError):
        return text


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
