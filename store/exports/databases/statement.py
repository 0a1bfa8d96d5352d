"""SQL statements over the tables of exports. The tables are filled anew for each statement. Decision 98."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from store.errors import Invalid
from store.exports.databases.rows import TableRows
from store.exports.databases.temporary import TemporaryDatabase, TimeIsOver
from store.exports.frames import for_both_stores
from store.exports.tables import TABLES
from store.interface.store import Store
from store.models.enums import Frozen
from store.models.queries import RolloutQuery
from store.runtime.progress import OnProgress, ignore

ROWS: Final = 1000
SECONDS: Final = 60.0


class SQLResult(Frozen):
    """The rows that a statement returned."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    is_truncated: bool
    """Whether the statement has more rows than `limit`, so that rows are missing here."""
    position: int
    """The position of the log at which the store was read."""
    rollouts: int
    """The number of rollouts that were read; 0 if the statement names no table."""
    seconds: float

    def _repr_html_(self) -> str:
        from store.runtime import html

        titles = [
            f"{title} ({place})" if title in self.columns[:place] else title for place, title in enumerate(self.columns)
        ]
        rows = [dict(zip(titles, row, strict=True)) for row in self.rows]
        more = " or more" if self.is_truncated else ""
        return html.titled(f"{len(rows):,}{more} rows at position {self.position}", html.table(rows))


@for_both_stores
async def query_sql(
    store: Store,
    statement: str,
    query: RolloutQuery | None = None,
    *,
    limit: int = ROWS,
    seconds: float = SECONDS,
    on_progress: OnProgress = ignore,
) -> SQLResult:
    """Run a SQL statement over the tables and views of exports, and return its rows.

    The columns that the statement reads are copied from the store into a temporary SQLite database, where the statement
    runs. So the same SQL works for every store, and a statement can neither change nor block the store.

    Args:
        store: the store. With a blocking store, the function returns the result itself and not a coroutine.
        statement: one statement that only reads, in the SQL of SQLite.
        query: the conditions on the rollouts that the tables contain, `as_at` and `reward_version`; None for all
            rollouts at the end of the log.
        limit: the greatest number of rows to return; -1 for all.
        seconds: the greatest number of seconds for the copy and the statement together.
        on_progress: called with the number of listed rollouts.

    Raises:
        Invalid: an argument is invalid, SQLite refuses the statement, the statement does not only read, the time is
            over, or SQLite cannot store a value.
        Unavailable: the disk for temporary files is full.
        Unsupported: the store has no log.
    """
    if limit < -1:
        raise Invalid("limit", f"{limit} is not a number of rows; -1 stands for all")
    if not seconds > 0:
        raise Invalid("seconds", f"{seconds} is not a number above 0")
    begun = time.monotonic()
    query = RolloutQuery() if query is None else query
    moment = await store.log.position(query.as_at)
    with ThreadPoolExecutor(1, "rollbook sql") as thread:
        in_thread = partial(asyncio.get_running_loop().run_in_executor, thread)
        database = await in_thread(TemporaryDatabase, statement, begun + seconds)
        try:
            tables = [table for table in TABLES if table.name in database.columns]
            rows = TableRows(store, query, moment.position, tables, step="reading", on_progress=on_progress)
            async for batch in rows.batches():
                await in_thread(database.insert, batch)
            columns, values = await in_thread(database.run, limit)
        except TimeIsOver:
            cure = "choose fewer rollouts, such as those of one step, or allow more time"
            raise Invalid("statement", f"has no result after {seconds:g} s; {cure}") from None
        finally:
            # If the call was cancelled, the statement may still be running in the thread.
            database.interrupt()
            await in_thread(database.close)
    is_truncated = 0 <= limit < len(values)
    return SQLResult(
        columns=columns,
        rows=values[:limit] if is_truncated else values,
        is_truncated=is_truncated,
        position=moment.position,
        rollouts=rows.rollouts,
        seconds=time.monotonic() - begun,
    )
