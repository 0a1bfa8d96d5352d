"""Fields of a span that OTLP cannot represent. An export writes them as one attribute, and both decoders restore them.

The attribute `rollbook.exported` is a JSON object with the columns of `FlatSpan` that a decoder would read differently:
ids that are not hex, times before 1970-01-01T00:16:40, contexts, unknown fields. It also contains the
original values of the attributes that the export replaces. So an exported span that is read again equals the span in
the store.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from store.models import Event, Link, OtelResource, Span, TraceStatus
from store.models.enums import StatusCode
from store.models.flat_spans import FlatSpan
from store.models.spans import Attributes
from store.semconv import EXPORT_ATTRIBUTES, EXPORTED

_JSON_COLUMNS: Final = frozenset({"events", "links", "resource", "extra"})
_COMPARED: Final = tuple(name for name in FlatSpan._fields if name not in {"rollout_id", "attempt_id", "attributes"})
_SPAN_FIELDS: Final = frozenset(_COMPARED) - {"extra", "status_code", "status_message"}
_EXTRA: Final = frozenset({"context", "parent", "status"})
"""The declared fields of a span that the column `extra` may contain."""


class ExportedFields(BaseModel):
    """The content of the attribute `rollbook.exported`. If a field is not set, the value in OTLP is correct."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sequence_id: int = 0
    trace_id: str = ""
    span_id: str = ""
    parent_id: str | None = None
    name: str = ""
    status_code: StatusCode = "UNSET"
    status_message: str | None = None
    start_time: float | None = None
    end_time: float | None = None
    attributes: Attributes = Field(default_factory=dict[str, Any])
    """The attributes that a decoder would read differently, and those whose names are in `_REPLACED`."""
    unchanged: list[str] = Field(default_factory=list[str])
    """The names in `EXPORT_ATTRIBUTES` under which the span has attributes that the export did not replace."""
    events: list[Event] = Field(default_factory=list[Event])
    links: list[Link] = Field(default_factory=list[Link])
    resource: OtelResource | None = None
    extra: dict[str, Any] | None = None

    @field_validator("extra")
    @classmethod
    def _extra_has_no_other_field(cls, extra: dict[str, Any] | None) -> dict[str, Any] | None:
        if extra is not None and (wrong := extra.keys() & Span.model_fields.keys() - _EXTRA):
            raise ValueError(f"{min(wrong)} is another field")
        return extra

    def restore_attributes(self, attributes: dict[str, Any]) -> dict[str, Any]:
        """Remove the attributes that the export added, and restore those that it replaced. Their order stays the same.

        Return the attributes that the export wrote.
        """
        names = [name for name in EXPORT_ATTRIBUTES if name in attributes and name not in self.unchanged]
        added = {name: attributes[name] for name in names}
        for name in (EXPORTED, *EXPORT_ATTRIBUTES):
            if name not in self.attributes:
                attributes.pop(name, None)
        attributes.update(self.attributes)
        return added

    def restored(self, span: Span) -> Span:
        """Return a decoded span with these fields instead of its own. Its attributes stay as they are.

        Raises:
            ValidationError: a context or the status is invalid.
        """
        fields: dict[str, Any] = {name: getattr(span, name) for name in Span.model_fields}
        fields |= span.__pydantic_extra__ or {}
        for name in self.model_fields_set & _SPAN_FIELDS:
            fields[name] = getattr(self, name)
        changed = {
            key: getattr(self, name)
            for name, key in (("status_code", "status_code"), ("status_message", "description"))
            if name in self.model_fields_set
        }
        if changed:
            fields["status"] = TraceStatus.model_validate({**span.status.model_dump(), **changed})
        if "extra" in self.model_fields_set:
            declared = {name: fields[name] for name in Span.model_fields}
            fields = {**declared, "context": None, "parent": None, **(self.extra or {})}
        return Span.model_validate(fields)


def exported_fields(original: FlatSpan, decoded: FlatSpan, added: Collection[str]) -> str:
    """Return the value of `rollbook.exported`.

    Args:
        original: the span in the store.
        decoded: the span that a decoder reads from the exported span, with the added attributes.
        added: the names of the added attributes.
    """
    fields: dict[str, Any] = {}
    for name in _COMPARED:
        value = getattr(original, name)
        if value != getattr(decoded, name):
            fields[name] = orjson.Fragment(value) if name in _JSON_COLUMNS and value is not None else value
    before, after = orjson.loads(original.attributes), orjson.loads(decoded.attributes)
    attributes = {
        name: value
        for name, value in before.items()
        if name in _REPLACED or type(value) is not type(after.get(name)) or value != after[name]
    }
    if attributes:
        fields["attributes"] = attributes
    if unchanged := [name for name in EXPORT_ATTRIBUTES if name in before and name not in added]:
        fields["unchanged"] = unchanged
    return orjson.dumps(fields).decode()


_REPLACED: Final = frozenset({EXPORTED, *EXPORT_ATTRIBUTES})


def parsed(value: object) -> ExportedFields | None:
    """Return the fields in the value of the attribute; None if another program wrote the value."""
    try:
        return ExportedFields.model_validate_json(value) if isinstance(value, str) else None
    except ValidationError:
        return None
