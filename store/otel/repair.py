"""Repair of spans that a store would refuse because of one value. See decision 48.

A value that no database stores is changed, and the span is kept. The attribute `rollbook.changed` of the span lists
the changes. If the value belongs to the resource of the span, the list is an attribute of the resource.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import orjson

from store.models import AttributeValue, OtelResource, Span, TraceStatus
from store.models.spans import as_attribute, in_seconds, sdk_fields
from store.otel.spans import Attributes, Json, Received
from store.runtime.lenient_json import safe_text, storable_text
from store.semconv import CHANGED, FULL_TEXT, INDEXED_TEXTS, MAX_INDEXED_BYTES, REWARD, summarise

MAX_NAME_BYTES: Final = 1024
"""The longest name of a span in bytes of UTF-8."""
_MAX_CHANGES: Final = 16
_SHOWN: Final = 100
_MAX_DEPTH: Final = 100
_LARGEST: Final = 2**63
# A reduced span has the rewards whose JSON has at most this many bytes together, so that the store accepts it.
_REWARD_BYTES: Final = 4096
_REASON: Final = 200
# `fitting` limits one text to the limit of the span divided by these numbers, in this order.
_PARTS: Final = (4, 32, 256, 2048)
_SHORTEST: Final = 8 * 1024


def repair(span: Received) -> list[str]:
    """Change the values of a span and of its resource that no store accepts; return the changes, if there are any.

    Ids are not changed, because a changed id would be the id of another span.
    """
    resource = span.origin.resource
    resource_changes = _Changes()
    resource_changes.attributes(resource.attributes)
    # The models of spans are frozen. This change is safe, because only spans of this request use the resource.
    vars(resource)["schema_url"] = resource_changes.text(resource.schema_url, "schema_url")
    resource_changes.mark(resource.attributes)

    changes = _Changes()
    changes.attributes(span.attributes)
    name = changes.text(span.name, "name")
    span.name = changes.shortened(name, "name", MAX_NAME_BYTES, span.attributes)
    span.message = None if span.message is None else changes.text(span.message, "status.message")
    span.trace_state = changes.value(span.trace_state, "trace_state")
    for field, parts in (("events", span.events), ("links", span.links)):
        for index, part in enumerate(parts):
            parts[index] = changes.value(part, f"{field}[{index}]")
    # Spans share the object of their scope, so the repaired scope is a new object.
    span.extras = changes.value(span.extras, "scope")
    changes.mark(span.attributes)
    return [*resource_changes.entries, *changes.entries]


def converted(readable_span: Any, rollout_id: str, attempt_id: str) -> Span:
    """Convert a finished span of the SDK to a `Span` with the number 0.

    Values that a `Span` cannot hold are changed and marked. Values that a `Span` can hold but a store refuses are
    unchanged; use `repaired` for them.
    """
    with suppress(Exception):  # values in the SDK's span are objects of any type
        return Span.from_opentelemetry(readable_span, rollout_id, attempt_id, 0)
    changes = _Changes()
    try:
        return _repaired(sdk_fields(readable_span, rollout_id, attempt_id, 0, changes.converted), changes)
    except Exception as error:  # noqa: BLE001 - values in the SDK's span are objects of any type
        return _bare(readable_span, rollout_id, attempt_id, error)


def repaired(span: Span) -> Span:
    """Return a span in which values that no store accepts are changed and marked.

    If the span has no such values, return the span itself.
    """
    changes = _Changes()
    changed = _repaired(span.model_dump(), changes)
    return changed if changes.entries else span


def fitting(span: Span, limit: int) -> Span:
    """Return a span whose JSON has at most `limit` bytes.

    Long texts are cut, and long lists are left out. Both changes are marked.
    """
    for part in _PARTS:
        if _size(span) <= limit:
            return span
        span = _repaired(span.model_dump(), _Changes(max(limit // part, _SHORTEST)))
    if _size(span) <= limit:
        return span
    return _with_few_attributes(span, limit // 2)


def reduced(span: Span, reason: str) -> Span:
    """Return the name, ids, times, status and rewards of a span, with a mark: the last remedy for a refused span."""
    rewards: Attributes = {}
    for index, (name, value) in enumerate(summarise(span.name, span.attributes).rewards):
        reward = {
            f"{REWARD}.{index}.name": _cut(storable_text(name), MAX_INDEXED_BYTES),
            f"{REWARD}.{index}.value": value,
        }
        if len(orjson.dumps(rewards | reward)) > _REWARD_BYTES:
            break
        rewards |= reward
    message = span.status.description
    return Span(
        rollout_id=span.rollout_id,
        attempt_id=span.attempt_id,
        sequence_id=span.sequence_id,
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_id=span.parent_id,
        name=_cut(storable_text(span.name), MAX_NAME_BYTES),
        status=TraceStatus(
            status_code=span.status.status_code,
            description=None if message is None else storable_text(message)[:_REASON],
        ),
        attributes=rewards | {CHANGED: [f"only the rewards are left, because of an error: {_short(reason, _REASON)}"]},
        events=[],
        links=[],
        start_time=_time(span.start_time),
        end_time=_time(span.end_time),
        context=None,
        parent=None,
        resource=OtelResource(attributes={}, schema_url=""),
    )


def with_derived_id(span: Span) -> Span:
    """Return a span under an id derived from its ids, name and times, with a mark. Equal spans get equal ids."""
    derived = derived_span_id(span.trace_id, span.span_id, span.name, span.start_time, span.end_time)
    context = None if span.context is None else span.context.model_copy(update={"span_id": derived})
    attributes = span.attributes | {CHANGED: [*_listed(span.attributes), id_change(span.span_id)]}
    return span.model_copy(update={"span_id": derived, "context": context, "attributes": attributes})


def derived_span_id(*identity: object) -> str:
    """Return a new id for a span whose id belongs to another span.

    The new id has 16 hex digits, which are derived from the values of `identity`.
    """
    return hashlib.sha256("\0".join(map(repr, identity)).encode()).hexdigest()[:16]


def id_change(span_id: str) -> str:
    """Return the entry of `rollbook.changed` for a span whose id `span_id` belongs to another span of its attempt."""
    return f"span_id: {span_id} is the id of another span"


def add_attributes(into: Attributes, added: Mapping[str, AttributeValue]) -> None:
    """Add attributes to `into`. The lists of changes in both are concatenated."""
    changes = [*_listed(into), *_listed(added)]
    into.update(added)
    if changes:
        into[CHANGED] = changes


def _repaired(fields: Json, changes: _Changes) -> Span:
    """Return the span with these fields, without values that no store accepts."""
    resource_changes = _Changes(changes.longest)
    resource: Json = fields["resource"]
    resource_changes.attributes(resource["attributes"])
    further = resource_changes.value({key: item for key, item in resource.items() if key != "attributes"}, "resource")
    resource_changes.mark(resource["attributes"])

    attributes: Attributes = fields["attributes"]
    changes.attributes(attributes)
    name = changes.text(fields["name"], "name")
    del fields["name"]
    fields = {key: item if key in _UNCHANGED else changes.value(item, key) for key, item in fields.items()}
    for event in fields["events"]:
        event["name"] = changes.text(event["name"], "events")
    fields["resource"] = {**further, "attributes": resource["attributes"]}
    fields["name"] = changes.shortened(name, "name", MAX_NAME_BYTES, attributes)
    for field in ("start_time", "end_time"):
        if (time := _time(fields[field])) != fields[field]:
            changes.add(field, "not a time")
            fields[field] = time
    changes.mark(attributes)
    changes.entries = [*resource_changes.entries, *changes.entries]
    return Span.model_validate(fields)


_UNCHANGED: Final = frozenset(
    {"rollout_id", "attempt_id", "sequence_id", "trace_id", "span_id", "parent_id"}
    | {"start_time", "end_time", "attributes", "resource"}
)


def _bare(span: Any, rollout_id: str, attempt_id: str, error: Exception) -> Span:
    """Return a `Span` with the simplest fields of a span of the SDK whose other fields cannot be read."""
    context, parent = span.get_span_context(), span.parent
    attributes: dict[str, Any] = {
        key: value for key, value in dict(span.attributes or {}).items() if type(value) in {str, bool, int, float}
    }
    bare = Span.from_attributes(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        name=storable_text(safe_text(span.name)) or None,
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_id=f"{parent.span_id:016x}" if parent else None,
        start_time=in_seconds(span.start_time),
        end_time=in_seconds(span.end_time),
        status=TraceStatus(status_code=span.status.status_code.name),
        attributes=attributes,
    )
    return reduced(bare, storable_text(safe_text(error)))


def _with_few_attributes(span: Span, limit: int) -> Span:
    """Return a span without events and links, and with attributes of at most `limit` bytes. Rewards are kept first."""
    changes = _Changes()
    attributes: Attributes = {}
    size = 0
    names = sorted(span.attributes, key=lambda name: not name.startswith(f"{REWARD}."))
    for name in names:
        size += len(orjson.dumps({name: span.attributes[name]}))
        if size > limit:
            break
        attributes[name] = span.attributes[name]
    left_out = len(names) - len(attributes)
    changes.add("attributes, events, links", f"{left_out}, {len(span.events)} and {len(span.links)} left out")
    changes.mark(attributes)
    return span.model_copy(update={"attributes": attributes, "events": [], "links": []})


def _size(span: Span) -> int:
    return len(span.model_dump_json().encode(errors="replace"))


def _time(seconds: float | None) -> float | None:
    return seconds if seconds is None or math.isfinite(seconds) else None


def _cut(text: str, limit: int) -> str:
    """Return the beginning of a text, at most `limit` bytes of UTF-8."""
    return text.encode()[:limit].decode(errors="ignore")


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _listed(attributes: Mapping[str, AttributeValue]) -> list[str]:
    """Return the changes that attributes list."""
    listed = attributes.get(CHANGED)
    return [str(change) for change in listed] if isinstance(listed, (list, tuple)) else []


class _Changes:
    """The changes of one span or resource, as texts.

    Args:
        longest: the maximum size of a text or a list in bytes; None for no limit.
    """

    def __init__(self, longest: int | None = None) -> None:
        self.longest = longest
        self.entries: list[str] = []

    def mark(self, attributes: Attributes) -> None:
        """Add the attribute that lists the changes, if there are any."""
        if self.entries:
            changes = [*_listed(attributes), *self.entries]
            further = len(changes) - _MAX_CHANGES
            listed: list[str] = changes[:_MAX_CHANGES]
            attributes[CHANGED] = [*listed, f"and {further} more"] if further > 0 else listed

    def attributes(self, attributes: Attributes) -> None:
        """Repair attributes in place; their order stays the same."""
        before = dict(attributes)
        attributes.clear()
        full: Attributes = {}
        for key, value in before.items():
            name = self._key(key, "the key of an attribute", before, attributes)
            if self._is_too_long(value, name):
                continue
            repaired = self.value(value, name)
            is_indexed = name in INDEXED_TEXTS or (name.startswith(f"{REWARD}.") and name.endswith(".name"))
            if is_indexed and isinstance(repaired, str):
                repaired = self.shortened(repaired, name, MAX_INDEXED_BYTES, full)
            attributes[name] = repaired
        attributes.update(full)

    def converted(self, attributes: Mapping[str, Any] | None) -> Attributes:
        """Convert attributes of the SDK like `span_attributes`; values that cannot be converted become text."""
        result: Attributes = {}
        for name, value in (attributes or {}).items():
            if value is not None:
                try:
                    result[name] = as_attribute(name, value)
                except Exception:  # noqa: BLE001 - the value is of any type
                    result[name] = self._as_text(value, name)
        return result

    def value(self, value: Any, path: str, depth: int = 0) -> Any:
        """Return a value without texts and numbers that no store accepts."""
        match value:
            case None | bool():
                return value
            case str():
                return self.text(value, path)
            case int() | float():
                return self._number(value, path)
            case dict() | list() | tuple() if depth > _MAX_DEPTH:
                self.add(path, "nested too deeply to be recorded")
                return None
            case dict():
                return self._object(cast("dict[Any, Any]", value), path, depth)
            case list() | tuple():
                return self._list(cast("Sequence[Any]", value), path, depth)
            case _:
                return self._as_text(value, path)

    def _object(self, value: dict[Any, Any], path: str, depth: int) -> Json:
        repaired: Json = {}
        for key, item in value.items():
            name = self._key(key, path, value, repaired)
            if not self._is_too_long(item, f"{path}.{name}"):
                repaired[name] = self.value(item, f"{path}.{name}", depth + 1)
        return repaired

    def _list(self, items: Sequence[Any], path: str, depth: int) -> AttributeValue | list[Any]:
        kinds = set(map(type, items))
        # Lists of token ids and log-probabilities are long, and are nearly always plain.
        if kinds == {int} and min(items) >= -_LARGEST and max(items) < _LARGEST:
            return list(items)
        if kinds == {float} and all(map(math.isfinite, items)):
            return list(items)
        repaired = [
            self.value(item, f"{path}[{index}]" if isinstance(item, dict) else path, depth + 1)
            for index, item in enumerate(items)
        ]
        # The items of an attribute's list have one type. Like any other mixed list, this one becomes JSON text.
        is_mixed = any(isinstance(item, (int, float)) for item in items) and any(
            isinstance(item, str) for item in repaired
        )
        return json.dumps(repaired, ensure_ascii=False) if is_mixed else repaired

    def _key(self, key: Any, path: str, before: Mapping[Any, Any], repaired: Mapping[str, Any]) -> str:
        """Return the key of an attribute as a text that no other attribute has as its key."""
        name = key if isinstance(key, str) else self._as_text(key, path)
        name = self.text(name, path)
        while name != key and (name in before or name in repaired):
            name += "\N{REPLACEMENT CHARACTER}"
        return name

    def _number(self, value: float, path: str) -> str | float:
        if isinstance(value, int):
            if -_LARGEST <= value < _LARGEST:
                return value
            self.add(path, "an integer of more than 64 bits became text")
            return safe_text(value)
        if math.isfinite(value):
            return value
        text = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        self.add(path, f"the number {text} became text")
        return text

    def _as_text(self, value: Any, path: str) -> str:
        self.add(path, f"a value of type {_short(type(value).__name__, _SHOWN)} became text")
        return storable_text(safe_text(value))

    def text(self, text: Any, path: str) -> str:
        """Return text without characters that no store accepts, and not longer than `longest`."""
        if not isinstance(text, str):
            return self._as_text(text, path)
        repaired = storable_text(text)
        if repaired != text:
            self.add(path, "U+0000 or a lone surrogate became U+FFFD")
        # A character has at most four bytes, and six in JSON.
        if self.longest is None or len(repaired) * 6 <= self.longest:
            return repaired
        if (size := len(orjson.dumps(repaired)) - 2) <= self.longest:
            return repaired
        cut = _cut(repaired, len(repaired.encode()) * self.longest // size)
        self.add(path, f"cut after {len(cut.encode()):,} of {len(repaired.encode()):,} bytes")
        return cut

    def _is_too_long(self, value: Any, path: str) -> bool:
        """Return whether a list is left out because it is too long."""
        if self.longest is None or not isinstance(value, (list, tuple)):
            return False
        items = cast("Sequence[Any]", value)
        # An item and the comma after it have at least two bytes.
        if len(items) * 2 <= self.longest and len(json.dumps(items, default=safe_text)) <= self.longest:
            return False
        self.add(path, f"a list of {len(items):,} items was left out")
        return True

    def shortened(self, text: str, path: str, limit: int, attributes: Attributes) -> str:
        """Return text of at most `limit` bytes; an attribute is added with the full text if the text was longer."""
        if len(text.encode()) <= limit:
            return text
        attributes[FULL_TEXT + path] = text
        self.add(path, f"shortened to {limit:,} bytes; {FULL_TEXT}{path} contains the full text")
        return _cut(text, limit)

    def add(self, path: str, change: str) -> None:
        """Add a change of the value at a path."""
        self.entries.append(f"{_short(storable_text(path), _SHOWN)}: {change}")
