"""Page declarations: the path and the role of each page or action, and the results that they return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from store.dashboard.request import PageRequest
from store.sql.api_keys import Role


@dataclass(frozen=True, slots=True)
class PageContent:
    """The content of a page: its template and the values for it."""

    template: str
    values: Mapping[str, Any]
    """Plain values (dicts, lists, dataclasses, models); the JSON twin contains exactly these."""
    title: str
    status: int = 200
    """The HTTP status of the response."""
    hidden: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further values for the template, not included in the JSON twin."""


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a successful action: a redirect."""

    location: str
    """The path to which the browser is redirected."""
    message: str = ""
    """A sentence that the target page shows once."""


@dataclass(frozen=True, slots=True)
class File:
    """A file to download."""

    name: str
    body: bytes
    media_type: str = "application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Further headers of the response."""


Answered = PageContent | Done | File
View = Callable[[PageRequest], Awaitable[Answered]]


@dataclass(frozen=True, slots=True)
class Route:
    """The route of one page or action."""

    method: str
    path: str
    """A path template: `/ui/rollouts/{rollout_id}`."""
    view: View
    role: Role


@dataclass(slots=True)
class Pages:
    """The routes of one module."""

    routes: list[Route] = field(default_factory=list[Route])

    def get(self, path: str, *, role: Role = "reader") -> Callable[[View], View]:
        """Declare a page. The path of its JSON twin is the same path with `.json` appended."""
        return self._declare("GET", path, role)

    def post(self, path: str, *, role: Role = "algorithm") -> Callable[[View], View]:
        """Declare an action; the form fields are its parameters."""
        return self._declare("POST", path, role)

    def _declare(self, method: str, path: str, role: Role) -> Callable[[View], View]:
        def declare(view: View) -> View:
            self.routes.append(Route(method, path, view, role))
            return view

        return declare
