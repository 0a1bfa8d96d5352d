"""The audit page: the events of the log, and the verification that no event was changed."""

from __future__ import annotations

import shlex
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from store.dashboard.exclusive import Exclusive
from store.dashboard.page import File, PageContent, Pages
from store.dashboard.request import PageRequest
from store.dashboard.views.log_sentences import sentences
from store.db.data_blocks import json_of
from store.db.dialect import ReadSession
from store.db.queries import log_list
from store.db.queries.log_list import AttemptStart, EventListQuery, LogRow, LogRows
from store.domain.events import FACTS
from store.errors import Conflict
from store.verification import seal as seals

pages = Pages()

VERIFIED_AT_MOST: Final = 200_000
"""The maximum number of events that a page verifies, which takes about ten seconds.

The user must verify a larger log with the command line.
"""

_KINDS: Final = {"rollout": "rollouts", "worker": "workers", "resources": "resources"}
"""The paths of the pages about rollouts, workers and resources, by kind of stream."""

_ROLLOUT: Final = "rollout/"

_verifying_now = Exclusive("a verification")


@pages.get("/ui/audit")
async def audit(request: PageRequest) -> PageContent:
    """Show the events of the log, newest first. The parameters `stream`, `type` and `actor` are filters."""
    sought = EventListQuery(
        stream=request.one("stream") or None,
        type=request.one("type") or None,
        actor=request.one("actor") or None,
        before=request.maybe_whole("before", least=1),
        limit=request.rows,
    )
    # The summary is read before the list. If an event is recorded between the two reads, its position is greater than
    # the position in the summary, so the page notices the event later even if the list does not contain it.
    summary = await request.store.core.look(log_list.log_summary)
    page, starts = await request.store.core.look(partial(_events, query=sought), snapshot=True)
    described = sentences(page.events, starts)
    values = {
        "events": [_shown(request, row) | {"sentence": described.get(row.position)} for row in page.events],
        "next_before": page.next_before,
        "looked_back_to": page.looked_back_to,
        "store_id": summary.store_id,
        "chain_head": summary.chain_head,
        "commit_id": summary.commit_id,
        "position": summary.position,
        "recorded_at": summary.recorded_at,
        "total": summary.events,
    }
    hidden = {"sought": sought, "types": sorted(FACTS), "copies": _copies(request, sought)}
    return PageContent("audit.html", values, "Audit", hidden=hidden)


async def _events(session: ReadSession, query: EventListQuery) -> tuple[LogRows, list[AttemptStart]]:
    page = await log_list.log_rows(session, query)
    streams = dict.fromkeys(row.stream for row in page.events)
    rollout_ids = [stream.removeprefix(_ROLLOUT) for stream in streams if stream.startswith(_ROLLOUT)]
    return page, await log_list.attempt_starts(session, rollout_ids)


def _shown(request: PageRequest, row: LogRow) -> dict[str, Any]:
    is_whole = row.length <= log_list.SHOWN
    return {
        "position": row.position,
        "commit_id": row.commit_id,
        "stream": row.stream,
        "page": _page_of(request, row.stream),
        "version": row.version,
        "type": row.type,
        "at": row.at,
        "actor": row.actor,
        "cause": row.cause,
        "data": json_of(row.data) if is_whole else None,
        "data_begins": None if is_whole else row.data,
        "data_length": row.length,
    }


def _page_of(request: PageRequest, stream: str) -> str | None:
    kind, _, key = stream.partition("/")
    return request.url(_KINDS[kind], key) if key and kind in _KINDS else None


def _copies(request: PageRequest, sought: EventListQuery) -> list[tuple[str, str]]:
    tail = ["rollbook tail"]
    query = ""
    kind, _, key = (sought.stream or "").partition("/")
    if kind == "rollout" and key:
        tail.append(f"--rollout {shlex.quote(key)}")
        query = f"?rollout_id={quote(key, safe='')}"
    return [
        ("CLI", " ".join(tail)),
        ("curl", f"curl -sN '{{origin}}{request.base}/v1/agl/log{query}'"),
    ]


@pages.get("/ui/audit/verify", role="admin")
async def about_verifying(request: PageRequest) -> PageContent:
    """Show the checks of a verification, with a button that starts the verification."""
    return await _verifying(request, None)


@pages.post("/ui/audit/verify", role="admin")
async def verify(request: PageRequest) -> PageContent:
    """Compare the database with its log, and show the result.

    Raises:
        Conflict: the log is too large for a page, or another verification is running.
    """
    store = request.store
    summary = await store.core.look(log_list.log_summary)
    if summary.events > VERIFIED_AT_MOST:
        reason = f"the log has {summary.events:,} events, and a page verifies at most {VERIFIED_AT_MOST:,}"
        raise Conflict(reason, "run `rollbook verify` on the machine of the database")
    with _verifying_now.on(store):
        report = await store.log.verify()
    return await _verifying(request, report)


async def _verifying(request: PageRequest, report: Any) -> PageContent:
    summary = await request.store.core.look(log_list.log_summary)
    values = {"report": report, "events": summary.events, "most": VERIFIED_AT_MOST, "chain_head": summary.chain_head}
    return PageContent("audit_verify.html", values, "Verify the log")


@pages.get("/ui/audit/seal", role="admin")
async def seal(request: PageRequest) -> File:
    """Return a seal of the log as a file, as `rollbook seal` writes it.

    A seal contains the last position of the log and its hash. With the seal, a later verification finds out whether the
    log up to that position was changed.
    """
    store = request.store

    sealed = await store.core.look(lambda session: seals.head(session, store.store_id))
    name = f"rollbook-{sealed.store_id}-{sealed.position}.seal.json"
    return File(name, (sealed.model_dump_json(indent=2) + "\n").encode())
