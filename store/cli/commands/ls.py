"""`rollbook ls`: lists of rollouts, attempts, spans, resources and workers. Decision 90.

The options of each list are made from the fields of its query class in `store.models.queries`. A new field there
becomes an option without a change in this file.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

from store.cli import lookup
from store.cli.options import (
    DEFAULT_DB,
    AsAt,
    AsJson,
    Db,
    Descending,
    Limit,
    OfAttempt,
    Offset,
    OfRollout,
    RolloutAlias,
    Sort,
    parameter,
)
from store.cli.output.printing import is_terminal, json_document, note
from store.cli.output.tables import ATTEMPTS, RESOURCES, ROLLOUTS, SPANS, WORKERS, Column, print_table
from store.cli.output.times import in_words
from store.cli.query_options import condition_options, conditions_in
from store.cli.store_context import run_reading
from store.models import Attempt, AttemptedRollout, PaginatedResult, ResourcesUpdate, Rollout, Span
from store.models.queries import (
    AttemptQuery,
    PageQuery,
    ResourcesQuery,
    RolloutQuery,
    SpanQuery,
    WorkerQuery,
)
from store.models.rollouts import ObservedWorker

if TYPE_CHECKING:
    from store.interface.store import AsAt as Past
    from store.interface.store import Store

Find = TypeVar("Find", bound=Callable[..., Awaitable[PaginatedResult[Any]]])

_ROWS_ON_A_TERMINAL: Final = 50

app = typer.Typer()
ls = typer.Typer(
    name="ls", help="List the objects of one kind in the store.", rich_help_panel="Look", no_args_is_help=True
)
app.add_typer(ls)


def _options(query: type[PageQuery]) -> list[Parameter]:
    """Return the options of a list: one for each condition of its query, then the options that all lists have."""
    return [
        *condition_options(query),
        parameter("sort", Sort),
        parameter("desc", Descending),
        parameter("limit", Limit),
        parameter("offset", Offset, default=0),
        parameter("as_at", AsAt),
        parameter("json", AsJson, default=False),
    ]


def _page(options: dict[str, Any], newest_by: str, *, newest_first: bool) -> dict[str, Any]:
    """Return the values of the query fields that all lists have, for example of the limit and the sort order.

    Args:
        options: the values of all options of the command.
        newest_by: the field to sort by, newest first, if `--sort` is not given.
        newest_first: whether a table shows the newest objects first without any option.
    """
    limit = options["limit"]
    if limit is None:
        limit = _ROWS_ON_A_TERMINAL if is_terminal() and not options["json"] else -1
    # JSON has the order of the query without options.
    by_default = newest_first and not options["sort"] and not options["json"]
    is_descending = by_default if options["desc"] is None else options["desc"]
    sort = options["sort"] or (newest_by if is_descending else None)
    return {
        **({"sort_by": sort} if sort else {}),
        "sort_order": "desc" if is_descending else "asc",
        "limit": limit,
        "offset": options["offset"],
        "as_at": options["as_at"],
    }


def _print(page: PaginatedResult[Any], columns: Sequence[Column[Any]], *, as_json: bool, as_at: Past | None) -> None:
    if as_at is not None:
        note(f"as of {in_words(as_at)}")
    if as_json:
        json_document(
            {
                "items": [item.model_dump() for item in page],
                "limit": page.limit,
                "offset": page.offset,
                "total": page.total,
            }
        )
        return
    if not page and is_terminal():
        note("nothing found")
        return
    print_table(columns, page.items, is_past=as_at is not None)
    if len(page) < page.total:
        note(f"{len(page):,} of {page.total:,}; --limit and --offset choose which")


def _command(
    query: type[PageQuery], columns: Sequence[Column[Any]], newest_by: str, *, newest_first: bool = False
) -> Callable[[Find], Find]:
    """Declare `rollbook ls NAME`, where NAME is the name of the function.

    Args:
        query: the class of the query; each of its conditions becomes an option.
        columns: the columns of the table.
        newest_by: the field to sort by, newest first, if `--sort` is not given.
        newest_first: whether a table shows the newest objects first without any option.

    Returns:
        A decorator for a function that finds the objects that match a query. The parameters of the function after the
        query become options, too.
    """

    def declare(find: Find) -> Find:
        # The class `Store` is imported only for type checkers. Its parameter is not an option.
        _, _, *extra = inspect.signature(find, locals={"Store": None}, eval_str=True).parameters.values()

        def command(**options: Any) -> None:
            values = query.of(**conditions_in(options, query), **_page(options, newest_by, newest_first=newest_first))
            arguments = {option.name: options[option.name] for option in extra}
            page = run_reading(options["db"], lambda store: find(store, values, **arguments))
            _print(page, columns, as_json=options["json"], as_at=options["as_at"])

        # Typer reads the options from the signature.
        command.__dict__["__signature__"] = inspect.Signature(
            [parameter("db", Db, DEFAULT_DB), *extra, *_options(query)]
        )
        ls.command(find.__name__, help=inspect.getdoc(find))(command)
        return find

    return declare


@_command(RolloutQuery, ROLLOUTS, newest_by="start_time", newest_first=True)
async def rollouts(store: Store, query: RolloutQuery) -> PaginatedResult[Rollout | AttemptedRollout]:
    """Rollouts, each with its latest attempt, the newest first."""
    return await store.find_rollouts(query)


@_command(AttemptQuery, ATTEMPTS, newest_by="sequence_id")
async def attempts(
    store: Store, query: AttemptQuery, *, rollout: OfRollout = None, rollout_alias: RolloutAlias = None
) -> PaginatedResult[Attempt]:
    """The attempts of a rollout."""
    del rollout_alias
    return await store.find_attempts(await lookup.rollout(store, rollout or ""), query)


@_command(SpanQuery, SPANS, newest_by="sequence_id")
async def spans(
    store: Store,
    query: SpanQuery,
    *,
    rollout: OfRollout = None,
    rollout_alias: RolloutAlias = None,
    attempt: OfAttempt = None,
) -> PaginatedResult[Span]:
    """The spans of a rollout, by sequence number."""
    del rollout_alias
    rollout_id = await lookup.rollout(store, rollout or "")
    attempt_id = attempt and await lookup.attempt(store, rollout_id, attempt, query.as_at)
    return await store.find_spans(query.model_copy(update={"rollout_id": rollout_id, "attempt_id": attempt_id}))


@_command(ResourcesQuery, RESOURCES, newest_by="update_time", newest_first=True)
async def resources(store: Store, query: ResourcesQuery) -> PaginatedResult[ResourcesUpdate]:
    """The current version of every set of resources, the latest update first."""
    return await store.find_resources(query)


@_command(WorkerQuery, WORKERS, newest_by="last_dequeue_time")
async def workers(store: Store, query: WorkerQuery) -> PaginatedResult[ObservedWorker]:
    """The workers that claimed rollouts, in the order they were first seen."""
    page = await store.find_workers(query)
    now = time.time()
    items = [ObservedWorker.of(worker, now) for worker in page.items]
    return PaginatedResult(items=items, limit=page.limit, offset=page.offset, total=page.total)
