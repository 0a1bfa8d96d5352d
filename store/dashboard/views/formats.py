"""Formatting of values: numbers, durations, sizes, times and ids. These functions are the filters of the templates."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from markupsafe import Markup, escape

from store.domain.usage import has_usage
from store.models.prices import cost_text
from store.runtime.clock import MICROSECONDS, system_clock

NOTHING: Final = "–"  # noqa: RUF001 - the placeholder for a missing value
MINUS: Final = "\N{MINUS SIGN}"


def count(value: float | None) -> str:
    """Return a number with thousands separators: `12,345`."""
    return NOTHING if value is None else f"{value:,.0f}"


def _three(value: float) -> str:
    """Return a number with three significant digits, or without decimals if it has more than two integer digits.

    Large numbers are written without an exponent.
    """
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def short(value: float | None) -> str:
    """Return a number with three significant digits and a unit: `12.3k`."""
    if value is None:
        return NOTHING
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{_three(value / limit)}{unit}"
    return _three(value)


def number(value: float | None) -> str:
    """Return a number with four significant digits, without trailing zeros. An integer keeps all its digits."""
    if value is None:
        return NOTHING
    if math.isinf(value) or math.isnan(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.0f}" if 9999.5 <= abs(value) < 1e15 else f"{value:.4g}"


def cost(value: float | None, currency: str) -> str:
    """Return a cost with its currency: `12.34 USD`."""
    return cost_text(value, currency)


def tokens(tokens_in: float, tokens_out: float | None = None) -> str:
    """Return sums of tokens, in and out, or of one kind: `1.2k / 340` or `340`; a dash if no span reported tokens."""
    if not has_usage(tokens_in, tokens_out or 0):
        return NOTHING
    return short(tokens_in) if tokens_out is None else f"{short(tokens_in)} / {short(tokens_out)}"


def percent(value: float | None) -> str:
    """Return a fraction as a percentage: `12.5 %`."""
    return NOTHING if value is None else f"{_three(100 * value)} %"


def size(value: float | None) -> str:
    """Return a number of bytes: `1.2 MiB`."""
    if value is None:
        return NOTHING
    if abs(value) < 1024:
        return f"{value:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if abs(value) < 1024:
            return f"{_three(value)} {unit}"
    return f"{_three(value / 1024)} TiB"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units: `820 ms`, `3.2 s`, `4 min 10 s`, `2 h 5 min`."""
    if seconds is None:
        return NOTHING
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    if seconds == 0:
        return "0 s"
    if seconds < 0.001:
        return f"{sign}{_three(seconds * 1e6)} µs"
    if seconds < 1:
        return f"{sign}{_three(seconds * 1e3)} ms"
    if seconds < 60:
        return f"{sign}{_three(seconds)} s"
    for larger, unit, smaller, rest in ((3600, "min", 60, "s"), (86400, "h", 3600, "min")):
        if seconds < larger:
            units, left = divmod(seconds, smaller)
            under = int(left) if rest == "s" else int(left // 60)
            return f"{sign}{units:.0f} {unit}" + (f" {under} {rest}" if under else "")
    units, left = divmod(seconds, 86400)
    return f"{sign}{units:.0f} d" + (f" {left // 3600:.0f} h" if left >= 3600 else "")


def ago(seconds: float | None) -> str:
    """Return an approximate age: `3 min ago`."""
    if seconds is None:
        return NOTHING
    if seconds < 0:
        return f"in {duration(-seconds)}"
    for limit, unit, name in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{seconds // unit:.0f} {name} ago"
    return f"{seconds // 86400:.0f} d ago"


def time_text(at: float) -> str:
    """Return a time in UTC with milliseconds. A time that no calendar has is returned as seconds since the epoch."""
    try:
        moment = datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{at:g} s"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03} UTC"


def when(at: float | None, *, absolute: bool = False) -> Markup:
    """Return a `<time>` element that shows the age of a time and has the exact time as tooltip.

    A script of the page keeps the age current.

    Args:
        at: the time in seconds since the epoch. For a time in microseconds, use `stamp`.
        absolute: whether to show the exact time instead of the age.
    """
    if at is None:
        return escape(NOTHING)
    try:
        moment = datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        return escape(f"{at:g} s")
    exact = time_text(at)
    text = exact if absolute else ago(system_clock() / MICROSECONDS - at)
    kind = "exact" if absolute else "ago"
    return Markup('<time datetime="{}" data-time="{}" title="{}">{}</time>').format(
        moment.isoformat(), kind, exact, text
    )


def time_of_day(at: float | None) -> Markup:
    """Return a `<time>` element with the time of day in UTC of a time in seconds since the epoch."""
    if at is None:
        return escape(NOTHING)
    try:
        moment = datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        return escape(f"{at:g} s")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        moment.isoformat(), time_text(at), f"{moment:%H:%M:%S}"
    )


def stamp(at: int | None, *, absolute: bool = False) -> Markup:
    """Return a `<time>` element as `when` does, for a time in microseconds since the epoch."""
    return when(None if at is None else at / MICROSECONDS, absolute=absolute)


def clock(at: int | None) -> Markup:
    """Return a `<time>` element that shows the time of day of a time in microseconds since the epoch.

    If the time is more than 12 hours ago or ahead, the date is shown too.
    """
    if at is None:
        return escape(NOTHING)
    try:
        moment = datetime.fromtimestamp(at / MICROSECONDS, UTC)
    except (OverflowError, ValueError, OSError):
        return escape(f"{at / MICROSECONDS:g} s")
    is_near = abs(system_clock() - at) < 12 * 3600 * MICROSECONDS
    return Markup('<time datetime="{}" data-time="clock" title="{}">{}</time>').format(
        moment.isoformat(),
        f"{moment:%Y-%m-%d %H:%M:%S} UTC",
        f"{moment:%H:%M:%S}" if is_near else f"{moment:%m-%d %H:%M}",
    )


def reward(value: float | None) -> str:
    """Return a reward with three decimals and a real minus sign, `<0.001` for one that three decimals do not show.

    A large reward is written as `number` does.
    """
    if value is None:
        return NOTHING
    if 0 < abs(value) < 0.0005:
        return "<0.001" if value > 0 else f">{MINUS}0.001"
    text = f"{value:.3f}" if abs(value) < 1000 else number(value)
    return text.replace("-", MINUS)


def signed(value: float) -> str:
    """Return a difference with its sign and three decimals: `+0.028`."""
    return f"{'' if value < 0 else '+'}{reward(round(value, 3) if abs(value) < 1 else value)}"


def status(name: str | None) -> Markup:
    """Return a status as a coloured badge."""
    if name is None:
        return escape(NOTHING)
    return Markup('<span class="status" data-status="{0}">{0}</span>').format(name)


def brief(value: str | None, most: int = 24) -> Markup:
    """Return an id. An id of more than `most` characters is shortened in the middle and has the full id as tooltip."""
    if value is None:
        return escape(NOTHING)
    if len(value) <= most:
        return escape(value)
    head, tail = most * 2 // 3, most - most * 2 // 3 - 1
    return Markup('<span title="{}">{}…{}</span>').format(value, value[:head], value[-tail:])


def pretty(value: Any) -> str:
    """Return a value as indented JSON."""
    return orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()


def compact(value: Any, most: int = 200) -> str:
    """Return a text, or any other value as JSON on one line, truncated to `most` characters."""
    text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
    return text if len(text) <= most else f"{text[: most - 1]}…"


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "count": count,
    "short": short,
    "number": number,
    "cost": cost,
    "tokens": tokens,
    "percent": percent,
    "size": size,
    "duration": duration,
    "ago": ago,
    "when": when,
    "time_of_day": time_of_day,
    "stamp": stamp,
    "clock": clock,
    "reward": reward,
    "signed": signed,
    "status": status,
    "brief": brief,
    "pretty": pretty,
    "compact": compact,
    "shell": shlex.quote,
}
"""The filters of the templates, by name."""
