"""Spans of a SQL store as rows, whose JSON is cut out of the stored payload.

Nearly every body has the form that `store.sql.commands.spans` writes. For these bodies, no model is built and no JSON
is parsed. A body of another form is parsed to a model, and the model becomes a row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from store.db.dialect import NamedRow
from store.db.queries import filters, pages
from store.db.queries.bodies import raw_json
from store.journal import as_at as timeline
from store.journal.state_view import StateView
from store.models.flat_spans import EMPTY_LIST, FlatSpan, TakeSpans, flat_span
from store.models.queries import SpanQuery
from store.sql.core import SQLCore
from store.sql.mapping.spans import span_of_page

_AT_ONCE: Final = 1024
_SPAN_BODY: Final = b'{"attributes":{'
_BODY_START: Final = len(b'{"attributes":')
_AFTER_ATTRIBUTES: Final = b'},"events":[],"links":[],"resource":'
_BARE_RESOURCE: Final = b'{"attributes":{},"schema_url":""}'
_RESOURCE: Final = re.compile(
    rb'\{"attributes":\{(?:[^{}"]++|"[^"\\{}]*+")*+\},"schema_url":"[^"\\{}]*+"\}(?=[,}])'
).match
_STATUS: Final = b'"status":'


async def take_spans(core: SQLCore, query: SpanQuery, take: TakeSpans) -> int:
    """Pass the spans that a query matches to a function as rows, some at a time; return the number of all matches."""
    filter_query, several = filters.of(query), query.several
    rollout_id = query.rollout_id if several is None else several

    def take_rows(rows: Sequence[NamedRow]) -> None:
        if rows:
            take([_flat_span(row) for row in rows])

    async def read(view: StateView) -> int:
        if view.until is None:
            return await pages.take_spans(
                view.session, rollout_id, query.attempt_id, filter_query, take_rows, batch=_AT_ONCE
            )
        if query.attempt_id == "latest":
            page = await timeline.spans(
                view.session, rollout_id, query.attempt_id, filter_query, view.until, lambda row: row
            )
            take_rows(page.items)
            return page.total
        return await pages.take_spans(
            view.session, rollout_id, query.attempt_id, filter_query, take_rows, until=view.until, batch=_AT_ONCE
        )

    return await core.view(read, query.as_at, (query.rollout_id, query.at), snapshot=core.dialect.batches_need_snapshot)


def _flat_span(row: NamedRow) -> FlatSpan:
    codec, stored = row.codec, row.body
    body = b"" if codec is None or stored is None else raw_json(codec, stored)
    # Values of attributes are no objects, and JSON escapes quotes inside texts. So the attributes end with this text.
    last = body.find(_AFTER_ATTRIBUTES)
    begin = last + len(_AFTER_ATTRIBUTES)
    if body.startswith(_BARE_RESOURCE, begin):
        rest = begin + len(_BARE_RESOURCE)
    elif (resource := _RESOURCE(body, begin)) is not None:
        rest = resource.end()
    else:
        rest = 0
    # The body contains a status only if the row does not contain all of it, for example the end of a long message.
    if last < 0 or not rest or not body.startswith(_SPAN_BODY) or body.find(_STATUS, rest) >= 0:
        return flat_span(span_of_page(row))
    return FlatSpan(
        row.rollout_id,
        row.attempt_id,
        row.sequence_id,
        row.trace_id,
        row.span_id,
        row.parent_id,
        row.name,
        row.status_code,
        row.status_message,
        row.start_time,
        row.end_time,
        body[_BODY_START : last + 1],
        EMPTY_LIST,
        EMPTY_LIST,
        body[begin:rest],
        b"{" + body[rest + 1 :] if rest + 1 < len(body) else None,
    )
