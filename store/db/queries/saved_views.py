"""Saved views: names of the filters, columns and sorting of a page of the dashboard. Decision 122."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any, Final

from sqlalchemy import select

from store.db.dialect import Changes, Dialect, ReadSession
from store.db.tables.core import saved_views
from store.errors import Conflict, NotFound

MOST_VIEWS: Final = 200
"""The maximum number of saved views of a partition."""


@dataclass(frozen=True, slots=True)
class SavedView:
    """The parameters of a page under a name."""

    page: str
    """The path of the page below `/ui/`, such as `rollouts`."""
    name: str
    query: str
    """The query string of the page, without `?` and without the parameters that select a page of a table."""
    actor: str
    """The user that saved the view last, as in the log."""
    saved_at: int
    """The time of the last save, in microseconds since the epoch."""


async def all_views(session: ReadSession) -> list[SavedView]:
    """Return the saved views by page and name."""
    statement: Any = select(*saved_views.columns).order_by(saved_views.c.page, saved_views.c.name)
    return [SavedView(**row._asdict()) for row in await session.fetch(session.dialect.prepared(statement), {})]


async def save_view(dialect: Dialect, page: str, name: str, query: str, *, actor: str, replaces: bool) -> None:
    """Store a view.

    Raises:
        Conflict: there are `MOST_VIEWS` views, or one with this name exists on the page and `replaces` is false.
    """
    session = await dialect.writer()
    try:
        tail = await session.begin()
        views = {(view.page, view.name): view for view in await all_views(session)}
        if (page, name) in views and not replaces:
            raise Conflict(f"the page {page} has a view {name!r} already", "confirm to replace it, or use another name")
        if (page, name) not in views and len(views) >= MOST_VIEWS:
            raise Conflict(f"there are {MOST_VIEWS} saved views already", "delete one first")
        row = astuple(SavedView(page, name, query, actor, tail.now))
        await session.write(Changes(inserts={}, upserts={saved_views: [row]}, deletes={}))
        await session.commit()
    finally:
        # This rolls back an unfinished transaction.
        await session.close()


async def delete_view(dialect: Dialect, page: str, name: str) -> None:
    """Delete a view.

    Raises:
        NotFound: the page has no view with this name.
    """
    session = await dialect.writer()
    try:
        await session.begin()
        if not any((view.page, view.name) == (page, name) for view in await all_views(session)):
            raise NotFound("view", name, f"the page {page} has no view {name!r}")
        await session.write(Changes(inserts={}, upserts={}, deletes={saved_views: [(page, name)]}))
        await session.commit()
    finally:
        await session.close()
