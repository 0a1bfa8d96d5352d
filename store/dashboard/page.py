"""The pages by their paths, and what a page or an action answers with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from store.dashboard.request import PageRequest
from store.sql.api_keys import Role


@dataclass(frozen=True, slots=True)
class PageContent:
    """What a page shows."""

    template: str
    values: Mapping[str, Any]
    """Plain values: dicts, lists, dataclasses, models; the JSON twin is made of them."""
    title: str
    status: int = 200
    hidden: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the template needs besides, and the twin leaves out."""


@dataclass(frozen=True, slots=True)
class Done:
    """An action was carried out: go on there."""

    location: str
    told: str = ""
    """A sentence to show there."""


@dataclass(frozen=True, slots=True)
class File:
    """What is to be saved."""

    name: str
    body: bytes
    media_type: str = "application/json"


Answered = PageContent | Done | File
View = Callable[[PageRequest], Awaitable[Answered]]


@dataclass(frozen=True, slots=True)
class Route:
    """One page or action."""

    method: str
    path: str
    """A template: `/ui/rollouts/{rollout_id}`."""
    view: View
    role: Role


@dataclass(slots=True)
class Pages:
    """The pages of one module."""

    routes: list[Route] = field(default_factory=list[Route])

    def get(self, path: str, *, role: Role = "reader") -> Callable[[View], View]:
        """Declare what answers at a path, and with `.json` after it as JSON."""
        return self._declare("GET", path, role)

    def post(self, path: str, *, role: Role = "algorithm") -> Callable[[View], View]:
        """Declare an action; the fields of its form are the parameters."""
        return self._declare("POST", path, role)

    def _declare(self, method: str, path: str, role: Role) -> Callable[[View], View]:
        def declare(view: View) -> View:
            self.routes.append(Route(method, path, view, role))
            return view

        return declare
