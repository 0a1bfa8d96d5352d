"""Saved views: the filters, columns and sorting of a page under a name. Decision 122."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from store.dashboard.page import Done, PageContent, Pages
from store.dashboard.request import PageRequest
from store.db.queries.saved_views import SavedView, all_views, delete_view, save_view
from store.errors import Conflict, Invalid

pages = Pages()

_PAGES: Final = {"rollouts": "Rollouts", "failures": "Failures", "groups": "Groups", "rewards": "Rewards"}
"""The pages with saved views: their paths below `/ui/` and their titles."""
_MOST_NAME: Final = 64
_MOST_QUERY: Final = 4_096
_PLACE: Final = frozenset({"upto", "after", "before", "offset", "at"})
"""The parameters that select one page of a table or a moment. A view leaves them out."""


async def views_of(request: PageRequest, page: str) -> dict[str, Any]:
    """Return the values of the menu of saved views: the links, the present parameters, and the page."""
    views = [view for view in await request.store.core.look(all_views) if view.page == page]
    query = _query([(name, value) for name in request.params for value in request.several(name)])
    return {
        "page": page,
        "views": [(view, f"{request.url(page)}{'?' if view.query else ''}{view.query}") for view in views],
        "query": query,
        "current": next((view.name for view in views if view.query == query), ""),
    }


@pages.get("/ui/views")
async def saved_views(request: PageRequest) -> PageContent:
    """Show the saved views of all pages."""
    views = await request.store.core.look(all_views)
    hidden = {
        "titles": _PAGES,
        "links": [f"{request.url(view.page)}{'?' if view.query else ''}{view.query}" for view in views],
    }
    return PageContent("saved_views.html", {"views": views}, "Saved views", hidden=hidden)


@pages.post("/ui/views")
async def save(request: PageRequest) -> PageContent | Done:
    """Save the parameters `query` of the page `page` as the view `name`.

    If the view exists, return a page for the confirmation. Its form sends `replace=1`, which replaces the view.
    """
    page, name = request.among("page", list(_PAGES), ""), _name(request)
    query = _query(parse_qsl(request.one("query"), keep_blank_values=False))
    if len(query.encode()) > _MOST_QUERY:
        raise Invalid("query", f"has more than {_MOST_QUERY:,} bytes; remove filters or chosen rollouts")
    back = f"{request.url(page)}{'?' if query else ''}{query}"
    replaces = request.among("replace", ("0", "1"), "0") == "1"
    actor = request.visitor.actor
    try:
        await save_view(request.store.core.dialect, page, name, query, actor=actor, replaces=replaces)
    except Conflict as error:
        former = await _view(request, page, name)
        if former is None:
            raise
        values = {"view": former, "query": query, "error": str(error)}
        return PageContent("saved_view_exists.html", values, "Replace a view", 409, {"back": back})
    return Done(back, f"Saved the view {name}.")


@pages.post("/ui/views/delete")
async def delete(request: PageRequest) -> Done:
    """Delete the view `name` of the page `page`."""
    page, name = request.among("page", list(_PAGES), ""), _name(request)
    await delete_view(request.store.core.dialect, page, name)
    return Done(request.url("views"), f"Deleted the view {name}.")


def _name(request: PageRequest) -> str:
    name = request.one("name").strip()
    if not 1 <= len(name.encode()) <= _MOST_NAME:
        raise Invalid("name", f"must have 1 to {_MOST_NAME} bytes")
    if not name.isprintable():
        raise Invalid("name", "must not contain control characters")
    return name


def _query(params: list[tuple[str, str]]) -> str:
    return urlencode([(name, value) for name, value in params if value and name not in _PLACE])


async def _view(request: PageRequest, page: str, name: str) -> SavedView | None:
    views = await request.store.core.look(all_views)
    return next((view for view in views if (view.page, view.name) == (page, name)), None)
