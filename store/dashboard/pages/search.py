"""Full-text search: over all rollouts, and inside one rollout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final, get_args

from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest
from store.dashboard.views.rollout_filters import NARROWING, form_fields, range_fields, read_filters
from store.db.dialect import ReadSession
from store.db.queries.input_starts import input_titles
from store.db.queries.rollout_list import RolloutListQuery, matching_rollouts, rollout_page
from store.errors import Invalid
from store.indexing.search.query_language import parse_query
from store.indexing.search.searching import SearchRequest, cursor_of
from store.models import RolloutStatus
from store.models.missing_rewards import MissingReward
from store.models.search import SearchHit, SearchPage
from store.sql.searches import run_search

pages = Pages()

_PREVIEW_CHARACTERS: Final = 120
_RESULTS: Final = 20
_EMPTY: Final = SearchPage(results=[], next=None, events_behind=0)


@pages.get("/ui/search")
async def search(request: PageRequest) -> PageContent:
    """Show the rollouts whose texts match the query `q`. The parameters of the list of rollouts are filters."""
    filters = read_filters(request)
    problem: Invalid | None = None
    page = _EMPTY
    if (request.one("q") or request.one("regex")) and not filters.errors:
        try:
            page = await run_search(request.store.core, _search(request, replace(filters.query, id_contains=None)))
        except Invalid as error:
            if request.is_twin or error.field not in {"query", "regex"}:
                raise
            problem = error
    ids = [result.rollout_id for result in page.results]
    rows, previews = await _rollouts(request, filters.missing, ids) if ids else ({}, {})
    values = {
        "query": request.one("q"),
        "regex": request.one("regex"),
        "results": [
            {**result.model_dump(), "input": previews.get(result.rollout_id), "rollout": rows.get(result.rollout_id)}
            for result in page.results
        ],
        "next": page.next,
        "events_behind": page.events_behind,
        "is_cut_off": page.is_cut_off,
        "texts_searched": page.texts_searched,
    }
    hidden = {
        "problem": problem,
        "segments": segments,
        "hits": {result.rollout_id: result.hits for result in page.results},
        "errors": filters.errors,
        "fields": form_fields(request, filters.errors),
        "range_fields": range_fields(request, filters.errors),
        "statuses": get_args(RolloutStatus),
        "status": request.one("status"),
        "is_filtered": any(request.several(name) for name in NARROWING if name != "q"),
    }
    return PageContent("search.html", values, "Search", status=422 if problem or filters.errors else 200, hidden=hidden)


@pages.get("/ui/rollouts/{rollout_id}/search")
async def search_rollout(request: PageRequest) -> PageContent:
    """Show the texts of one rollout that match the query `q`, in the order of the log, up to 200."""
    rollout_id = request.ids["rollout_id"]
    page = _EMPTY
    if request.one("q") or request.one("regex"):
        page = await run_search(request.store.core, _search(request, RolloutListQuery(), rollout_id))
    hits = [hit for result in page.results for hit in result.hits]
    values = {
        "rollout_id": rollout_id,
        "query": request.one("q"),
        "regex": request.one("regex"),
        "hits": [hit.model_dump() for hit in hits],
        "events_behind": page.events_behind,
        "is_cut_off": page.is_cut_off,
    }
    hidden = {"segments": segments, "found": hits}
    return PageContent("search_rollout.html", values, f"Search in {rollout_id}", hidden=hidden)


def _search(request: PageRequest, query: RolloutListQuery, rollout_id: str | None = None) -> SearchRequest:
    cursor = request.one("cursor")
    return SearchRequest(
        parse_query(request.one("q"), request.one("regex") or None),
        partial(matching_rollouts, query=query),
        limit=1 if rollout_id else request.whole("limit", _RESULTS, least=1, most=100),
        after=cursor_of(cursor) if cursor else None,
        rollout_id=rollout_id,
    )


async def _rollouts(
    request: PageRequest, missing: MissingReward, ids: list[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the rows of the list of rollouts and the titles of their tasks, by rollout id."""

    async def read(session: ReadSession) -> tuple[dict[str, Any], dict[str, str]]:
        page = await rollout_page(session, RolloutListQuery(ids=ids, limit=len(ids)), missing)
        previews = await input_titles(session, ids, _PREVIEW_CHARACTERS)
        return {row.rollout_id: row for row in page.rows}, previews

    return await request.store.core.read(read, snapshot=True)


def segments(hit: SearchHit) -> Iterator[tuple[str, bool]]:
    """Yield the parts of an excerpt. The second value of a part says whether the part matches."""
    last = 0
    for start, end in hit.marks:
        if start > last:
            yield hit.text[last:start], False
        yield hit.text[start:end], True
        last = end
    if last < len(hit.text):
        yield hit.text[last:], False
