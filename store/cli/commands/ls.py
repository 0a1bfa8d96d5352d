"""`rollbook ls`: lists of rollouts, attempts, spans, resources and workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import typer
from pydantic import BaseModel

from store.cli import lookup
from store.cli.options import (
    DEFAULT_DB,
    AnyOf,
    AsAt,
    AsJson,
    Db,
    Descending,
    IdContains,
    Limit,
    Offset,
    OfRollout,
    RolloutStatuses,
    Sort,
    WorkerStatuses,
)
from store.cli.output.printing import is_terminal, json_document, note
from store.cli.output.tables import ATTEMPTS, RESOURCES, ROLLOUTS, SPANS, WORKERS, Column, print_table
from store.cli.output.times import in_words
from store.cli.store_context import run_reading
from store.interface.store import AsAt as Past
from store.interface.store import Store
from store.models import Attempt, FilterLogic, PaginatedResult, Span

T = TypeVar("T", bound=BaseModel)

_ON_A_SCREEN: Final = 50

app = typer.Typer()
ls = typer.Typer(
    name="ls", help="List what the store holds, one kind at a time.", rich_help_panel="Look", no_args_is_help=True
)
app.add_typer(ls)


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is wanted, of when, and how it is printed."""

    sort: str | None
    is_descending: bool
    limit: int | None
    offset: int
    as_at: Past | None
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


@ls.command("rollouts")
def ls_rollouts(
    *,
    db: Db = DEFAULT_DB,
    status: RolloutStatuses = None,
    id_in: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="With exactly this id; may be repeated.")
    ] = None,
    id_contains: IdContains = None,
    any_of: AnyOf = False,
    sort: Sort = None,
    desc: Descending = False,
    limit: Limit = None,
    offset: Offset = 0,
    as_at: AsAt = None,
    json: AsJson = False,
) -> None:
    """Rollouts, each with its latest attempt, in the order they were created."""
    page = Page(sort, desc, limit, offset, as_at, json)
    arguments = page.arguments("start_time")
    _print(
        run_reading(
            db,
            lambda store: store.query_rollouts(
                status_in=status or None,
                rollout_id_in=id_in or None,
                rollout_id_contains=id_contains,
                filter_logic=_logic(any_of=any_of),
                **arguments,
            ),
        ),
        ROLLOUTS,
        page,
    )


@ls.command("attempts")
def ls_attempts(
    *,
    rollout: OfRollout,
    db: Db = DEFAULT_DB,
    sort: Sort = None,
    desc: Descending = False,
    limit: Limit = None,
    offset: Offset = 0,
    as_at: AsAt = None,
    json: AsJson = False,
) -> None:
    """The attempts of a rollout."""
    page = Page(sort, desc, limit, offset, as_at, json)
    arguments = page.arguments("sequence_id")

    async def read(store: Store) -> PaginatedResult[Attempt]:
        return await store.query_attempts(await lookup.rollout(store, rollout), **arguments)

    _print(run_reading(db, read), ATTEMPTS, page)


@ls.command("spans")
def ls_spans(
    *,
    rollout: OfRollout,
    db: Db = DEFAULT_DB,
    attempt: Annotated[
        str | None, typer.Option(metavar="ID", help="Of this attempt: its id or the beginning, its number, or latest.")
    ] = None,
    trace_id: Annotated[str | None, typer.Option(metavar="ID", help="Of this trace.")] = None,
    trace_id_contains: Annotated[str | None, typer.Option(metavar="TEXT")] = None,
    span_id: Annotated[str | None, typer.Option(metavar="ID", help="With this id.")] = None,
    span_id_contains: Annotated[str | None, typer.Option(metavar="TEXT")] = None,
    parent_id: Annotated[str | None, typer.Option(metavar="ID", help="Right below this span.")] = None,
    parent_id_contains: Annotated[str | None, typer.Option(metavar="TEXT")] = None,
    name: Annotated[str | None, typer.Option(metavar="TEXT", help="With this name.")] = None,
    name_contains: Annotated[str | None, typer.Option(metavar="TEXT")] = None,
    any_of: AnyOf = False,
    sort: Sort = None,
    desc: Descending = False,
    limit: Limit = None,
    offset: Offset = 0,
    as_at: AsAt = None,
    json: AsJson = False,
) -> None:
    """The spans of a rollout, by the numbers the store gave them."""
    conditions = {
        "trace_id": trace_id,
        "trace_id_contains": trace_id_contains,
        "span_id": span_id,
        "span_id_contains": span_id_contains,
        "parent_id": parent_id,
        "parent_id_contains": parent_id_contains,
        "name": name,
        "name_contains": name_contains,
    }
    page = Page(sort, desc, limit, offset, as_at, json)
    arguments: dict[str, Any] = {**conditions, **page.arguments("sequence_id")}

    async def read(store: Store) -> PaginatedResult[Span]:
        rollout_id = await lookup.rollout(store, rollout)
        attempt_id = attempt and await lookup.attempt(store, rollout_id, attempt, page.as_at)
        return await store.query_spans(rollout_id, attempt_id, filter_logic=_logic(any_of=any_of), **arguments)

    _print(run_reading(db, read), SPANS, page)


@ls.command("resources")
def ls_resources(
    *,
    db: Db = DEFAULT_DB,
    resources_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="With exactly this id.")] = None,
    id_contains: IdContains = None,
    sort: Sort = None,
    desc: Descending = False,
    limit: Limit = None,
    offset: Offset = 0,
    as_at: AsAt = None,
    json: AsJson = False,
) -> None:
    """The current version of every set of resources, in the order the sets were first published."""
    page = Page(sort, desc, limit, offset, as_at, json)
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


@ls.command("workers")
def ls_workers(
    *,
    db: Db = DEFAULT_DB,
    status: WorkerStatuses = None,
    id_contains: IdContains = None,
    any_of: AnyOf = False,
    sort: Sort = None,
    desc: Descending = False,
    limit: Limit = None,
    offset: Offset = 0,
    as_at: AsAt = None,
    json: AsJson = False,
) -> None:
    """Whoever claimed rollouts, in the order they were first seen."""
    page = Page(sort, desc, limit, offset, as_at, json)
    arguments = page.arguments("last_dequeue_time")
    _print(
        run_reading(
            db,
            lambda store: store.query_workers(
                status_in=status or None,
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
