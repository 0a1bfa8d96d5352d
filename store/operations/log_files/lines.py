"""Lines of a log in files. A line is a JSON object, and contains one row of the store.

`data`, bodies and blobs are JSON texts whose bytes are hashed. A line contains such a text as a JSON value if orjson
writes this value as exactly the same text. Otherwise the line contains it as a string, under a key that ends in
`_text`, or in `_base64` if the bytes are not UTF-8. Values of binary columns are written as hex digits.
"""

from __future__ import annotations

import base64
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from sqlalchemy import LargeBinary, Table

from store.db.data_blocks import json_of
from store.db.dialect import NamedRow, Row
from store.db.queries.bodies import raw_json
from store.db.tables import core as core_tables
from store.operations.log_source import BlobRow, EndOfLog
from store.validation.json_limits import encode_body

COMMIT: Final = "commit"
EVENT: Final = "event"
BLOB: Final = "blob"
DROPPED: Final = "dropped"
TABLE: Final = "table"
_FORM_SUFFIXES: Final = ("", "_text", "_base64")
# A column's name can be of a subclass of `str`, which orjson does not accept as a key.
_COLUMNS: Final = {
    table: tuple((str(column.name), isinstance(column.type, LargeBinary)) for column in table.columns)
    for table in core_tables.metadata.sorted_tables
}
"""The names of the columns of each table, each with whether its values are bytes."""


@dataclass(slots=True)
class CommitLines:
    """The rows in the lines of one commit."""

    end: EndOfLog
    """The end of the log if this commit is the last one."""
    commit: Row
    blobs: list[BlobRow]
    """The blobs whose lines are between the lines of the commit before and the line of this commit."""
    events: list[Row] = field(default_factory=list[Row])
    bodies: list[Row] = field(default_factory=list[Row])
    dropped: list[Row] = field(default_factory=list[Row])


def commit_line(row: NamedRow) -> bytes:
    """Return the line of a row of `commits`."""
    return _line({COMMIT: _fields(core_tables.commits, row)})


def event_line(row: NamedRow) -> bytes:
    """Return the line of a row of `events` that also has the codec and the bytes of its body.

    Raises:
        Corrupt: the data or the body cannot be read.
    """
    fields = _fields(core_tables.events, row)
    json_of(fields.pop("data"))
    line = {EVENT: fields | _embedded("data", row.data.encode())}
    if row.body is not None:
        line |= _embedded("body", raw_json(row.codec, row.body))
    return _line(line)


def blob_line(name: str, codec: int, body: bytes) -> bytes:
    """Return the line of a blob.

    Raises:
        Corrupt: the content cannot be read.
    """
    return _line({BLOB: {"hash": name, **_embedded("content", raw_json(codec, body))}})


def dropped_line(row: NamedRow) -> bytes:
    """Return the line of a row of `dropped`."""
    return _line({DROPPED: _fields(core_tables.dropped, row)})


def table_line(table: Table, row: NamedRow) -> bytes:
    """Return the line of a row of a table beside the log."""
    return _line({TABLE: table.name, "row": _fields(table, row)})


def commit_row(fields: Mapping[str, Any]) -> Row:
    """Return the row of `commits` that has the fields of a line."""
    return _row(core_tables.commits, fields)


def commit_end(fields: Mapping[str, Any]) -> EndOfLog:
    """Return the end of a log whose last commit has the fields of a line."""
    return EndOfLog(
        fields["commit_id"],
        fields["last_position"],
        bytes.fromhex(fields["chain_hash"]),
        fields["events"],
        fields["body_bytes"],
    )


def event_row(fields: Mapping[str, Any]) -> Row:
    """Return the row of `events` that has the fields of a line."""
    return _row(core_tables.events, {**fields, "data": (_content("data", fields) or b"").decode()})


def body_row(line: Mapping[str, Any]) -> Row | None:
    """Return the row of `bodies` for the line of an event, encoded like a new body; None if the line has no body."""
    raw = _content("body", line)
    if raw is None:
        return None
    body = encode_body(raw)
    return line[EVENT]["position"], body.codec, body.raw_len, body.stored


def blob_row(fields: Mapping[str, Any]) -> BlobRow:
    """Return the row of `blobs` that has the fields of a line, encoded like a new blob."""
    raw = _content("content", fields)
    if raw is None:
        raise KeyError("content")
    body = encode_body(raw)
    return BlobRow(fields["hash"], body.codec, body.raw_len, body.stored)


def dropped_row(fields: Mapping[str, Any]) -> Row:
    """Return the row of `dropped` that has the fields of a line."""
    return _row(core_tables.dropped, fields)


def table_row(table: Table, line: Mapping[str, Any]) -> Row:
    """Return the row in a line of a table beside the log."""
    return _row(table, line["row"])


def grouped(some: Iterator[dict[str, Any]]) -> Generator[CommitLines]:
    """Yield each commit with the rows that belong to it."""
    waiting: list[BlobRow] = []
    commit: CommitLines | None = None
    for line in some:
        match line:
            case {"blob": fields}:
                waiting.append(blob_row(fields))
            case {"commit": fields}:
                if commit is not None:
                    yield commit
                commit, waiting = CommitLines(commit_end(fields), commit_row(fields), waiting), []
            case {"event": fields} if commit is not None:
                commit.events.append(event_row(fields))
                if (body := body_row(line)) is not None:
                    commit.bodies.append(body)
            case {"dropped": fields} if commit is not None:
                commit.dropped.append(dropped_row(fields))
            case _:
                raise ValueError(", ".join(line))
    if commit is not None:
        yield commit


def _line(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def _fields(table: Table, row: NamedRow) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, is_binary in _COLUMNS[table]:
        value = getattr(row, name)
        fields[name] = bytes(value).hex() if is_binary and value is not None else value
    return fields


def _row(table: Table, fields: Mapping[str, Any]) -> Row:
    values: list[Any] = []
    for name, is_binary in _COLUMNS[table]:
        value = fields[name]
        values.append(bytes.fromhex(value) if is_binary and value is not None else value)
    return values


def _embedded(name: str, text: bytes) -> dict[str, Any]:
    """Return the key and the value under which a line contains a text."""
    as_value, as_text, as_base64 = (name + suffix for suffix in _FORM_SUFFIXES)
    try:
        if orjson.dumps(orjson.loads(text)) == text:
            return {as_value: orjson.Fragment(text)}
        return {as_text: text.decode()}
    except orjson.JSONDecodeError:
        pass
    try:
        return {as_text: text.decode()}
    except UnicodeDecodeError:
        return {as_base64: base64.b64encode(text).decode()}


def _content(name: str, fields: Mapping[str, Any]) -> bytes | None:
    """Return the text that a line contains; None if it contains none."""
    as_value, as_text, as_base64 = (name + suffix for suffix in _FORM_SUFFIXES)
    if as_value in fields:
        return orjson.dumps(fields[as_value])
    if as_text in fields:
        return fields[as_text].encode()
    return base64.b64decode(fields[as_base64], validate=True) if as_base64 in fields else None
