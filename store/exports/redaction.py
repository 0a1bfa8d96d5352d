"""Removal of named fields from the records of an export, before tables are made of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from typing import Any, Final, cast

import orjson

from store.errors import Invalid
from store.exports.records import RolloutRecord
from store.exports.schema import Table
from store.models import HistoryEvent
from store.models.flat_spans import EMPTY_LIST, FlatSpan

_INPUT: Final = "input"
_METADATA: Final = "metadata"
_ATTRIBUTES: Final = "attributes."
_SPAN_EVENT: Final = "span.recorded"


class FieldRedaction:
    """The fields that an export leaves out.

    Args:
        fields: a field is `input`, `metadata`, `attributes.KEY` where KEY may contain `*`, or `TABLE.COLUMN`.
            `input`, `metadata` and attributes are removed from all tables, and from the payload of events.
            `TABLE.COLUMN` becomes null in this table only.

    Raises:
        Invalid: a field has none of these forms.
    """

    def __init__(self, fields: Sequence[str] = ()) -> None:
        self.columns: dict[str, list[str]] = {}
        """The columns to remove, by table."""
        self._names: set[str] = set()
        patterns: list[str] = []
        for name in fields:
            table, _, column = name.partition(".")
            if name in {_INPUT, _METADATA}:
                self._names.add(name)
            elif name.startswith(_ATTRIBUTES) and column:
                patterns.append(column)
            elif column:
                self.columns.setdefault(table, []).append(column)
            else:
                raise Invalid(
                    "redact", f"{name!r} is no field; write input, metadata, attributes.KEY (with *) or TABLE.COLUMN"
                )
        self._is_removed = re.compile("|".join(map(translate, patterns))).fullmatch if patterns else None

    def check(self, tables: Sequence[Table]) -> None:
        """Check that the export contains the tables of all fields `TABLE.COLUMN`.

        Raises:
            Invalid: the export does not contain one of these tables.
        """
        names = [table.name for table in tables]
        for table in self.columns:
            if table not in names:
                raise Invalid("redact", f"the export has no table {table!r}; its tables are {', '.join(names)}")

    def apply(self, record: RolloutRecord) -> None:
        """Remove the fields from a record."""
        if self._names:
            # `group` and `step` have their own columns. Reading caches them before the metadata is removed.
            _ = record.group, record.step
            record.rollout = record.rollout.model_copy(update=dict.fromkeys(self._names))
            if _METADATA in self._names:
                record.attempts = [attempt.model_copy(update={"metadata": None}) for attempt in record.attempts]
        if self._is_removed is not None:
            record.spans = [self.span(row) for row in record.spans]
        if self._names or self._is_removed is not None:
            record.events = [self._event(event) for event in record.events]

    def span(self, row: FlatSpan) -> FlatSpan:
        """Return a span without the removed attributes."""
        if self._is_removed is None:
            return row
        return row._replace(
            attributes=orjson.dumps(self._without(orjson.loads(row.attributes))),
            events=row.events if row.events == EMPTY_LIST else self._nested_text(row.events),
            links=row.links if row.links == EMPTY_LIST else self._nested_text(row.links),
            resource=self._nested_text(row.resource),
        )

    def _event(self, event: HistoryEvent) -> HistoryEvent:
        if event.body is None:
            return event
        body: Any = {name: value for name, value in event.body.items() if name not in self._names}
        if self._is_removed is not None and event.type == _SPAN_EVENT:
            body = self._nested(body)
        return event.model_copy(update={"body": body})

    def _nested_text(self, text: bytes) -> bytes:
        return orjson.dumps(self._nested(orjson.loads(text)))

    def _nested(self, value: Any) -> Any:
        """Return JSON without the removed keys in every object `attributes`, at any depth."""
        match value:
            case list():
                return [self._nested(item) for item in cast("list[Any]", value)]
            case dict():
                fields = cast("dict[str, Any]", value)
                return {
                    name: self._without(item) if name == "attributes" else self._nested(item)
                    for name, item in fields.items()
                }
            case _:
                return value

    def _without(self, attributes: Any) -> Any:
        is_removed = self._is_removed
        if is_removed is None or not isinstance(attributes, dict):
            return attributes
        return {name: value for name, value in cast("dict[str, Any]", attributes).items() if not is_removed(name)}
