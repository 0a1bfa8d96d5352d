"""Parsing and formatting of times and durations."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

from store.runtime.durations import duration

__all__ = ["ago", "duration", "in_words", "local", "moment", "seconds_in", "utc"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)[a-z]*\s+ago")
_LENGTH = re.compile(r"(\d{1,9}(?:\.\d+)?)\s*(s|m|h|d)")
_TIME_OF_DAY = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?")


def moment(text: str, now: datetime | None = None) -> int | datetime:
    """Convert a text to a position of the log or to a timezone-aware time.

    A number is a position of the log, which is the number of an event. A time is written as in RFC 3339, as a date with
    or without a time of day, as a time of day (which means today), or as an age such as `10m ago`. A time without a UTC
    offset is a local time.

    Raises:
        ValueError: the text has none of these forms.
    """
    stripped = text.strip()
    present = now or datetime.now().astimezone()
    if stripped.isascii() and stripped.isdigit():
        return int(stripped)
    if ago := _AGO.fullmatch(stripped.lower()):
        return present - timedelta(seconds=float(ago[1]) * _UNITS[ago[2]])
    if _TIME_OF_DAY.fullmatch(stripped):
        stripped = f"{present:%Y-%m-%d} {stripped.zfill(5) if stripped.count(':') == 1 else stripped.zfill(8)}"
    try:
        time = datetime.fromisoformat(stripped)
        return time.astimezone() if time.tzinfo is None else time
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is neither a position nor a time; write 1234, 2026-11-20T02:00:00Z, '2026-11-20 03:00' or"
            " '10m ago'"
        ) from None


def seconds_in(text: str) -> float:
    """Return in seconds the duration that a text such as `30d`, `12h`, `45m` or `90s` gives.

    Raises:
        ValueError: the text is not a duration, or the duration is 0.
    """
    match = _LENGTH.fullmatch(text.strip().lower())
    if match is None or not float(match[1]):
        raise ValueError(f"{text!r} is not a duration; write 30d, 12h, 45m or 90s")
    return float(match[1]) * _UNITS[match[2]]


def in_words(moment: int | datetime) -> str:
    """Return a position, or a time as a local time, as text for a message to the user."""
    if isinstance(moment, int):
        return f"position {moment}"
    return moment.astimezone().isoformat(sep=" ", timespec="milliseconds" if moment.microsecond else "seconds")


def utc(time: float | None) -> str:
    """Return a time in UTC with microseconds, as in RFC 3339; an empty text for None."""
    if time is None:
        return ""
    return _datetime(time, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def local(time: float | None, *, date: bool = True) -> str:
    """Return a time as a local time with milliseconds, without the date if `date` is False; an empty text for None."""
    if time is None:
        return ""
    text = _datetime(time, None).isoformat(sep=" ", timespec="milliseconds")
    return text[:23] if date else text[11:23]


def ago(time: float | None, now: float) -> str:
    """Return the age of a time at `now`, in a single unit, for example `3 min ago`; an empty text for None."""
    if time is None:
        return ""
    seconds = now - time
    if seconds < 0:
        return f"in {_rounded(-seconds)}"
    return "now" if seconds < 1 else f"{_rounded(seconds)} ago"


def _rounded(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _datetime(time: float, zone: tzinfo | None) -> datetime:
    # The time is rounded to the nearest microsecond, which is the precision of the log.
    micros = round(time * 1_000_000)
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).astimezone(zone)
