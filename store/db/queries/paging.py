"""Reads of pages of rows, with the number of all matching rows.

A statement is compiled once for each shape of a query. The shape of a query is all that determines the SQL text.
"""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, FromClause, Select, and_, bindparam, func, select
from sqlalchemy.types import BigInteger

from store.db.dialect import Dialect, NamedRow, ReadSession, Sql
from store.db.queries import filters
from store.db.queries.filters import Columns, FilterQuery

Item = TypeVar("Item")
Make = Callable[[NamedRow], Item]
Take = Callable[[Sequence[NamedRow]], Awaitable[None] | None]
"""A function that receives lists of rows. If it returns an awaitable, the caller awaits it before the next list."""

_SHAPES_KEPT = 512


@dataclass(slots=True)
class Page(Generic[Item]):
    """One page of the rows that match a query."""

    items: list[Item]
    total: int
    """The number of all rows that match the query, on any page."""


def compiled(session: ReadSession, shape: Hashable | None, build: Callable[[], Select[Any]]) -> Sql:
    """Return a compiled statement, from a cache if a statement of the same shape was compiled before.

    If `shape` is None, the statement is compiled each time. This is needed if the text of the statement contains a
    value.
    """
    if shape is None:
        return session.dialect.sql(build())
    cache = session.dialect.compiled
    sql = cache.get(shape)
    if sql is None:
        if len(cache) >= _SHAPES_KEPT:
            cache.clear()
        sql = cache[shape] = session.dialect.sql(build())
    return sql


@dataclass(frozen=True, slots=True)
class Listing:
    """The parts of the statements that read and count one kind of row."""

    filter_query: FilterQuery
    columns: Columns
    """The columns that the conditions and the order of the query use, by name."""
    source: FromClause
    """The table or join that contains these columns."""
    select_rows: Callable[[Columns, FromClause], Select[Any]]
    """A function that returns the statement for complete rows, given columns and their source.

    A complete row also has columns that are joined for the result only, such as payload.
    """
    within: Callable[[], ColumnElement[bool]] | None = None
    """A function that returns a condition on every row, even if the query joins its own conditions with `or`."""
    within_params: tuple[tuple[str, Any], ...] = ()
    """The names and values of the parameters of this condition."""
    shape: Hashable = None
    """A key that distinguishes the statements of this listing from the statements of other listings."""
    has_values: bool = False
    """Whether the condition of `within` contains values, so that the statements are compiled each time."""
    carried: Sequence[str] | None = None
    """The names of the columns that `select_rows` needs if `is_narrow_first` is True; None for all columns."""
    is_narrow_first: bool = False
    """Whether the rows of the page are selected before payload is joined, so that no payload is sorted."""
    first: str | None = None
    """The column by which rows are sorted first, before the query's own sort order; None if there is no such column."""
    all_of_them: Callable[[], Select[Any]] | None = None
    """A function that returns the statement for the number of all rows, if this number is stored; otherwise None.

    The statement has one column `total`, like the statement that `count` returns.
    """

    def matching(self, dialect: Dialect) -> ColumnElement[bool]:
        """Return the condition that the rows of the query must meet."""
        condition = filters.where(dialect, self.filter_query, self.columns)
        return condition if self.within is None else and_(self.within(), condition)

    @property
    def kind(self) -> Hashable:
        """A key that all listings with the same SQL text share; None if the text contains a value."""
        shape = filters.shape(self.filter_query)
        return None if shape is None or self.has_values else (shape, self.shape)

    def params(self, dialect: Dialect) -> dict[str, Any]:
        """Return the parameters of the statements."""
        params = filters.params(dialect, self.filter_query) | dict(self.within_params)
        if self.filter_query.is_paged:
            params |= {"page_limit": self.filter_query.limit_param, "page_offset": self.filter_query.offset_param}
        return params

    def compiled(self, session: ReadSession) -> Sql:
        """Return the compiled statement that reads the rows of the page."""
        shape = self.kind and ("page", self.kind, self.is_beginning)
        return compiled(session, shape, lambda: self.statement(session.dialect))

    def statement(self, dialect: Dialect) -> Select[Any]:
        """Return the statement that reads the rows of the page."""
        filter_query, columns, matching = self.filter_query, self.columns, self.matching(dialect)
        if not (filter_query.is_paged and self.is_narrow_first) or self.is_beginning:
            statement = self.select_rows(columns, self.source).where(matching).order_by(*self._order(columns))
            return _limited(statement, filter_query)
        carried = columns if self.carried is None else {name: columns[name] for name in self._carried(self.carried)}
        page = select(*carried.values()).select_from(self.source).where(matching)
        cut = _limited(page.order_by(*self._order(columns)), filter_query).subquery("page")
        page_columns: Columns = dict(cut.c)
        return self.select_rows(page_columns, cut).order_by(*self._order(page_columns))

    @property
    def is_beginning(self) -> bool:
        """Whether the page has the first matching rows of an index, so that no other rows are sorted or joined."""
        filter_query = self.filter_query
        return (
            filter_query.sort_by is None
            and not filter_query.offset
            and bool(filter_query.noun.table.c[filter_query.noun.created].index)
        )

    def _order(self, columns: Columns) -> list[ColumnElement[Any]]:
        order = filters.order(self.filter_query, columns)
        return order if self.first is None else [columns[self.first], *order]

    def _carried(self, names: Sequence[str]) -> Sequence[str]:
        noun, sort_by = self.filter_query.noun, self.filter_query.sort_by
        sorts = () if sort_by is None else (sort_by, *(noun.ties or {}).get(sort_by, ()))
        return list(dict.fromkeys((*names, *(noun.fields[name].column for name in sorts), noun.created)))

    def count(self, dialect: Dialect) -> Select[Any]:
        """Return the statement that counts all matching rows."""
        if self.all_of_them is not None and not self.filter_query.conditions and self.within is None:
            return self.all_of_them()
        return select(func.count().label("total")).select_from(self.source).where(self.matching(dialect))


