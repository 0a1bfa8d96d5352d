"""The waterfall of a rollout: the spans of one attempt as a tree on a time axis, and the page of a single span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel

from store.dashboard.page import PageContent, Pages
from store.dashboard.pages.annotations import annotations_of
from store.dashboard.pages.rollout_frame import look, removals
from store.dashboard.request import PageRequest
from store.dashboard.views.span_fields import SpanField, fields_of
from store.db.queries.waterfall import KINDS, SpanRow, SpanRowQuery, span_rows
from store.errors import NotFound
from store.model_calls.span_kinds import SPAN_KINDS, span_kind
from store.models import Event, Link
from store.models.queries import SpanQuery
from store.semconv import DROPPED

pages = Pages()

ROWS: Final = 200
"""The number of spans on a page without JavaScript, and the default number in the JSON version of the page."""
MOST_ROWS: Final = 10_000
"""The maximum number of spans in one response."""
_MOST_BYTES: Final = 1_500_000
_BYTES_OF_ROW: Final = 112
"""The approximate size of a row in a response, without the texts of the row."""
_MOST_EVENTS: Final = 50


@pages.get("/ui/rollouts/{rollout_id}/waterfall")
async def waterfall(request: PageRequest) -> PageContent:
    """Show an attempt's spans on a time axis.

    The script applies the filters `span`, `q`, `kind` and `errors`, and the switches `gaps` and `path`: `gaps=1` shows
    idle times in full, and `path=1` highlights the critical path. `zoom=2.5-8` is the visible period in seconds from
    the start.
    """
    looked = await look(request)
    rows: list[SpanRow] = []
    if looked.attempt is not None:
        query = SpanRowQuery(looked.rollout_id, looked.attempt.attempt_id, 0, looked.position, ROWS + 1)
        rows = await request.store.core.look(partial(span_rows, query=query))
    more = len(rows) > ROWS
    values = {"spans": rows[:ROWS], "next": rows[ROWS - 1].position if more else None}
    return looked.page("waterfall", "waterfall.html", values)


@pages.get("/ui/rollouts/{rollout_id}/spans")
async def spans(request: PageRequest) -> PageContent:
    """Return spans of an attempt as columns, in the order of the log.

    The parameters `after` and `until` are log positions: the result contains spans after `after`, up to `until`.
    """
    rollout_id = request.ids["rollout_id"]
    attempt_id = await _attempt_id(request)
    limit = request.whole("limit", ROWS, least=1, most=MOST_ROWS)
    query = SpanRowQuery(rollout_id, attempt_id, request.whole("after", 0), request.maybe_whole("until"), limit + 1)
    candidates = await request.store.core.look(partial(span_rows, query=query))
    rows = _within_budget(candidates[:limit])
    values = {
        "rollout_id": rollout_id,
        "attempt_id": attempt_id,
        "columns": columns_of(rows),
        "next": rows[-1].position if len(rows) < len(candidates) else None,
    }
    return PageContent("spans.html", values, f"Spans of {rollout_id}", hidden={"spans": rows})


@pages.get("/ui/rollouts/{rollout_id}/spans/{span_id}")
async def span(request: PageRequest) -> PageContent:
    """Show all fields of a span. Long values are truncated unless the parameter `all` is 1."""
    rollout_id, span_id = request.ids["rollout_id"], request.ids["span_id"]
    attempt_id = await _attempt_id(request)
    page = await request.store.find_spans(
        SpanQuery.of(rollout_id=rollout_id, attempt_id=attempt_id, span_id=span_id, limit=1)
    )
    if not page.items:
        raise NotFound("span", span_id, f"Span {span_id} not found for attempt {attempt_id} of rollout {rollout_id}")
    span, shows_all = page.items[0], request.among("all", ("0", "1"), "0") == "1"
    events = _events(span.events, shows_all=shows_all)
    attributes = fields_of(span.attributes, shows_all=shows_all)
    resource = fields_of(span.resource.attributes, shows_all=shows_all)
    further = _further(
        span, {*_HEAD, "attributes", "events", "links"}, {"resource": {"attributes"}}, shows_all=shows_all
    )
    annotated = await annotations_of(request, rollout_id)
    values: dict[str, Any] = {
        "span": span.model_dump(include=_HEAD),
        "attributes": attributes,
        "events": events,
        "event_count": len(span.events),
        "links": [_link(link, shows_all=shows_all) for link in span.links[:_MOST_EVENTS]],
        "resource": resource,
        "further": further,
        "notes": annotated.on_spans.get((span.attempt_id, span_id), []),
        "span_kind": span_kind(span.name, span.attributes),
        "whole": shows_all,
        "is_cut": _is_cut(attributes, resource, further, *(event["attributes"] for event in events))
        or len(events) < len(span.events),
    }
    removed_by = await removals(request, rollout_id) if DROPPED in span.attributes else []
    hidden = {"removed_by": removed_by, "annotated": annotated}
    return PageContent("span.html", values, f"Span {span.name[:80]}", hidden=hidden)


_HEAD: Final = {
    "rollout_id",
    "attempt_id",
    "span_id",
    "parent_id",
    "trace_id",
    "sequence_id",
    "name",
    "status",
    "start_time",
    "end_time",
}


async def _attempt_id(request: PageRequest) -> str:
    """Return the id of the attempt whose id or number is the parameter `attempt`, by default of the latest attempt.

    Raises:
        NotFound: there is no such rollout, or it has no such attempt.
    """
    rollout_id, selector = request.ids["rollout_id"], request.one("attempt")
    attempts = (await request.store.query_attempts(rollout_id)).items
    if not attempts:
        raise NotFound.attempts(rollout_id)
    if selector in {"", "latest"}:
        return attempts[-1].attempt_id
    for attempt in attempts:
        if selector in {attempt.attempt_id, str(attempt.sequence_id)}:
            return attempt.attempt_id
    raise NotFound.attempt(selector, rollout_id)


def columns_of(rows: Sequence[SpanRow]) -> dict[str, list[Any]]:
    """Return rows as columns.

    Many spans have the same name and kind. Therefore, the columns `name`, `kind` and `span_kind` contain indexes into
    the lists `names`, `kinds` and `span_kinds`.
    """
    names = {name: index for index, name in enumerate(dict.fromkeys(row.name for row in rows))}
    kinds = {kind: index for index, kind in enumerate(KINDS)}
    return {
        "position": [row.position for row in rows],
        "id": [row.span_id for row in rows],
        "parent": [row.parent_id for row in rows],
        "names": list(names),
        "name": [names[row.name] for row in rows],
        "kinds": list(kinds),
        "kind": [kinds[row.kind] for row in rows],
        "span_kinds": list(SPAN_KINDS),
        "span_kind": [SPAN_KINDS.index(row.span_kind) for row in rows],
        "start": [row.start for row in rows],
        "end": [row.end for row in rows],
        "status": [row.status for row in rows],
        "sequence": [row.sequence_id for row in rows],
        "reward": [row.reward for row in rows],
        "tokens_in": [row.tokens_in for row in rows],
        "tokens_out": [row.tokens_out for row in rows],
        "model": [row.model for row in rows],
    }


def _within_budget(rows: list[SpanRow]) -> list[SpanRow]:
    """Return as many of the first rows as fit into one response, at least one."""
    left = _MOST_BYTES
    for index, row in enumerate(rows):
        left -= _BYTES_OF_ROW + sum(map(_bytes_of, (row.span_id, row.parent_id, row.name, row.model)))
        if left < 0 and index:
            return rows[:index]
    return rows


def _bytes_of(text: str | None) -> int:
    # An escaped character takes at most six bytes.
    return 0 if text is None else len(text) if text.isascii() and text.isprintable() else 6 * len(text)


def _events(events: Sequence[Event], *, shows_all: bool) -> list[dict[str, Any]]:
    """Return events for display.

    A span may have many events, so the values of events are truncated more than the values of the span.
    """
    return [
        {
            "name": event.name,
            "timestamp": event.timestamp,
            "attributes": fields_of(event.attributes, shows_all=shows_all, longest=1_000, most=20),
            "further": _further(event, {"name", "timestamp", "attributes"}, shows_all=shows_all),
        }
        for event in (events if shows_all else events[:_MOST_EVENTS])
    ]


def _link(link: Link, *, shows_all: bool) -> dict[str, Any]:
    ids = {"trace_id", "span_id"}
    return {
        **link.context.model_dump(include=ids),
        "further": _further(link, set(), {"context": ids}, shows_all=shows_all),
    }


def _further(
    part: BaseModel, excluded: set[str], parts: Mapping[str, set[str]] = MappingProxyType({}), *, shows_all: bool
) -> list[SpanField]:
    """Return the fields of a span, or of a part of a span, that have a value and are not shown elsewhere on the page.

    Args:
        part: the span or the part.
        excluded: the names of the fields that are shown elsewhere.
        parts: for each field that is an object, the names of the object's fields that are shown elsewhere.
        shows_all: whether to return the full values, which are truncated otherwise.
    """
    left = part.model_dump(exclude={**dict.fromkeys(excluded, True), **parts})
    for name in parts:
        left[name] = {field: value for field, value in left[name].items() if value}
    return fields_of({name: value for name, value in left.items() if value not in (None, "", {})}, shows_all=shows_all)


def _is_cut(*groups: Sequence[SpanField]) -> bool:
    return any(field.is_cut for group in groups for field in group)
