"""Pages of rows: the statement, compiled once for each shape of a query, and the number of matches before paging."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, FromClause, Select, and_, bindparam, func, select
from sqlalchemy.types import BigInteger

from store.db.dialect import Dialect, ReadSession, Row, Sql
from store.db.queries import filters
from store.db.queries.filters import Columns, FilterQuery

Item = TypeVar("Item")
Make = Callable[[Row], Item]
Take = Callable[[Sequence[Row]], object]
"""A function that receives lists of rows."""

_SHAPES_KEPT = 512


@dataclass(slots=True)
class Page(Generic[Item]):
    """A page of a query's matches."""

    items: list[Item]
    total: int
    """The number of matches before paging."""


def compiled(dialect: Dialect, shape: Hashable | None, build: Callable[[], Select[Any]]) -> Sql:
    """Return a compiled statement. If its shape was compiled before, it comes from a cache.

    With a shape of None the statement is compiled each time, because it contains a value.
    """
    if shape is None:
        return dialect.sql(build())
    kept = dialect.compiled
    found = kept.get(shape)
    if found is None:
        if len(kept) >= _SHAPES_KEPT:
            kept.clear()
        found = kept[shape] = dialect.sql(build())
    return found


@dataclass(frozen=True, slots=True)
class Listing:
    """The parts of the statements that list one kind of row."""

    filter_query: FilterQuery
    columns: Columns
    """The columns for the fields and the order of the query."""
    source: FromClause
    """The tables of these columns."""
    whole: Callable[[Columns, FromClause], Select[Any]]
    """Function that returns the statement of the wide rows for these columns."""
    within: Callable[[], ColumnElement[bool]] | None = None
    """Condition on every row, whatever the query's logic."""
    within_params: tuple[tuple[str, Any], ...] = ()
    shape: Hashable = None
    """A key that distinguishes the statements of this listing from those of other listings."""
    carried: Sequence[str] | None = None
    """The columns that `whole` needs after the page was limited; None for all."""
    is_narrow_first: bool = False
    """Whether the page is limited before the payload is joined, so that payload is not sorted and skipped."""
    all_of_them: Callable[[], Select[Any]] | None = None
    """Function that returns the statement for the total number, if it is known without counting."""

    def matching(self, dialect: Dialect) -> ColumnElement[bool]:
        """Return the condition on a row."""
        condition = filters.where(dialect, self.filter_query, self.columns)
        return condition if self.within is None else and_(self.within(), condition)

    def statement(self, dialect: Dialect) -> Select[Any]:
        """Return the statement of the page."""
        filter_query, columns, matching = self.filter_query, self.columns, self.matching(dialect)
        if not (filter_query.is_paged and self.is_narrow_first) or self.is_beginning:
            statement = self.whole(columns, self.source).where(matching).order_by(*filters.order(filter_query, columns))
            return _limited(statement, filter_query)
        carried = columns if self.carried is None else {name: columns[name] for name in self._carried(self.carried)}
        page = select(*carried.values()).select_from(self.source).where(matching)
        cut = _limited(page.order_by(*filters.order(filter_query, columns)), filter_query).subquery("page")
        again: Columns = dict(cut.c)
        return self.whole(again, cut).order_by(*filters.order(filter_query, again))

    @property
    def is_beginning(self) -> bool:
        """Whether the page is the beginning of an index, so that nothing has to be sorted or joined beyond it."""
        filter_query = self.filter_query
        return (
            filter_query.sort_by is None
            and not filter_query.offset
            and bool(filter_query.noun.table.c[filter_query.noun.created].index)
        )

    def _carried(self, names: Sequence[str]) -> Sequence[str]:
        noun, sort_by = self.filter_query.noun, self.filter_query.sort_by
        sorts = () if sort_by is None else (sort_by, *(noun.ties or {}).get(sort_by, ()))
        return list(dict.fromkeys((*names, *(noun.fields[name].column for name in sorts), noun.created)))

    def count(self, dialect: Dialect) -> Select[Any]:
        """Return the statement for the number of matches before paging."""
        if self.all_of_them is not None and not self.filter_query.conditions and self.within is None:
            return self.all_of_them()
        return select(func.count()).select_from(self.source).where(self.matching(dialect))


def _limited(statement: Select[Any], filter_query: FilterQuery) -> Select[Any]:
    if not filter_query.is_paged:
        return statement
    return statement.limit(bindparam("page_limit", type_=BigInteger)).offset(bindparam("page_offset", type_=BigInteger))


async def take_page(
    dialect: Dialect, session: ReadSession, listing: Listing, take: Take, *, batch: int | None = None
) -> int:
    """Pass the rows of a page to `take`, at most `batch` at a time; return the number of matches before paging."""
    filter_query = listing.filter_query
    params = filters.params(dialect, filter_query) | dict(listing.within_params)
    shape = filters.shape(filter_query)
    kind = None if shape is None else (shape, listing.shape)
    if filter_query.is_paged:
        params |= {"page_limit": filter_query.limit_param, "page_offset": filter_query.offset_param}
    found = 0

    def count() -> Sql:
        return compiled(dialect, kind and ("count", kind), lambda: listing.count(dialect))

    def count_if_cut(number: int) -> Sql | None:
        is_last = number < filter_query.limit or filter_query.limit == -1
        return None if is_last and (number or not filter_query.offset) else count()

    if filter_query.limit == 0:
        counted = await session.fetch(count(), params)
    else:
        sql = compiled(dialect, kind and ("page", kind, listing.is_beginning), lambda: listing.statement(dialect))
        if batch is not None and not 0 < filter_query.limit <= batch:
            async for rows in session.stream(sql, params, batch=batch):
                found += len(rows)
                take(rows)
            counting = count_if_cut(found)
            counted = None if counting is None else await session.fetch(counting, params)
        else:
            rows, counted = await session.fetch_then(sql, params, count_if_cut)
            found = len(rows)
            take(rows)
    if counted is None:
        return filter_query.offset + found
    # Rows may disappear between the two statements, so the total is at least the number of rows that were read.
    total = counted[0][0] if counted else 0
    return max(total, filter_query.offset + found if found else 0)


async def make_page(
    dialect: Dialect, session: ReadSession, listing: Listing, make: Make[Item], *, batch: int | None = None
) -> Page[Item]:
    """Return a page of objects made from rows, with at most `batch` rows in memory at a time."""
    items: list[Item] = []
    total = await take_page(dialect, session, listing, lambda rows: items.extend(map(make, rows)), batch=batch)
    return Page(items, total)