def _limited(statement: Select[Any], filter_query: FilterQuery) -> Select[Any]:
    if not filter_query.is_paged:
        return statement
    return statement.limit(bindparam("page_limit", type_=BigInteger)).offset(bindparam("page_offset", type_=BigInteger))


async def read_rows(session: ReadSession, listing: Listing) -> Sequence[NamedRow]:
    """Return the rows of a page. In contrast to `make_page`, the matching rows are not counted."""
    return await session.fetch(listing.compiled(session), listing.params(session.dialect))


async def take_page(
    session: ReadSession, listing: Listing, take: Take, items: list[Item], *, batch: int | None = None
) -> Page[Item]:
    """Pass the rows of a page to `take`, at most `batch` rows at a time.

    Return the page of the items that `take` adds to `items`, with the number of all matching rows.
    """
    filter_query, params, kind = listing.filter_query, listing.params(session.dialect), listing.kind
    read = 0

    def count() -> Sql:
        return compiled(session, kind and ("count", kind), lambda: listing.count(session.dialect))

    def count_if_cut(number: int) -> Sql | None:
        is_last = number < filter_query.limit or filter_query.limit == -1
        return None if is_last and (number or not filter_query.offset) else count()

    if filter_query.limit == 0:
        counts = await session.fetch(count(), params)
    elif batch is not None and not 0 < filter_query.limit <= batch:
        async for rows in session.stream(listing.compiled(session), params, batch=batch):
            read += len(rows)
            await _taken(take, rows)
        counting = count_if_cut(read)
        counts = None if counting is None else await session.fetch(counting, params)
    else:
        rows, counts = await session.fetch_then(listing.compiled(session), params, count_if_cut)
        read = len(rows)
        await _taken(take, rows)
    if counts is None:
        return Page(items, filter_query.offset + read)
    # Rows may disappear between the two statements. The total must not be less than the number of rows that were read.
    total = counts[0].total if counts else 0
    return Page(items, max(total, filter_query.offset + read if read else 0))


async def _taken(take: Take, rows: Sequence[NamedRow]) -> None:
    taking = take(rows)
    if taking is not None:
        await taking


def make_page(
    session: ReadSession, listing: Listing, make: Make[Item], *, batch: int | None = None
) -> Awaitable[Page[Item]]:
    """Return an awaitable page of objects, which `make` creates from rows, at most `batch` rows at a time."""
    items: list[Item] = []
    return take_page(session, listing, lambda rows: items.extend(map(make, rows)), items, batch=batch)
