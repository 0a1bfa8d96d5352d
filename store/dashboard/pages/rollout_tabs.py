"""Three tabs of a rollout (events, training data and raw data), and the actions on a rollout."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from store.dashboard.page import Done, PageContent, Pages
from store.dashboard.pages.rollout_frame import MOST_ATTEMPTS, Looked, look
from store.dashboard.request import PageRequest
from store.dashboard.views import json_tree
from store.dashboard.views.formats import time_text
from store.dashboard.views.training import ADAPTERS, training_view
from store.db.dialect import ReadSession
from store.db.queries import rollout_history
from store.domain.rollout import TERMINAL
from store.errors import Conflict, NotFound
from store.models import HistoryEvent, Rollout
from store.narration.events import Narrator

pages = Pages()

ADAPTED: Final = 2_000
"""The maximum number of spans of an attempt that the training view reads."""
_STARTED: Final = "attempt.started"
RAW_SPANS: Final = 50
"""The number of spans per page of the raw view."""


@pages.get("/ui/rollouts/{rollout_id}/events")
async def events(request: PageRequest) -> PageContent:
    """Show the events of a rollout. The parameters are `type`, `after` (the number of an event) and `limit`."""
    looked = await look(request)
    type_filter, after, limit = request.several("type"), request.whole("after", 0), request.rows
    rows, types, starts = await request.store.core.look(
        partial(_events, looked=looked, type_filter=type_filter, after=after, limit=limit + 1), snapshot=True
    )
    # The sentences name attempts by their numbers, which the starts of the attempts contain.
    narrator = Narrator(time_text)
    for start in starts:
        narrator.observe(HistoryEvent(**start))
    numbers = {row["position"]: row["number"] for row in (*starts, *rows)}
    described = [
        {**row, "sentence": narrator.describe(HistoryEvent(**row)), "cause_number": numbers.get(row["cause"])}
        for row in rows[:limit]
    ]
    values = {"events": described, "after": after, "more": len(rows) > limit, "types": types}
    return looked.page("events", "rollout_events.html", values, type_filter=type_filter)


async def _events(
    session: ReadSession, looked: Looked, type_filter: list[str], after: int, limit: int
) -> tuple[list[dict[str, Any]], list[tuple[str, int]], list[dict[str, Any]]]:
    rollout_id, until = looked.rollout_id, looked.position
    types = await rollout_history.event_types(session, rollout_id, until)
    rows = await rollout_history.events(session, rollout_id, types=type_filter, after=after, until=until, limit=limit)
    starts = await rollout_history.events(
        session, rollout_id, types=[_STARTED], until=until, limit=MOST_ATTEMPTS, newest=True
    )
    return rows, types, starts


@pages.get("/ui/rollouts/{rollout_id}/training")
async def training(request: PageRequest) -> PageContent:
    """Show the training data that an adapter extracts from an attempt, with the rows and tokens that training uses.

    The parameters are `adapter`: tracer or proxy, `rows`: calls or conversations, and `row`: the number of the row
    whose tokens are all shown.
    """
    looked = await look(request)
    adapter = request.among("adapter", list(ADAPTERS), "tracer")
    merge_turns = request.among("rows", ("calls", "conversations"), "calls") == "conversations"
    row = request.maybe_whole("row", least=1)
    page = await looked.spans(limit=ADAPTED)
    # Converting two thousand spans takes time, so it runs in a thread and does not block other requests.
    view = await asyncio.to_thread(training_view, page.items, adapter, merge_turns=merge_turns, row=row)
    values = {"view": view, "read": len(page.items), "total": page.total}
    hidden = {"adapters": list(ADAPTERS), "merge_turns": merge_turns, "row": row}
    return looked.page("training", "rollout_training.html", values, **hidden)


@pages.get("/ui/rollouts/{rollout_id}/raw")
async def raw(request: PageRequest) -> PageContent:
    """Show the stored data of a rollout, of one attempt, and of the spans of this attempt.

    The parameter `span` selects one span, and `offset` selects a page of the list of spans.
    """
    looked = await look(request)
    offset, span_id = request.whole("offset", 0), request.one("span")
    chosen = None
    if span_id:
        matching = await looked.spans(limit=1, span_id=span_id)
        if not matching.items:
            raise NotFound("span", span_id, f"this attempt has no span {span_id[:80]!r} at this moment")
        chosen = matching.items[0].model_dump()
    page = await looked.spans(limit=RAW_SPANS, offset=offset)
    index = [
        {
            "span_id": span.span_id,
            "sequence_id": span.sequence_id,
            "name": span.name,
            "status_code": span.status.status_code,
            "attributes": len(span.attributes),
        }
        for span in page.items
    ]
    values = {"span": chosen, "index": index, "spans": {"offset": offset, "limit": RAW_SPANS, "total": page.total}}
    hidden = {
        "trees": [] if chosen else [("Rollout", json_tree.tree(looked.rollout.model_dump())), *_attempts(looked)],
        "span_tree": json_tree.tree(chosen, budget=4 * json_tree.BUDGET, longest=json_tree.BUDGET) if chosen else [],
        "chosen": span_id,
    }
    return looked.page("raw", "rollout_raw.html", values, **hidden)


def _attempts(looked: Looked) -> list[tuple[str, list[json_tree.Node]]]:
    if looked.attempt is None:
        return []
    fields = {name: getattr(looked.attempt, name) for name in looked.attempt.__slots__}
    return [(f"Attempt {looked.attempt.sequence_id}", json_tree.tree(fields))]


@pages.post("/ui/rollouts/{rollout_id}/cancel")
async def cancel(request: PageRequest) -> Done:
    """Cancel a rollout that has not ended."""
    rollout = await _rollout(request)
    if rollout.status in TERMINAL:
        raise Conflict(f"rollout {rollout.rollout_id} is already {rollout.status}; it cannot be cancelled")
    await request.store.update_rollout(rollout.rollout_id, status="cancelled")
    return Done(request.url("rollouts", rollout.rollout_id), "The rollout is cancelled.")


@pages.post("/ui/rollouts/{rollout_id}/retry")
async def retry(request: PageRequest) -> Done:
    """Put a rollout, which must have ended, into the queue again, as the last rollout."""
    rollout = await _rollout(request)
    if rollout.status not in TERMINAL:
        raise Conflict(f"rollout {rollout.rollout_id} is {rollout.status}; only an ended rollout can be retried")
    await request.store.update_rollout(rollout.rollout_id, status="requeuing")
    return Done(request.url("rollouts", rollout.rollout_id), "The rollout is in the queue again.")


async def _rollout(request: PageRequest) -> Rollout:
    rollout = await request.store.get_rollout_by_id(request.ids["rollout_id"])
    if rollout is None:
        raise NotFound.rollout(request.ids["rollout_id"])
    return rollout
