"""What failed: attempts by their kinds of error and what they said."""

from __future__ import annotations

import asyncio
from typing import Final

from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest
from store.dashboard.views import failed_attempts as failing
from store.db.dialect import Dialect, ReadSession
from store.db.reports import failure_rows
from store.db.reports.rollout_rows import NO_ERROR

pages = Pages()

MOST: Final = 10_000
"""How many of the newest failed attempts are looked at."""
_SAYINGS: Final = 10


@pages.get("/ui/failures")
async def failures(request: PageRequest) -> PageContent:
    """Show the failed attempts by kind; of one `type` alone, with all that it said."""
    wanted, status = request.one("type"), request.one("status")
    text = request.one("q")

    async def look(dialect: Dialect, session: ReadSession) -> tuple[list[failure_rows.FailedAttempt], int]:
        attempts = await failure_rows.failed_attempts(dialect, session, limit=MOST)
        total = len(attempts) if len(attempts) < MOST else await failure_rows.count_failed(dialect, session)
        return attempts, total

    attempts, total = await request.store.core.look(look, snapshot=True)
    most_sayings = request.rows if wanted else _SAYINGS

    def put_together() -> tuple[int, list[failing.Kind]]:
        matching = [
            failure
            for failure in map(failing.read, attempts)
            if (not wanted or failure.type == wanted)
            and (not status or failure.status == status)
            and (not text or text in failure.message or text in (failure.type or ""))
        ]
        return len(matching), failing.kinds(matching, most_sayings)

    # Of ten thousand messages it takes a while, and the server has others to answer.
    matching, kinds = await asyncio.to_thread(put_together)
    values = {"kinds": kinds, "matching": matching, "looked_at": len(attempts), "total": total}
    hidden = {
        "no_error": NO_ERROR,
        "wanted": {"type": wanted, "status": status, "q": text},
        "statuses": failure_rows.FAILED,
    }
    return PageContent("failures.html", values, "Failures", hidden=hidden)
