"""The first tab of a rollout: the transcript of one attempt, with messages, tool calls and rewards."""

from __future__ import annotations

import asyncio
from typing import Final

from store.dashboard.page import PageContent, Pages
from store.dashboard.pages.rollout_frame import look
from store.dashboard.request import PageRequest
from store.dashboard.views.formats import pretty
from store.dashboard.views.transcript import Text, transcript

pages = Pages()

SPANS: Final = 200
"""The number of spans per page of the transcript."""
_TASK: Final = 4_000


@pages.get("/ui/rollouts/{rollout_id}/transcript")
@pages.get("/ui/rollouts/{rollout_id}")
async def rollout(request: PageRequest) -> PageContent:
    """Show the transcript of an attempt of a rollout.

    The parameters are `at`, `attempt`, `offset`, and `full`: the id of a span whose texts are shown in full.
    """
    looked = await look(request)
    offset, full = request.whole("offset", 0), request.several("full")
    page = await looked.spans(limit=SPANS, offset=offset, sort_by="sequence_id")
    looked = looked.with_rewards_of(page.items)
    content = looked.rollout.input
    task = content if isinstance(content, str) else pretty(content)
    values = {
        "task": Text(task[:_TASK], len(task)),
        # Preparing long texts takes time, so it runs in a thread and does not block other requests.
        "entries": await asyncio.to_thread(transcript, page.items, full=full),
        "spans": {"offset": offset, "limit": SPANS, "total": page.total},
    }
    return looked.page("transcript", "rollout_transcript.html", values, is_run=looked.row["run_version"] is not None)
