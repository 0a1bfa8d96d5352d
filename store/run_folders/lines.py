"""Conversion of lines of `run_events.jsonl` to run events, and back to the same bytes. See decision 29.

The file `run_extension.jsonl` contains the events whose kinds the schema of `run_events.jsonl` does not have. Each line
of this file begins with the number of events in `run_events.jsonl` that come before the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, cast

from store.errors import StoreError
from store.models.runs import PHASE_KINDS, RunEvent, RunEventRow
from store.planning.event_fields import KINDS, defaults_of
from store.run_folders import forms
from store.validation.json_limits import MAX_CALL_BYTES, check_text

LINE: Final = "rollbook.line"
"""The key in an imported event's `extra` for the format of its line."""
AFTER: Final = "rollbook.after"
"""The key in a line of `run_extension.jsonl` for the number of events in `run_events.jsonl` before the line."""
HIDDEN_SCOPE: Final = "rollbook:import"
"""A scope that no event has.

An import creates a fork for each re-run, and a fork must hide the events of a scope. The forks of an import hide this
scope, and so hide no events.
"""
NATIVE_FORM: Final = "tight+end"

_FIELDS: Final = {"type": "kind", "identifier": "scope"}
"""The names of event fields by the keys in a line, for keys that differ from the names of the fields."""
_NAMES: Final = ("node_id", "parent_node_id", "identifier", "agent", "status", "service", "phase", "node_exec")
_TEXTS: Final = ("message", "prompt", "response", "error")
_EXTENSION: Final = "extension"
_RESERVED: Final = frozenset({"kind", "scope", "cascade", "reason", LINE})
"""Keys with another meaning in an event. The values of these keys in a line are stored with the format of the line."""
_MOST_METRICS: Final = 16
_LARGEST_LINE: Final = MAX_CALL_BYTES // 4
"""The maximum size of a line in bytes.

It is a quarter of the maximum size of a call, because a call may contain both a raw line and the texts in the line.
"""


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is a JSON object. The text and the offsets include empty lines before and after the line."""

    number: int
    start: int
    end: int
    """The offsets in bytes of the line in its file: `start` of the first byte, `end` after the last byte."""
    text: str
    value: dict[str, Any]
    is_extension: bool = False
    """Whether the line is from `run_extension.jsonl`; the key `AFTER` is then removed from the value and the text."""

    @property
    def rerun_seq(self) -> int:
        """The number of the re-run that wrote the line; 0 for the first run."""
        number = self.value.get("rerun_seq", 0)
        return number if isinstance(number, int) and not isinstance(number, bool) and number >= 0 else 0


@dataclass(frozen=True, slots=True)
class Damaged:
    """A line that is not a JSON object."""

    number: int
    problem: str


def split(data: bytes, start: int = 0) -> tuple[list[Line], list[Damaged]]:
    """Return the lines of a file from an offset on, and separately the damaged lines."""
    lines: list[Line] = []
    damaged: list[Damaged] = []
    begin = position = start
    number = data.count(b"\n", 0, start)
    while position < len(data):
        end = data.find(b"\n", position) + 1 or len(data)
        raw, position = data[position:end], end
        number += 1
        if not raw.strip():
            continue
        problem, value, text = _read(raw, data[begin:end], is_ended=raw.endswith(b"\n"))
        if value is None:
            damaged.append(Damaged(number, problem))
        else:
            lines.append(Line(number, begin, end, text, value))
        begin = end
    if begin < len(data) and lines and lines[-1].end == begin:
        last = lines.pop()
        lines.append(Line(last.number, last.start, len(data), last.text + data[begin:].decode(), last.value))
    return lines, damaged


def merge(events: list[Line], done: int, extension: list[Line]) -> list[Line]:
    """Return the lines of both files in the order in which the run recorded them.

    Args:
        events: lines of `run_events.jsonl`.
        done: the number of earlier lines of that file, which an earlier import has appended.
        extension: lines of `run_extension.jsonl`.
    """
    merged: list[Line] = []
    taken = 0
    for line in extension:
        value = {key: item for key, item in line.value.items() if key != AFTER}
        after: Any = line.value.get(AFTER)
        upto = after - done if isinstance(after, int) else len(events)
        merged.extend(events[taken : max(upto, taken)])
        taken = max(taken, min(upto, len(events)))
        merged.append(replace(line, text=forms.dumps(value, NATIVE_FORM), value=value, is_extension=True))
    return [*merged, *events[taken:]]


def extension_line(line: str, after: int) -> str:
    """Return a line as it is written to `run_extension.jsonl`.

    Args:
        line: the line.
        after: the number of events in `run_events.jsonl` that come before the line.
    """
    return forms.dumps({AFTER: after} | forms.loads(line), NATIVE_FORM)


def is_extension(row: RunEventRow) -> bool:
    """Return whether an event belongs to `run_extension.jsonl`.

    An imported event belongs to the file from which it was imported.
    """
    line_format: Any = (row.extra or {}).get(LINE)
    if line_format is None or row.source == "span":
        return row.kind not in KINDS
    return isinstance(line_format, dict) and cast("dict[str, Any]", line_format).get("file") == _EXTENSION


def _read(raw: bytes, chunk: bytes, *, is_ended: bool) -> tuple[str, dict[str, Any] | None, str]:
    if len(chunk) > _LARGEST_LINE:
        return f"is longer than {_LARGEST_LINE} bytes", None, ""
    try:
        value = forms.loads(raw.decode())
        text = chunk.decode()
    except ValueError as error:
        return ("is no JSON" if is_ended else "is cut off") + f": {error}", None, ""
    if not isinstance(value, dict):
        return "is no JSON object", None, ""
    return "", cast("dict[str, Any]", value), text


def event_of(line: Line) -> RunEvent:
    """Return the event of a line.

    The event also contains the format of the line, the keys of the line, and the values that the event's fields cannot
    store. If the format, keys and values do not reproduce the same bytes, the event contains the text of the line
    instead.
    """
    fields, extra = _fields(line.value), _extra(line.value)
    form = forms.form_of(line.value, line.text)
    keys = list(line.value)
    other = {key: value for key, value in line.value.items() if not _same(_value_of(key, fields, extra), value)}
    line_format: Any = {"form": form, "keys": keys} | ({"set": other} if other else {})
    if form is None or not forms.is_storable(line_format) or _line_with(line_format, fields, extra) != line.text:
        line_format = {"text": line.text} if line.is_extension else line.text
    if line.is_extension:
        line_format["file"] = _EXTENSION
    return RunEvent.model_validate(fields | extra | {LINE: line_format})


def _fields(value: Mapping[str, Any]) -> dict[str, Any]:
    kind = value.get("type")
    fields: dict[str, Any] = {"kind": kind if _is_name(kind) else "log"}
    for key in _NAMES:
        if _is_name(value.get(key)):
            fields[_FIELDS.get(key, key)] = value[key]
    if fields.get("scope") == HIDDEN_SCOPE:
        del fields["scope"]
    for key in _TEXTS:
        if isinstance(value.get(key), str) and forms.is_storable(value[key]):
            fields[key] = value[key]
    metrics = _metrics(value.get("metrics"))
    if metrics:
        fields["metrics"] = metrics
    if fields["kind"] in PHASE_KINDS:
        # An event of a phase has fewer fields. The values of the other fields are stored with the format of the line.
        fields_of_phase = {name: fields[name] for name in ("kind", "phase", "scope", *_TEXTS) if name in fields}
        return fields_of_phase if "phase" in fields_of_phase else fields_of_phase | {"kind": "log"}
    return fields


def _extra(value: Mapping[str, Any]) -> dict[str, Any]:
    fields = {*_NAMES, *_TEXTS, "type", "metrics", *_RESERVED}
    return {key: item for key, item in value.items() if key not in fields and forms.is_storable({key: item})}


def _metrics(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    # Metrics are sorted by name, as in the log.
    metrics = {key: item for key, item in sorted(cast("dict[str, Any]", value).items()) if _is_metric(key, item)}
    return metrics if len(metrics) <= _MOST_METRICS else {}


def _is_metric(key: str, value: Any) -> bool:
    if key == "model" and _is_name(value):
        return True
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return _is_name(key) and is_number and forms.is_storable(value)


def _is_name(value: Any) -> bool:
    """Return whether a value is text that the log accepts as an id."""
    if not isinstance(value, str) or not value:
        return False
    try:
        check_text(value, "name")
    except StoreError:
        return False
    return True


def _same(a: Any, b: Any) -> bool:
    """Return whether two values have the same JSON; the order of keys may differ in nested objects."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        one, other = cast("dict[str, Any]", a), cast("dict[str, Any]", b)
        return list(one.items()) == list(other.items())
    return bool(a == b)


