"""Tables of an export in memory, for notebooks and scripts."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from store.exports.formats.arrow import ArrowTable, arrow, module
from store.exports.formats.base import ExportOrigin
from store.exports.redaction import FieldRedaction
from store.exports.source import ExportSource
from store.exports.tables import tables_of
from store.interface.store import Store, SyncStore
from store.models.missing_rewards import MissingReward
from store.models.queries import RolloutQuery

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class ForBothStores(Protocol[P, T_co]):
    """A function that returns the result for a blocking store, and a coroutine of the result for any other store."""

    @overload
    def __call__(self, store: SyncStore, *args: P.args, **kwargs: P.kwargs) -> T_co: ...
    @overload
    def __call__(self, store: Store, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T_co]: ...


def for_both_stores(function: Callable[Concatenate[Store, P], Coroutine[Any, Any, T]]) -> ForBothStores[P, T]:
    """Return a function that also accepts a blocking store. For such a store, it waits and returns the result."""

    @wraps(function)
    def call(store: Store | SyncStore, *args: P.args, **kwargs: P.kwargs) -> Any:
        if isinstance(store, SyncStore):
            return store.thread.get().wait(function(store.target, *args, **kwargs))
        return function(store, *args, **kwargs)

    return call


@for_both_stores
async def to_arrow(
    store: Store, table: str, query: RolloutQuery | None = None, *, redact: Sequence[str] = (), unrewarded: str = "out"
) -> Any:
    """Return a table of an export as a `pyarrow.Table`. JSON is text.

    Args:
        store: the store. With a blocking store, the function returns the table itself and not a coroutine.
        table: the name of the table.
        query: the conditions on rollouts, and `as_at`; None for all rollouts at the end of the log.
        redact: the fields to leave out; see `FieldRedaction`.
        unrewarded: see `export_store`.

    Raises:
        Invalid: an argument is invalid, a package is missing, or a value does not fit into its column.
        Unsupported: the store has no log.
    """
    return await _arrow(store, table, query, redact, unrewarded)


@for_both_stores
async def to_pandas(
    store: Store, table: str, query: RolloutQuery | None = None, *, redact: Sequence[str] = (), unrewarded: str = "out"
) -> Any:
    """Return a table of an export as a `pandas.DataFrame`; the arguments and errors are those of `to_arrow`."""
    module("pandas")
    return (await _arrow(store, table, query, redact, unrewarded)).to_pandas()


@for_both_stores
async def to_polars(
    store: Store, table: str, query: RolloutQuery | None = None, *, redact: Sequence[str] = (), unrewarded: str = "out"
) -> Any:
    """Return a table of an export as a `polars.DataFrame`; the arguments and errors are those of `to_arrow`."""
    polars = module("polars")
    return polars.from_arrow(await _arrow(store, table, query, redact, unrewarded))


async def _arrow(store: Store, name: str, query: RolloutQuery | None, redact: Sequence[str], unrewarded: str) -> Any:
    (table,) = tables_of([name])
    redaction = FieldRedaction(redact)
    redaction.check([table])
    moment = await store.log.position(None if query is None else query.as_at)
    table = table.without(redaction.columns.get(name, ()))
    missing = MissingReward.parse(unrewarded)
    converter = ArrowTable(table, ExportOrigin(moment.store_id, moment.position, str(missing)))
    source = ExportSource(
        store, query or RolloutQuery(), moment.position, table.reads, needs_whole_rollouts=True, missing=missing
    )
    batches: list[Any] = []
    async for records in source.records():
        for record in records:
            redaction.apply(record)
        if rows := [row for record in records for row in table.rows(record)]:
            batches.append(converter.batch(rows))
    return arrow().Table.from_batches(batches, schema=converter.schema)
