"""The list of rollouts, and previews of their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, get_args

import orjson

from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest
from store.dashboard.views.ranges import RANGE_PARAMETERS, given_ranges, ranges_of
from store.db.queries.failures import FAILED
from store.db.queries.input_starts import input_starts
from store.db.queries.rollout_list import SORTS, RolloutListQuery, RolloutRow, rollout_page
from store.errors import Invalid
from store.models import RolloutMode, RolloutStatus

pages = Pages()

_PREVIEW_CHARACTERS: Final = 120
_MOST_PREVIEWS: Final = 100
_FILTERS: Final = (
    ("label", "Label"),
    ("group", "Group"),
    ("step", "Step"),
    ("resources", "Resources"),
    ("worker", "Worker"),
    ("error", "Error type"),
)
"""The parameters of the text fields in the filter form, and their labels."""
_NARROWING: Final = ("q", "status", "mode", "attempt", "id", *(name for name, _ in _FILTERS), *RANGE_PARAMETERS)
"""The parameters that exclude some rollouts from the list."""
_PLACE: Final = frozenset({"upto", "after", "before", "offset"})
"""The parameters that select one page of the list. The other parameters select or sort the rollouts of the list."""


@pages.get("/ui/rollouts")
async def rollouts(request: PageRequest) -> PageContent:
    """Show rollouts, newest first by default. The query parameters are filters."""
    query = _query(request)
    page = await request.store.core.look(partial(rollout_page, query=query), snapshot=True)
    if query.before is not None and not page.has_more:
        # If paging back reaches the start of the list, a full first page is shown instead of the few remaining rows.
        query = replace(query, before=None)
        page = await request.store.core.look(partial(rollout_page, query=query), snapshot=True)
    rows = list(page.rows) if query.before is None else list(reversed(page.rows))
    statuses = query.statuses or list(page.by_status)
    version = query.reward_version
    values = {
        "rollouts": rows,
        "total": sum(page.by_status.get(status, 0) for status in statuses),
        "by_status": {name: page.by_status.get(name, 0) for name in get_args(RolloutStatus)},
        "labels": page.labels,
        "reward_version": version and str(version),
        "newer": page.newer,
        "limit": query.limit,
        "offset": query.offset,
    }
    # Forms also send empty fields, which are removed here.
    plain = replace(request, params={name: request.several(name) for name in request.params if name not in _PLACE})
    hidden = {
        "query": query,
        "modes": get_args(RolloutMode),
        "attempt_statuses": FAILED,
        "filters": [*((name, label, request.one(name)) for name, label in _FILTERS), *given_ranges(request)],
        "is_filtered": any(map(request.several, _NARROWING)),
        "reasons": {row.rollout_id: _reason(row) for row in rows},
        "plain": plain,
        "beside": _beside(plain, query, rows, has_more=page.has_more),
    }
    return PageContent("rollout_list.html", values, "Rollouts", hidden=hidden)


def _query(request: PageRequest) -> RolloutListQuery:
    attempt_status = request.one("attempt") or None
    if attempt_status is not None and attempt_status not in FAILED:
        raise Invalid("attempt", f"must be one of {', '.join(FAILED)}")
    return RolloutListQuery(
        statuses=request.several_among("status", get_args(RolloutStatus)),
        modes=request.several_among("mode", get_args(RolloutMode)),
        ids=request.several("id"),
        group_id=request.one("group") or None,
        step=request.maybe_whole("step", least=-(2**63), most=2**63 - 1),
        resources_id=request.one("resources") or None,
        worker_id=request.one("worker") or None,
        attempt_status=attempt_status,
        error_type=request.one("error") or None,
        label=request.one("label") or None,
        reward_version=request.reward_version(),
        ranges=ranges_of(request),
        id_contains=request.one("q") or None,
        sort=request.among("sort", list(SORTS), "started"),
        is_descending=request.among("desc", ("0", "1"), "1") == "1",
        limit=request.rows,
        offset=request.whole("offset", 0),
        after=request.maybe_whole("after"),
        before=request.maybe_whole("before"),
        upto=request.maybe_whole("upto"),
    )


@dataclass(frozen=True, slots=True)
class Beside:
    """The links from one page of the list to other pages."""

    first: str | None
    """The first page; None on the first page itself."""
    near: str | None
    """The page before this page; None on the first page."""
    far: str | None
    """The page after this page; None on the last page."""
    again: str | None
    """The first page, without rollouts that are added later. None on other pages, and if the newest are not first."""


def _beside(plain: PageRequest, query: RolloutListQuery, rows: Sequence[RolloutRow], *, has_more: bool) -> Beside:
    is_back = query.before is not None
    is_first = not query.offset and query.after is None and not is_back
    first = None if is_first else plain.here()
    if not query.is_keyed:
        previous = plain.here(offset=max(query.offset - query.limit, 0) or None)
        following = plain.here(offset=query.offset + query.limit)
        return Beside(first, first and previous, following if has_more else None, None)
    if not rows:
        return Beside(first, None, None, None)
    previous, following = plain.here(before=rows[0].first_position), plain.here(after=rows[-1].first_position)
    newest = query.upto or rows[0].first_position
    again = plain.here(upto=newest) if is_first and query.is_descending else None
    return Beside(first, first and previous, following if is_back or has_more else None, again)


def _reason(row: RolloutRow) -> str | None:
    """Return in one word why a rollout failed or is retried; None for other rollouts, or if the reason is unknown."""
    if row.status not in {"failed", "requeuing"}:
        return None
    error: dict[str, Any] = orjson.loads(row.error) if row.error else {}
    return error.get("type") or (row.attempt_status if row.attempt_status in {"timeout", "unresponsive"} else None)


@pages.get("/ui/previews")
async def previews(request: PageRequest) -> PageContent:
    """Show the beginnings of the inputs of up to 100 rollouts. Pages with lists load these previews after rendering."""
    rollout_ids = list(dict.fromkeys(request.several("id")))[:_MOST_PREVIEWS]
    inputs: dict[str, str] = {}
    if rollout_ids:
        inputs = await request.store.core.look(
            partial(input_starts, rollout_ids=rollout_ids, characters=_PREVIEW_CHARACTERS)
        )
    return PageContent("previews.html", {"previews": inputs}, "Inputs")