def line_of(run_id: str, row: RunEventRow) -> str:
    """Return the line of an event: the imported line, or a new line with the event's fields."""
    extra: dict[str, Any] = {**(row.extra or {})}
    line_format: Any = extra.pop(LINE, None)
    if isinstance(line_format, str):
        return line_format
    if isinstance(line_format, dict) and row.source != "span":
        written = _line_with(cast("dict[str, Any]", line_format), _values(row), extra)
        if written is not None:
            return written
    return forms.dumps(dict(_native(run_id, row, extra)), NATIVE_FORM)


def _values(row: RunEventRow) -> dict[str, Any]:
    names = [_FIELDS.get(name, name) for name in ("type", *_NAMES, *_TEXTS, "metrics")]
    return {name: value for name in names if (value := getattr(row, name)) is not None}


def _value_of(key: str, fields: Mapping[str, Any], extra: Mapping[str, Any]) -> Any:
    field = _FIELDS.get(key, key)
    if key in _RESERVED:
        return None
    return fields[field] if field in fields else extra.get(key)


def _line_with(line_format: Mapping[str, Any], fields: Mapping[str, Any], extra: Mapping[str, Any]) -> str | None:
    if isinstance(text := line_format.get("text"), str):
        return text
    keys: Any = line_format.get("keys")
    constants: Any = line_format.get("set") or {}
    if not isinstance(keys, list) or not isinstance(constants, dict) or not forms.is_form(line_format.get("form")):
        return None
    other = cast("dict[str, Any]", constants)
    value = {key: other[key] if key in other else _value_of(key, fields, extra) for key in cast("list[str]", keys)}
    return forms.dumps(value, line_format["form"])


def _native(run_id: str, row: RunEventRow, extra: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a new line; an event of `KINDS` has all fields of the schema."""
    fields = _values(row)
    if row.kind in KINDS:
        fields = defaults_of(row) | fields
    for key in ("type", *_NAMES):
        if (field := _FIELDS.get(key, key)) in fields:
            yield key, fields[field]
    yield "timestamp", f"{datetime.fromtimestamp(row.at, UTC):%H:%M:%S}"
    for key in (*_TEXTS, "metrics"):
        if key in fields:
            yield key, fields[key]
    yield "rerun_seq", row.rerun_seq
    if "id" not in extra:
        yield "id", f"{run_id}_{row.version}"
    if row.source == "span":
        yield "span", dict(extra)
        return
    written_keys = {*_NAMES, *_TEXTS, "type", "metrics", "timestamp", "rerun_seq"}
    yield from ((key, value) for key, value in extra.items() if key not in written_keys)
