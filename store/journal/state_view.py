"""Views of the store's state, in the present and at past positions of the log."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from store.db.dialect import NamedRow, ReadSession
from store.db.queries import pages
from store.db.queries.filters import FilterQuery
from store.db.queries.paging import Make, Page
from store.db.queries.run_views import END
from store.journal import as_at

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class StateView:
    """The state of the store after an event, or now.

    The methods return rows, or pass them to `make`. The rows have the same columns in both cases. For a past state, the
    columns of signals are None, and a method raises `PastUnavailable` if too many rows have changed since that event.

    Attributes:
        session: the session that reads. For a past state, the session must be a snapshot.
        until: the position of the last event that the state includes; None for the present.
    """

    session: ReadSession
    until: int | None = None

    @property
    def position(self) -> int:
        """The position of the last event that the state includes; for the present, a number above all positions."""
        return END if self.until is None else self.until

    def rollouts(self, query: FilterQuery, make: Make[Item]) -> Awaitable[Page[Item]]:
        """Return a page of rollouts, each with its latest attempt."""
        if self.until is None:
            return pages.rollouts(self.session, query, make)
        return as_at.rollouts(self.session, query, self.until, make)

    def rollout(self, rollout_id: str) -> Awaitable[NamedRow | None]:
        """Return a rollout with its latest attempt; None if it does not exist."""
        if self.until is None:
            return pages.rollout(self.session, rollout_id)
        return as_at.rollout(self.session, rollout_id, self.until)

    def attempts(self, rollout_id: str, query: FilterQuery, make: Make[Item]) -> Awaitable[Page[Item]]:
        """Return a page of a rollout's attempts."""
        if self.until is None:
            return pages.attempts(self.session, rollout_id, query, make)
        return as_at.attempts(self.session, rollout_id, query, self.until, make)

    def latest_attempt(self, rollout_id: str) -> Awaitable[NamedRow | None]:
        """Return the latest attempt of a rollout; None if the rollout has none."""
        if self.until is None:
            return pages.latest_attempt(self.session, rollout_id)
        return as_at.latest_attempt(self.session, rollout_id, self.until)

    def spans(
        self, rollout_id: str | Sequence[str], attempt_id: str | None, query: FilterQuery, make: Make[Item]
    ) -> Awaitable[Page[Item]]:
        """Return a page of the spans of one or more rollouts."""
        if self.until is None:
            return pages.spans(self.session, rollout_id, attempt_id, query, make)
        return as_at.spans(self.session, rollout_id, attempt_id, query, self.until, make)

    def resources(self, query: FilterQuery, make: Make[Item]) -> Awaitable[Page[Item]]:
        """Return a page of resources."""
        if self.until is None:
            return pages.resources(self.session, query, make)
        return as_at.resources(self.session, query, self.until, make)

    def resources_by_id(self, resources_id: str) -> Awaitable[NamedRow | None]:
        """Return the resources with an id; None if they do not exist."""
        if self.until is None:
            return pages.resources_by_id(self.session, resources_id)
        return as_at.resources_by_id(self.session, resources_id, self.until)

    def latest_resources(self) -> Awaitable[NamedRow | None]:
        """Return the latest resources; None if there are none."""
        if self.until is None:
            return pages.latest_resources(self.session)
        return as_at.latest_resources(self.session, self.until)

    def workers(self, query: FilterQuery, make: Make[Item]) -> Awaitable[Page[Item]]:
        """Return a page of workers."""
        if self.until is None:
            return pages.workers(self.session, query, make)
        return as_at.workers(self.session, query, self.until, make)

    def worker(self, worker_id: str) -> Awaitable[NamedRow | None]:
        """Return a worker; None if it does not exist."""
        if self.until is None:
            return pages.worker(self.session, worker_id)
        return as_at.worker(self.session, worker_id, self.until)

    def totals(self) -> Awaitable[tuple[int, ...]]:
        """Return the totals, such as the number of all events, in the order of `pages.TOTALS`."""
        if self.until is None:
            return pages.totals(self.session)
        return as_at.totals(self.session, self.until)
