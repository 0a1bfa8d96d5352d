"""The failures page: failed attempts by error type and message."""

from __future__ import annotations

import asyncio
from typing import Final

from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest
from store.dashboard.views import failed_attempts as failing
from store.db.dialect import ReadSession
from store.db.queries.failures import FAILED, FailedAttempt, count_failed, failed_attempts
from store.db.queries.rollout_list import NO_ERROR

pages = Pages()

MOST: Final = 10_000
"""The maximum number of failed attempts that the page reads. If there are more, the page reads the newest."""
_MESSAGES: Final = 10


@pages.get("/ui/failures")
async def failures(request: PageRequest) -> PageContent:
    """Show the failed attempts by status and error type, or all messages of the error type in the parameter `type`."""
    error_type, status = request.one("type"), request.one("status")
    text = request.one("q")

    async def look(session: ReadSession) -> tuple[list[FailedAttempt], int]:
        attempts = await failed_attempts(session, limit=MOST)
        total = len(attempts) if len(attempts) < MOST else await count_failed(session)
        return attempts, total

    attempts, total = await request.store.core.look(look, snapshot=True)
    most_messages = request.rows if error_type else _MESSAGES

    def grouped() -> tuple[int, list[failing.Kind]]:
        matching = [
            failure
            for failure in map(failing.read, attempts)
            if (not error_type or failure.type == error_type)
            and (not status or failure.status == status)
            and (not text or text in failure.message or text in (failure.type or ""))
        ]
        return len(matching), failing.kinds(matching, most_messages)

    # Grouping ten thousand messages takes time, so it runs in a thread and does not block other requests.
    matching, kinds = await asyncio.to_thread(grouped)
    values = {"kinds": kinds, "matching": matching, "looked_at": len(attempts), "total": total}
    hidden = {
        "no_error": NO_ERROR,
        "filters": {"type": error_type, "status": status, "q": text},
        "statuses": FAILED,
    }
    return PageContent("failures.html", values, "Failures", hidden=hidden)
