"""The list of rollouts, and previews of their inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, get_args

import orjson

from store.comparing.selections import text_of
from store.dashboard.page import PageContent, Pages
from store.dashboard.pages.saved_views import views_of
from store.dashboard.request import PageRequest
from store.dashboard.views.figure_cache import FigureCache, cache_of
from store.dashboard.views.rollout_columns import FIELDS, METADATA, choose_columns
from store.dashboard.views.rollout_filters import (
    NARROWING,
    RolloutFilters,
    chips,
    command_of,
    form_fields,
    range_fields,
    read_filters,
)
from store.db.dialect import ReadSession
from store.db.queries.input_starts import input_starts, input_titles
from store.db.queries.list_details import dimensions_of, metadata_of
from store.db.queries.rollout_list import (
    RolloutListQuery,
    RolloutPage,
    RolloutRow,
    StatusFigures,
    rollout_page,
    status_figures,
)
from store.models import RolloutStatus

pages = Pages()

_PREVIEW_CHARACTERS: Final = 120
_MOST_PREVIEWS: Final = 100
_PLACE: Final = frozenset({"upto", "after", "before", "offset"})
"""The parameters that select one page of the list. The other parameters select or sort the rollouts of the list."""
_CARRIED: Final = ("status", "id", "q", "task", "sort", "desc", "limit", "unrewarded", "col")
"""The parameters without a field in the form, which the form sends again."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of the rollouts that match all filters."""

    rollouts: int
    ended: int
    rewarded: int
    """The number of ended rollouts with a reward."""
    mean_reward: float | None
    unrewarded: str
    """How ended rollouts without a reward count in the mean, such as `failed:0`."""

    @classmethod
    def of(cls, filters: RolloutFilters, by_status: Mapping[str, StatusFigures]) -> Summary:
        """Return the figures of the statuses that the filters select."""
        figures = [by_status[status] for status in filters.query.statuses or by_status if status in by_status]
        counted = sum(status.counted for status in figures)
        total = sum(status.counted * status.mean_counted for status in figures if status.mean_counted is not None)
        return cls(
            rollouts=sum(status.total for status in figures),
            ended=sum(status.ended for status in figures),
            rewarded=sum(status.rewarded_ended for status in figures),
            mean_reward=total / counted if counted else None,
            unrewarded=str(filters.missing),
        )


@dataclass(frozen=True, slots=True)
class ListRead:
    """A page of the list with the values that its columns show."""

    query: RolloutListQuery
    page: RolloutPage
    rows: list[RolloutRow]
    titles: dict[str, str]
    """The beginnings of the inputs, by rollout id."""
    rewards: dict[str, dict[str, float]]
    metadata: dict[str, dict[str, Any]]

    @classmethod
    async def read(
        cls, session: ReadSession, filters: RolloutFilters, cache: FigureCache, *, has_metadata: bool
    ) -> ListRead:
        """Read the page of the list that the filters select."""
        query = filters.query
        # The figures do not depend on the page and the order of the list.
        selection = replace(query, statuses=(), sort="", is_descending=True, limit=0, offset=0, after=None, before=None)
        figures = partial(status_figures, query=query, missing=filters.missing)
        by_status = await cache.read(session, ("list", repr(selection), filters.missing), figures)
        page = await rollout_page(session, query, filters.missing, by_status)
        if query.before is not None and not page.has_more:
            # Paging back has reached the start of the list: a full first page replaces the few remaining rows.
            query = replace(query, before=None)
            page = await rollout_page(session, query, filters.missing, by_status)
        rows = list(page.rows) if query.before is None else list(reversed(page.rows))
        ids = [row.rollout_id for row in rows]
        return cls(
            query,
            page,
            rows,
            await input_titles(session, ids, _PREVIEW_CHARACTERS),
            await dimensions_of(session, rows, query.reward_version),
            await metadata_of(session, ids, only_small=not has_metadata),
        )


@pages.get("/ui/rollouts")
async def rollouts(request: PageRequest) -> PageContent:
    """Show rollouts, newest first by default. The query parameters are filters."""
    filters = read_filters(request)
    names = request.several("col")
    is_shown = any(name.startswith(METADATA) for name in names)
    # Forms also send empty fields, which are removed here.
    plain = replace(request, params={name: request.several(name) for name in request.params if name not in _PLACE})
    read = ListRead(filters.query, RolloutPage([], {}, 0, has_more=False, labels={}), [], {}, {}, {})
    if not filters.errors:
        read = await request.store.core.look(
            partial(ListRead.read, filters=filters, cache=cache_of(request.store.core), has_metadata=is_shown),
            snapshot=True,
        )
    choice = choose_columns(names, read.rewards, read.metadata)
    query, page = read.query, read.page
    version = query.reward_version
    keys = {name.removeprefix(METADATA) for name in names}
    summary = Summary.of(filters, page.by_status)
    values = {
        "rollouts": read.rows,
        "total": summary.rollouts,
        "by_status": {
            name: page.by_status[name].total if name in page.by_status else 0 for name in get_args(RolloutStatus)
        },
        "labels": page.labels,
        "reward_version": version and str(version),
        "newer": page.newer,
        "limit": query.limit,
        "offset": query.offset,
        "summary": summary,
        "titles": read.titles,
        "dimensions": read.rewards,
        "metadata": {
            rollout_id: {key: value for key, value in of_rollout.items() if key in keys}
            for rollout_id, of_rollout in read.metadata.items()
            if is_shown
        },
    }
    hidden = {
        "query": query,
        "missing": filters.missing,
        "errors": filters.errors,
        "fields": form_fields(request, filters.errors),
        "range_fields": range_fields(request, filters.errors),
        "chips": list(chips(plain)),
        "saved": await views_of(request, "rollouts"),
        "command": command_of(query),
        "selected": text_of(query),
        "carried": [(name, value) for name in _CARRIED for value in plain.several(name)],
        "params": [(name, value) for name in plain.params for value in plain.several(name)],
        "choice": choice,
        "all_columns": FIELDS,
        "is_filtered": any(map(request.several, NARROWING)),
        "plain": plain,
        "metadata_values": read.metadata,
        "reasons": {row.rollout_id: _reason(row) for row in read.rows},
        "longest_bar": max([1.0, *(row.last_reward for row in read.rows if row.last_reward is not None)]),
        "beside": _beside(plain, query, read.rows, has_more=page.has_more),
    }
    return PageContent("rollout_list.html", values, "Rollouts", 422 if filters.errors else 200, hidden)


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
