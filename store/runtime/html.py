"""HTML of values for notebooks: tables, fields and traces as small texts without scripts and style sheets.

The HTML uses colours of the page and half-transparent colours, so that it is readable on light and on dark pages. All
text of values is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final, Protocol

ROWS: Final = 50
"""The most rows of a table or a trace. A note after the last row states the number of further rows."""
_CHARACTERS: Final = 200
"""The most characters of a value."""
_LINE: Final = "border-bottom:1px solid rgba(128,128,128,.35)"
_CELL: Final = f"text-align:left;vertical-align:top;padding:2px 12px 2px 0;{_LINE}"
_DIM: Final = "opacity:.65"
_TITLE: Final = f"{_CELL};{_DIM};font-weight:normal"
_COLORS: Final = {
    "succeeded": "rgba(34,160,80,.3)",
    "OK": "rgba(34,160,80,.3)",
    "failed": "rgba(220,60,60,.35)",
    "timeout": "rgba(220,60,60,.35)",
    "unresponsive": "rgba(220,60,60,.35)",
    "ERROR": "rgba(220,60,60,.35)",
    "running": "rgba(60,130,220,.35)",
    "preparing": "rgba(60,130,220,.35)",
}
_STATUS: Final = "status"
_TABLE: Final = "border-collapse:collapse;background:none;color:inherit;font-size:inherit"
_SHORT_CHARACTERS: Final = 40
"""The most characters of a value that is not broken into lines."""
_BAR: Final = "rgba(60,130,220,.6)"
_FAILED_BAR: Final = "rgba(220,60,60,.7)"


class Moment(float):
    """A time in seconds since the epoch, which is shown in UTC."""


class TraceStep(Protocol):
    """A span of a trace."""

    @property
    def span_id(self) -> str: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def name(self) -> str: ...
    @property
    def start_time(self) -> float | None: ...
    @property
    def end_time(self) -> float | None: ...


def items(values: Sequence[Any], total: int | None = None) -> str:
    """Return spans as a trace, and other values of the API as a table.

    Args:
        values: values of one type. If they have a method `notebook_row`, it returns the row of a value. Otherwise, the
            fields of a value are its row.
        total: the number of all values, if `values` are not all of them.
    """
    first: Any = values[0] if values else None
    if hasattr(first, "span_id") and hasattr(first, "parent_id"):
        return trace(values, [value.status.status_code == "ERROR" for value in values], total)
    rows = [value.notebook_row() if hasattr(value, "notebook_row") else dict(value) for value in values[:ROWS]]
    return table(rows, len(values) if total is None else total)


def titled(title: str, content: str) -> str:
    """Return the content below a line with the title."""
    return f'<div style="line-height:1.35;overflow-x:auto"><div><b>{escape(title)}</b></div>{content}</div>'


def fields(values: Mapping[str, object]) -> str:
    """Return a table with a row for each field that is not None."""
    rows = [
        f'<tr><th style="{_TITLE}">{escape(name)}</th>{_cell(name, value)}</tr>'
        for name, value in values.items()
        if value is not None
    ]
    return f'<table style="{_TABLE}">{"".join(rows)}</table>'


def table(rows: Sequence[Mapping[str, object]], total: int | None = None) -> str:
    """Return a table with a column for each field that is not None in some row.

    Args:
        rows: the rows.
        total: the number of all rows, if `rows` are not all of them.
    """
    if not rows:
        return _note("none")
    names = list(dict.fromkeys(name for row in rows for name, value in row.items() if value is not None))
    head = "".join(f'<th style="{_TITLE}">{escape(name)}</th>' for name in names)
    lines = ["<tr>" + "".join(f"{_cell(name, row.get(name))}" for name in names) + "</tr>" for row in rows[:ROWS]]
    body = f'<table style="{_TABLE}"><tr>{head}</tr>{"".join(lines)}</table>'
    return body + _more(min(len(rows), ROWS), len(rows) if total is None else total)


def trace(spans: Sequence[TraceStep], failed: Sequence[bool], total: int | None = None) -> str:
    """Return the tree of spans. Each span has a bar that shows its time.

    Args:
        spans: the spans of one or several traces.
        failed: for each span, whether it failed.
        total: the number of all spans, if `spans` are not all of them.
    """
    if not spans:
        return _note("none")
    starts = [span.start_time for span in spans if span.start_time is not None]
    ends = [span.end_time for span in spans if span.end_time is not None]
    first = min(starts, default=0.0)
    length = max(max(ends, default=first) - first, 1e-9)
    rows: list[str] = []
    for place, depth in _order(spans):
        if len(rows) == ROWS:
            break
        span = spans[place]
        start = first if span.start_time is None else span.start_time
        end = start if span.end_time is None else max(span.end_time, start)
        left, width = 100 * (start - first) / length, 100 * (end - start) / length
        color = _FAILED_BAR if failed[place] else _BAR
        bar = (
            f'<div style="margin-left:{left:.2f}%;width:{max(width, 0.5):.2f}%;max-width:{100 - left:.2f}%;'
            f'min-width:2px;height:9px;margin-top:5px;background:{color}"></div>'
        )
        name = f'<span style="padding-left:{1.2 * min(depth, 20):.1f}em">{escape(_short(span.name))}</span>'
        took = "" if span.end_time is None or span.start_time is None else _seconds(end - start)
        rows.append(
            f'<tr><td style="{_CELL};white-space:nowrap">{name}</td>'
            f'<td style="{_CELL};white-space:nowrap;text-align:right">{took}</td>'
            f'<td style="{_CELL};width:100%">{bar}</td></tr>'
        )
    body = f'<table style="{_TABLE};width:100%">{"".join(rows)}</table>'
    return body + _more(len(rows), len(spans) if total is None else total)


def _order(spans: Sequence[TraceStep]) -> Iterator[tuple[int, int]]:
    """Yield the index and the depth of each span once, parents before their children."""
    places = {span.span_id: place for place, span in enumerate(spans)}
    children: dict[int | None, list[int]] = {}
    for place, span in enumerate(spans):
        parent = places.get(span.parent_id) if span.parent_id is not None else None
        children.setdefault(parent, []).append(place)
    rest = set(range(len(spans)))
    # Spans whose parents form a circle have no root. They follow all other spans.
    for roots in (children.get(None, []), range(len(spans))):
        waiting = [(place, 0) for place in reversed(roots)]
        while waiting:
            place, depth = waiting.pop()
            if place not in rest:
                continue
            rest.remove(place)
            yield place, depth
            waiting += [(child, depth + 1) for child in reversed(children.get(place, []))]


def _cell(name: str, value: object) -> str:
    text = _short(_text(value))
    content = escape(text)
    if name == _STATUS and text in _COLORS:
        content = f'<span style="background:{_COLORS[text]};padding:0 6px;border-radius:8px">{content}</span>'
    breaks = "white-space:nowrap" if len(text) <= _SHORT_CHARACTERS else "min-width:20em;overflow-wrap:anywhere"
    return f'<td style="{_CELL};{breaks}">{content}</td>'


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case Moment():
            return _time(value)
        case str():
            return value
        case float():
            return f"{value:.6g}"
        case _:
            return json.dumps(value, ensure_ascii=False, default=str)


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{float(seconds):g}"


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:,.4g} s"


def _short(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}…"


def _more(rows: int, total: int) -> str:
    return _note(f"… and {total - rows:,} more") if total > rows else ""


def _note(text: str) -> str:
    return f'<div style="{_DIM}">{escape(text)}</div>'
