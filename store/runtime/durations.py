"""Durations as short texts."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return a duration as a short text, for example 3.2 ms, 1.25 s, 2 min 05 s or 1 h 04 min."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 1:
        if seconds == 0:
            return "0 s"
        if seconds < 0.001:
            return f"{seconds * 1e6:.0f} µs"
        return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
    if round(seconds, 2) < 60:
        return f"{seconds:.2f} s".replace(".00", "")
    total = round(seconds)
    if total < 3600:
        return f"{total // 60} min {total % 60:02} s"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"
