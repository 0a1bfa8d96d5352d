"""The failures page: failed attempts by error type and message, with the spans and the steps in which they failed."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from store.dashboard.charts.sparkline import sparkline
from store.dashboard.page import PageContent, Pages
from store.dashboard.pages.saved_views import views_of
from store.dashboard.request import PageRequest
from store.dashboard.views import failed_attempts as failing
from store.dashboard.views.figure_cache import cache_of
from store.db.queries.failures import FAILED

pages = Pages()

_MESSAGES: Final = 10


@pages.get("/ui/failures")
async def failures(request: PageRequest) -> PageContent:
    """Show the failed attempts by status and error type, or all messages of the error type in the parameter `type`.

    Further filters are `status`, `q` (a part of the message or of the type), `span` (the name of the span that failed),
    `worker`, and the range of training steps from `step_min` to `step_max`.
    """
    error_type, status, span = request.one("type"), request.one("status"), request.one("span")
    worker, text = request.one("worker"), request.one("q")
    first_step = request.maybe_whole("step_min", least=-(2**63), most=2**63 - 1)
    last_step = request.maybe_whole("step_max", least=-(2**63), most=2**63 - 1)

    cache = cache_of(request.store.core)

    work = partial(failing.newest_failures, cache=cache)
    attempts, total = await request.store.core.look(work, snapshot=True)
    most_messages = request.rows if error_type else _MESSAGES

    def grouped() -> tuple[int, list[failing.Kind]]:
        matching = [
            failure
            for failure in attempts
            if (not error_type or failure.type == error_type)
            and (not status or failure.status == status)
            and (not span or failure.span_name == span)
            and (not worker or failure.worker_id == worker)
            and (first_step is None or (failure.step is not None and failure.step >= first_step))
            and (last_step is None or (failure.step is not None and failure.step <= last_step))
            and (not text or text in failure.message or text in (failure.type or ""))
        ]
        return len(matching), failing.kinds(matching, most_messages)

    # Grouping ten thousand messages takes time, so it runs in a thread and does not block other requests.
    matching, kinds = await asyncio.to_thread(grouped)
    values = {"kinds": kinds, "matching": matching, "looked_at": len(attempts), "total": total}
    steps = [step for kind in kinds for step in kind.steps]

    def curve(row: failing.Kind | failing.FailureMessage) -> str:
        return sparkline(row.steps, min(steps), max(steps)) if steps else ""

    hidden = {
        "saved": await views_of(request, "failures"),
        "filters": {
            name: request.one(name) for name in ("type", "status", "q", "span", "worker", "step_min", "step_max")
        },
        "statuses": FAILED,
        "curve": curve,
    }
    return PageContent("failures.html", values, "Failures", hidden=hidden)
