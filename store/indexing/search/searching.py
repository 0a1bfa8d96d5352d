"""Searches: from a query to pages of rollouts with excerpts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, bindparam, select

from store.db.dialect import Dialect, NamedRow, ReadSession
from store.db.queries import filters, pages
from store.db.queries import indexing as log_queries
from store.db.queries.filters import FilterQuery
from store.db.tables import core as core_tables
from store.errors import Invalid
from store.indexing.following import IndexLag
from store.indexing.index import LARGEST_BODY, IndexedEvent
from store.indexing.search.documents import DocumentKind, documents_of
from store.indexing.search.excerpts import excerpt
from store.indexing.search.index import documents, rollout_numbers
from store.indexing.search.lexicon import Codes
from store.indexing.search.matching import WordMatch, codes_of, is_empty
from store.indexing.search.query_language import Clause, SearchTerms
from store.indexing.search.regex import Regex
from store.indexing.search.words import parts_of
from store.models.search import SearchHit, SearchPage, SearchResult

MOST_RESULTS: Final = 100
_HITS: Final = 3
_HITS_IN_ROLLOUT: Final = 200
_DOCUMENTS_AT_ONCE: Final = 200
_MOST_AT_ONCE: Final = 5_000
FEW_ROLLOUTS: Final = 256
"""If at most this many rollouts match the filters, their numbers are part of the condition on documents."""
_TEXTS_AT_ONCE: Final = 50
_REGEX_TEXTS: Final = 20_000
"""The number of texts that one search compares with a regular expression."""
SECONDS: Final = 5.0
"""The time after which a search returns the results that it has."""
_LAST: Final = 2**62
_COLUMNS: Final[tuple[ColumnElement[Any], ...]] = tuple(
    documents.c[name] for name in ("id", "rollout", "position", "kind", "name", "hash", "part")
)


Restriction = Callable[[Dialect], tuple[ColumnElement[bool] | None, dict[str, Any]]]
"""A function that returns a condition on the table `rollouts`, or None, and the parameters of the condition."""


def restriction_of(filter_query: FilterQuery) -> Restriction:
    """Return the restriction to the rollouts that a query matches."""

    def condition(dialect: Dialect) -> tuple[ColumnElement[bool] | None, dict[str, Any]]:
        if not filter_query.conditions:
            return None, {}
        columns = pages.rollout_columns(dialect, filter_query)
        return filters.where(dialect, filter_query, columns), filters.params(dialect, filter_query)

    return condition


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """The arguments of a search, checked."""

    terms: SearchTerms
    restriction: Restriction
    limit: int = 20
    after: int | None = None
    """Only documents before this number, which the previous page returned as its cursor."""
    rollout_id: str | None = None
    """Search only this rollout. The page then has one result."""
    seconds: float = SECONDS


@dataclass(slots=True)
class _Search:
    """The state of one search."""

    session: ReadSession
    request: SearchRequest
    regex: Regex | None
    codes: Codes
    until: float
    """The end of the time limit, in seconds of `time.monotonic`."""
    numbers: list[int] | None = None
    """The numbers of the only rollouts to search; None for all."""
    texts: int = 0
    """The number of texts that were compared with the regular expression."""
    hits: dict[int, list[NamedRow]] = field(default_factory=dict[int, list[NamedRow]])
    """The matching documents, by the number of their rollout, in the order of the results."""
    rollouts: dict[int, NamedRow] = field(default_factory=dict[int, NamedRow])
    """Rows with `rollout_id` and `status`, by the number of the rollout."""
    compared: int = 0
    """The number of the last document that was compared with the regular expression."""
    last: int = _LAST
    """The documents of the next page have numbers below this one."""

    @property
    def is_over(self) -> bool:
        """Whether the search has reached its limit of time or texts."""
        return time.monotonic() >= self.until or self.texts >= _REGEX_TEXTS


def cursor_of(text: str | None) -> int | None:
    """Return the number of a document from a cursor, which is the field `next` of a page of results.

    Raises:
        Invalid: the text is not a cursor.
    """
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise Invalid("after", f"{text[:40]!r} is not a cursor; give `next` of a page of results")
    return int(text)


async def search(session: ReadSession, lag: IndexLag, request: SearchRequest) -> SearchPage:
    """Return a page of the rollouts that match. The session must see the tables of the index."""
    terms = request.terms
    regex = None if terms.regex is None else Regex(terms.regex)
    state = _Search(session, request, regex, await codes_of(session, terms), time.monotonic() + request.seconds)
    at_once = _DOCUMENTS_AT_ONCE
    before = _LAST if request.after is None else request.after
    state.numbers = await few_rollouts(session, request)
    has_more = state.numbers != []
    while has_more and len(state.hits) < request.limit and not state.is_over:
        rows = await candidates(state, before, at_once)
        has_more = len(rows) == at_once
        if not rows:
            break
        await take_documents(state, rows)
        before = state.last
        if regex is None:
            # If few of the candidates match, larger steps need fewer statements.
            at_once = min(at_once * 2, _MOST_AT_ONCE)
    is_full = len(state.hits) == request.limit and request.rollout_id is None
    is_cut_off = has_more and not is_full
    return SearchPage(
        results=await results_of(state),
        next=str(state.last) if (has_more or is_full) and state.last < _LAST else None,
        events_behind=lag.events_behind,
        is_cut_off=is_cut_off,
        texts_searched=state.texts,
    )


async def few_rollouts(session: ReadSession, request: SearchRequest) -> list[int] | None:
    """Return the numbers of the rollouts to search if they are few, and None otherwise.

    Without these numbers, a frequent word and a filter that few rollouts match would read most documents with the word.
    """
    dialect, column = session.dialect, rollout_numbers.c
    statement = select(column.number)
    params: dict[str, Any] = {"at_most": FEW_ROLLOUTS + 1}
    if request.rollout_id is not None:
        statement = statement.where(column.rollout_id == bindparam("of_rollout"))
        params["of_rollout"] = request.rollout_id
    else:
        condition, values = request.restriction(dialect)
        if condition is None:
            return None
        statement = statement.join(core_tables.rollouts, core_tables.rollouts.c.rollout_id == column.rollout_id)
        statement = statement.where(condition)
        params |= values
    rows = await session.fetch(dialect.sql(statement.limit(bindparam("at_most", type_=BigInteger))), params)
    return [row.number for row in rows] if len(rows) <= FEW_ROLLOUTS else None


async def candidates(state: _Search, before: int, limit: int) -> Sequence[NamedRow]:
    """Return the next documents that match the first clause, newest first, in rollouts that match the filters."""
    request, dialect = state.request, state.session.dialect
    clause, numbers = request.terms.required[0], state.numbers
    matching = WordMatch(dialect, state.codes).all_documents() if is_empty(clause) else WordMatch(dialect, state.codes)
    source = matching.source().join(rollout_numbers, rollout_numbers.c.number == documents.c.rollout)
    source = source.join(core_tables.rollouts, core_tables.rollouts.c.rollout_id == rollout_numbers.c.rollout_id)
    statement = select(*_COLUMNS, core_tables.rollouts.c.rollout_id, core_tables.rollouts.c.status)
    statement = statement.select_from(source).where(matching.id < bindparam("before", type_=BigInteger))
    params: dict[str, Any] = {"before": before, "at_most": limit}
    if not is_empty(clause):
        statement = statement.where(matching.condition(clause, of_rollouts=numbers is not None))
        params |= matching.params(clause, numbers)
    elif numbers is not None:
        statement = statement.where(matching.of_rollouts())
        params["numbers"] = dialect.list_param(numbers)
    condition, values = request.restriction(dialect)
    if condition is not None:
        statement = statement.where(condition)
        params |= values
    statement = statement.order_by(matching.id.desc()).limit(bindparam("at_most", type_=BigInteger))
    return await state.session.fetch(dialect.sql(statement), params)


async def take_documents(state: _Search, rows: Sequence[NamedRow]) -> None:
    """Add to the results the documents whose rollouts match the other clauses, until the page is full."""
    request = state.request
    matches = {row.id for row in rows} if state.regex is None else await _matching_regex(state, state.regex, rows)
    fresh = sorted({row.rollout for row in rows if row.id in matches} - state.hits.keys())
    excluded = await excluded_rollouts(state, fresh) if fresh else set[int]()
    for row in rows:
        if row.id < state.compared:
            # The search reached its limit before it compared this document. The next page begins with it.
            return
        state.last = row.id
        if row.rollout not in state.hits:
            if row.rollout in excluded or row.id not in matches:
                continue
            if len(state.hits) == request.limit:
                # The next page begins with this document.
                state.last = row.id + 1
                return
            state.hits[row.rollout], state.rollouts[row.rollout] = [], row
        limit = _HITS if request.rollout_id is None else _HITS_IN_ROLLOUT
        if row.id in matches and len(state.hits[row.rollout]) < limit:
            state.hits[row.rollout].append(row)


async def _matching_regex(state: _Search, regex: Regex, rows: Sequence[NamedRow]) -> set[int]:
    """Return the numbers of the documents that match a regular expression. Stop if the search is over."""
    matches: set[int] = set()
    for start in range(0, len(rows), _TEXTS_AT_ONCE):
        if state.is_over:
            break
        part = rows[start : start + _TEXTS_AT_ONCE]
        texts = await _texts(state.session, part)
        state.texts += len(part)
        state.compared = part[-1].id
        matches |= {number for number, text in texts.items() if regex.matches(text)}
    return matches


async def excluded_rollouts(state: _Search, numbers: Sequence[int]) -> set[int]:
    """Return which of the rollouts are on an earlier page, do not match a required clause, or match an excluded one."""
    terms, after = state.request.terms, state.request.after
    excluded: set[int] = set()
    if after is not None and state.request.rollout_id is None:
        excluded |= await _on_earlier_pages(state, numbers, after)
    for clause in terms.required[1:]:
        excluded |= set(numbers) - await _rollouts(state, clause, numbers)
    for clause in terms.excluded:
        excluded |= await _rollouts(state, clause, numbers)
    return excluded


async def _on_earlier_pages(state: _Search, numbers: Sequence[int], least: int) -> set[int]:
    clause = state.request.terms.required[0]
    if state.regex is None:
        return await _rollouts(state, clause, numbers, least)
    dialect = state.session.dialect
    matching = (
        WordMatch(dialect, state.codes) if not is_empty(clause) else WordMatch(dialect, state.codes).all_documents()
    )
    statement = select(*_COLUMNS).select_from(matching.source())
    statement = statement.where(matching.id >= bindparam("least", type_=BigInteger))
    params: dict[str, Any] = {"least": least, "numbers": dialect.list_param(list(numbers))}
    statement = statement.where(matching.of_rollouts())
    if not is_empty(clause):
        statement = statement.where(matching.condition(clause))
        params |= matching.params(clause)
    rows = await state.session.fetch(dialect.sql(statement), params)
    texts = await _texts(state.session, rows)
    return {row.rollout for row in rows if row.id in texts and state.regex.matches(texts[row.id])}


async def _rollouts(state: _Search, clause: Clause, numbers: Sequence[int], least: int | None = None) -> set[int]:
    """Return the rollouts among `numbers` with a document, of number `least` or higher, that matches a clause."""
    matching = WordMatch(state.session.dialect, state.codes)
    sql = state.session.dialect.sql(matching.rollouts_statement(clause, has_least=least is not None))
    params = {**matching.params(clause, numbers), "least": least}
    return {row.rollout for row in await state.session.fetch(sql, params)}


async def results_of(state: _Search) -> list[SearchResult]:
    """Return the results of a search, with excerpts."""
    request, session = state.request, state.session
    rows = [row for hits in state.hits.values() for row in hits]
    for clause in request.terms.required[1:]:
        for number in state.hits:
            ids = {row.id for row in state.hits[number]}
            more = [row for row in await first_hit(state, clause, number) if row.id not in ids]
            rows += more
            state.hits[number] += more
    texts = await _texts(session, rows)
    positions = sorted({row.position for row in rows})
    events: Sequence[NamedRow] = ()
    if positions:
        events = await log_queries.events_with_bodies(session, positions, -1)
    by_position = {row.position: IndexedEvent(row, is_oversized=False) for row in events}
    results: list[SearchResult] = []
    for number, hits in state.hits.items():
        rollout = state.rollouts[number]
        ordered = sorted(hits, key=lambda row: row.id) if request.rollout_id is not None else hits
        excerpts = [
            hit_of(row, by_position[row.position], texts[row.id], request.terms.required, state.regex)
            for row in ordered
            if row.position in by_position and row.id in texts
        ]
        results.append(SearchResult(rollout_id=rollout.rollout_id, status=rollout.status, hits=excerpts))
    return results


async def first_hit(state: _Search, clause: Clause, number: int) -> list[NamedRow]:
    """Return the first document of a rollout that matches a clause, in a list; an empty list if there is none."""
    matching = WordMatch(state.session.dialect, state.codes)
    statement = select(*_COLUMNS).select_from(matching.source()).where(matching.condition(clause, of_rollouts=True))
    sql = state.session.dialect.sql(statement.order_by(matching.id).limit(1))
    return list(await state.session.fetch(sql, matching.params(clause, [number])))


async def _texts(session: ReadSession, rows: Sequence[NamedRow]) -> dict[int, str]:
    """Return the texts of documents by number, read from the log. Texts that were removed meanwhile are left out."""
    ids = {(row.position, row.hash, row.part): row.id for row in rows}
    places = {(row.position, row.hash) for row in rows}
    positions = sorted({row.position for row in rows})
    texts: dict[int, str] = {}
    events = await log_queries.events_with_bodies(session, positions, LARGEST_BODY) if positions else ()
    for row in events:
        event = IndexedEvent(row, is_oversized=False)
        for document in documents_of(event):
            key = document.key(event.rollout_id)
            if (event.position, key) in places:
                for part, (text, _) in enumerate(parts_of(document.text)):
                    number = ids.get((event.position, key, part))
                    if number is not None:
                        texts[number] = text
    return texts


def hit_of(row: NamedRow, event: IndexedEvent, text: str, clauses: Sequence[Clause], regex: Regex | None) -> SearchHit:
    """Return a document as a hit, with an excerpt of its text."""
    part = excerpt(text, clauses, regex)
    return SearchHit(
        scope=DocumentKind(row.kind).name.lower(),  # pyright: ignore[reportArgumentType] - the names of the kinds
        name=row.name,
        text=part.text,
        marks=part.marks,
        is_start=part.is_start,
        is_end=part.is_end,
        number=event.version,
        attempt_id=event.data.get("attempt_id"),
        span_id=event.data.get("span_id"),
        sequence_id=event.data.get("sequence_id"),
    )
