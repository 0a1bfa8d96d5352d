"""What `rollbook ls` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from store.cli import lookup
from store.cli.output.printing import is_terminal, json_document, note
from store.cli.output.tables import ATTEMPTS, RESOURCES, ROLLOUTS, SPANS, WORKERS, Column, print_table
from store.cli.output.times import in_words
from store.cli.store_context import run_reading
from store.interface.store import AsAt, Store
from store.models import Attempt, FilterLogic, PaginatedResult, RolloutStatus, Span, WorkerStatus

T = TypeVar("T", bound=BaseModel)

_ON_A_SCREEN: Final = 50


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is wanted, of when, and how it is printed."""

    sort: str | None
    is_descending: bool
    limit: int | None
    offset: int
    as_at: AsAt | None
    is_json: bool

    def arguments(self, newest_by: str) -> dict[str, Any]:
        """Return the arguments that every query has; `newest_by` is what `--desc` alone sorts by."""
        limit = self.limit
        if limit is None:
            limit = _ON_A_SCREEN if is_terminal() and not self.is_json else -1
        sort = self.sort or (newest_by if self.is_descending else None)
        return {
            **({"sort_by": sort} if sort else {}),
            "sort_order": "desc" if self.is_descending else "asc",
            "limit": limit,
            "offset": self.offset,
            "as_at": self.as_at,
        }


def rollouts(
    db: str,
    page: Page,
    *,
    status_in: Sequence[RolloutStatus] | None,
    id_in: Sequence[str] | None,
    id_contains: str | None,
    any_of: bool,
) -> None:
    """Print the rollouts that match."""
    arguments = page.arguments("start_time")
    _print(
        run_reading(
            db,
            lambda store: store.query_rollouts(
                status_in=status_in or None,
                rollout_id_in=id_in or None,
                rollout_id_contains=id_contains,
                filter_logic=_logic(any_of=any_of),
                **arguments,
            ),
        ),
        ROLLOUTS,
        page,
    )


def attempts(db: str, page: Page, rollout: str) -> None:
    """Print the attempts of a rollout."""
    arguments = page.arguments("sequence_id")

    async def read(store: Store) -> PaginatedResult[Attempt]:
        return await store.query_attempts(await lookup.rollout(store, rollout), **arguments)

    _print(run_reading(db, read), ATTEMPTS, page)


def spans(
    db: str, page: Page, rollout: str, attempt: str | None, conditions: Mapping[str, str | None], *, any_of: bool
) -> None:
    """Print the spans of a rollout, or of one of its attempts, that match."""
    arguments: dict[str, Any] = {**conditions, **page.arguments("sequence_id")}

    async def read(store: Store) -> PaginatedResult[Span]:
        rollout_id = await lookup.rollout(store, rollout)
        attempt_id = attempt and await lookup.attempt(store, rollout_id, attempt, page.as_at)
        return await store.query_spans(rollout_id, attempt_id, filter_logic=_logic(any_of=any_of), **arguments)

    _print(run_reading(db, read), SPANS, page)


def resources(db: str, page: Page, *, resources_id: str | None, id_contains: str | None) -> None:
    """Print the current versions of the resources that match."""
    arguments = page.arguments("update_time")
    _print(
        run_reading(
            db,
            lambda store: store.query_resources(
                resources_id=resources_id, resources_id_contains=id_contains, **arguments
            ),
        ),
        RESOURCES,
        page,
    )


def workers(
    db: str, page: Page, *, status_in: Sequence[WorkerStatus] | None, id_contains: str | None, any_of: bool
) -> None:
    """Print the workers that match."""
    arguments = page.arguments("last_dequeue_time")
    _print(
        run_reading(
            db,
            lambda store: store.query_workers(
                status_in=status_in or None,
                worker_id_contains=id_contains,
                filter_logic=_logic(any_of=any_of),
                **arguments,
            ),
        ),
        WORKERS,
        page,
    )


def _logic(*, any_of: bool) -> FilterLogic:
    return "or" if any_of else "and"


def _print(found: PaginatedResult[T], columns: Sequence[Column[Any]], page: Page) -> None:
    if page.as_at is not None:
        note(f"as at {in_words(page.as_at)}")
    if page.is_json:
        json_document(
            {
                "items": [item.model_dump() for item in found],
                "limit": found.limit,
                "offset": found.offset,
                "total": found.total,
            }
        )
        return
    if not found and is_terminal():
        note("nothing found")
        return
    print_table(columns, found.items, is_past=page.as_at is not None)
    if len(found) < found.total:
        note(f"{len(found):,} of {found.total:,}; --limit and --offset choose which")
