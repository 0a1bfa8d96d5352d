"""Searches of a SQL store: the index is brought closer to the end of the log, and then read."""

from __future__ import annotations

from typing import Final

from store.db.dialect import ReadSession
from store.db.queries import filters
from store.errors import Invalid, NotFound, Unavailable
from store.indexing.following import IndexLag
from store.indexing.reading import fresh_lag, with_index
from store.indexing.search.index import SearchIndex
from store.indexing.search.query_language import parse_query
from store.indexing.search.searching import MOST_RESULTS, SearchRequest, cursor_of, restriction_of, search
from store.models.queries import RolloutQuery, SearchQuery
from store.models.search import SearchPage
from store.sql.core import SQLCore
from store.validation import arguments

_INDEX: Final = SearchIndex()


async def search_texts(core: SQLCore, query: SearchQuery) -> SearchPage:
    """Return a page of the rollouts with matching texts.

    Raises:
        Invalid: an argument is malformed.
        NotFound: the only rollout to search does not exist.
        Unavailable: the index is being made by another process.
    """
    return await run_search(core, _request(query))


async def run_search(core: SQLCore, request: SearchRequest) -> SearchPage:
    """Bring the index closer to the end of the log, and execute a search. The errors are those of `search_texts`."""
    core.check()
    if request.rollout_id is not None and not (await core.known_and_ended({request.rollout_id}))[0]:
        raise NotFound.rollout(request.rollout_id)
    await fresh_lag(core.dialect, core.read, _INDEX)

    async def read(session: ReadSession, lag: IndexLag) -> SearchPage:
        return await search(session, lag, request)

    page = await core.read(lambda session: with_index(session, _INDEX, read))
    if page is None:
        raise Unavailable("the index of texts was dropped during this search; search again")
    return page


def _request(query: SearchQuery) -> SearchRequest:
    if query.as_at is not None:
        raise Invalid("as_at", "the index contains only the present texts; leave it out")
    limit = query.limit
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MOST_RESULTS:  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not checked
        raise Invalid("limit", f"{limit!r} is not an integer from 1 to {MOST_RESULTS}")
    regex = None if query.regex is None else arguments.text(query.regex, "regex")
    rollout_id = None if query.rollout_id is None else arguments.text(query.rollout_id, "rollout_id")
    after = None if query.after is None else arguments.text(query.after, "after")
    names = (*RolloutQuery.conditions(), "filter_logic", "reward_version")
    return SearchRequest(
        terms=parse_query(arguments.text(query.query, "query"), regex),
        restriction=restriction_of(filters.of(RolloutQuery.of(**{name: getattr(query, name) for name in names}))),
        limit=limit if rollout_id is None else 1,
        after=cursor_of(after),
        rollout_id=rollout_id,
    )
