"""Repair of decoded spans that a store would refuse because of one value.

A value that no database stores is changed, and the span is kept. The attribute `rollbook.changed` of the span lists
the changes. If the value belongs to the resource of the span, the list is an attribute of the resource.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, cast

from store.models import AttributeValue
from store.otel.spans import Attributes, Received
from store.runtime.lenient_json import storable_text
from store.semconv import CHANGED, FULL_TEXT, INDEXED_TEXTS, MAX_INDEXED_BYTES, REWARD

MAX_NAME_BYTES: Final = 1024
"""The longest name of a span in bytes of UTF-8."""
_MAX_CHANGES: Final = 16
_SHOWN: Final = 100


def repair(span: Received) -> list[str]:
    """Change the values of a span and of its resource that no store accepts; return the changes, if there are any.

    Ids are not changed, because a changed id would be the id of another span.
    """
    resource = span.origin.resource
    of_resource = _Changes()
    of_resource.attributes(resource.attributes)
    # The models of spans are frozen, but the decoder made this one for the spans of the request alone.
    vars(resource)["schema_url"] = of_resource.text(resource.schema_url, "schema_url")
    of_resource.mark(resource.attributes)

    changes = _Changes()
    changes.attributes(span.attributes)
    name = changes.text(span.name, "name")
    span.name = changes.shortened(name, "name", MAX_NAME_BYTES, span.attributes)
    span.message = None if span.message is None else changes.text(span.message, "status.message")
    span.trace_state = changes.value(span.trace_state, "trace_state")
    for field, parts in (("events", span.events), ("links", span.links)):
        for index, part in enumerate(parts):
            parts[index] = changes.value(part, f"{field}[{index}]")
    # The resource of a scope is shared by spans, so the repaired scope is a new object.
    span.extras = changes.value(span.extras, "scope")
    changes.mark(span.attributes)
    return [*of_resource.made, *changes.made]


class _Changes:
    """The changes of one span or resource, as texts."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def mark(self, attributes: Attributes) -> None:
        """Add the attribute that lists the changes, if there are any."""
        if self.made:
            further = len(self.made) - _MAX_CHANGES
            listed: list[str] = self.made[:_MAX_CHANGES]
            attributes[CHANGED] = [*listed, f"and {further} more"] if further > 0 else listed

    def attributes(self, attributes: Attributes) -> None:
        """Repair attributes in place; their order stays the same."""
        given = dict(attributes)
        attributes.clear()
        full: Attributes = {}
        for key, value in given.items():
            name = self.text(key, "the key of an attribute")
            repaired = self.value(value, name)
            is_indexed = name in INDEXED_TEXTS or (name.startswith(f"{REWARD}.") and name.endswith(".name"))
            if is_indexed and isinstance(repaired, str):
                repaired = self.shortened(repaired, name, MAX_INDEXED_BYTES, full)
            attributes[name] = repaired
        attributes.update(full)

    def value(self, value: Any, path: str) -> Any:
        """Return a value without texts and numbers that no store accepts."""
        match value:
            case str():
                return self.text(value, path)
            case float() if not math.isfinite(value):
                return self._number(value, path)
            case dict():
                items = cast("dict[str, Any]", value).items()
                return {self.text(key, path): self.value(item, f"{path}.{key}") for key, item in items}
            case list():
                return self._list(cast("list[Any]", value), path)
            case _:
                return value

    def _list(self, items: list[Any], path: str) -> AttributeValue | list[Any]:
        repaired = [self.value(item, path) for item in items]
        # The items of an attribute's list have one type. Like any other mixed list, this one becomes JSON text.
        is_mixed = any(isinstance(each, float) for each in items) and any(isinstance(each, str) for each in repaired)
        return json.dumps(repaired, ensure_ascii=False) if is_mixed else repaired

    def _number(self, value: float, path: str) -> str:
        text = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        self._add(path, f"the number {text} became text")
        return text

    def text(self, text: str, path: str) -> str:
        """Return text without characters that no store accepts."""
        repaired = storable_text(text)
        if repaired != text:
            self._add(path, "U+0000 or a lone surrogate became U+FFFD")
        return repaired

    def shortened(self, text: str, path: str, limit: int, attributes: Attributes) -> str:
        """Return text of at most `limit` bytes; an attribute is added with the full text if the text was longer."""
        raw = text.encode()
        if len(raw) <= limit:
            return text
        attributes[FULL_TEXT + path] = text
        self._add(path, f"shortened to {limit:,} bytes; {FULL_TEXT}{path} contains the full text")
        return raw[:limit].decode(errors="ignore")

    def _add(self, path: str, change: str) -> None:
        shown = storable_text(path)
        self.made.append(f"{shown if len(shown) <= _SHOWN else f'{shown[: _SHOWN - 1]}…'}: {change}")
