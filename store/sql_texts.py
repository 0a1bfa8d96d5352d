"""Pages of a SQL store as JSON text, written as the database gives them."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from store.db.dialect import ReadSession, Row
from store.db.queries import filters, pages
from store.db.queries.filters import Query
from store.interface.store import AsAt
from store.journal import as_at as timeline
from store.sql import json_pages
from store.sql.mapping import rollouts as rollout_mapping
from store.sql.queries import SQLReads
from store.wire.encoding import dumps

Write = Callable[[bytes], object]

# Payload may be long, and so few are there at a time.
_AT_ONCE = 128


class SQLTexts(SQLReads):
    """What a server answers from a SQL store: the longest pages, in memory for no more than a few rows."""

    async def write_rollouts(self, write: Write, *, as_at: AsAt | None = None, **query: Any) -> int:
        """Write the JSON of each rollout that `query_rollouts` would return; return how many match before paging.

        Args:
            write: called in their order, with one or with some and commas between them.
            as_at: the moment, if not the present.
            query: the other arguments of `query_rollouts`, but for its older names.
        """
        asked = filters.asked(filters.ROLLOUTS, query)
        dialect = self._dialect

        async def write_past(session: ReadSession, until: int) -> int:
            # Rows of the past are folded in any order, and their number is bounded.
            page = await timeline.rollouts(
                dialect, session, asked, until, lambda row: dumps(rollout_mapping.rollout_of_page(row))
            )
            for text in page.items:
                write(text)
            return page.total

        return await self._answer(
            lambda session: pages.take_rollouts(
                dialect, session, asked, _written(json_pages.rollouts, write), batch=_AT_ONCE
            ),
            write_past,
            as_at,
            snapshot=self._is_cut_up(asked),
        )

    async def write_spans(
        self,
        write: Write,
        rollout_id: str,
        attempt_id: str | None = None,
        *,
        as_at: AsAt | None = None,
        at: int | None = None,
        **query: Any,
    ) -> int:
        """Write the JSON of each span that `query_spans` would return; return how many match before paging.

        Args:
            write: called in their order, with one or with some and commas between them.
            rollout_id: whose spans.
            attempt_id: only those of this attempt.
            as_at: the moment, if not the present.
            at: the same as a number of the rollout's history.
            query: the other arguments of `query_spans`; without a `sort_by` the order is that of creation.
        """
        asked = filters.asked(filters.SPANS, query)
        dialect = self._dialect

        take = _written(json_pages.spans, write)

        async def write_past(session: ReadSession, until: int) -> int:
            page = await timeline.spans(
                dialect, session, rollout_id, attempt_id, asked, until, lambda row: take([row]), batch=_AT_ONCE
            )
            return page.total

        return await self._answer(
            lambda session: pages.take_spans(dialect, session, rollout_id, attempt_id, asked, take, batch=_AT_ONCE),
            write_past,
            as_at,
            (rollout_id, at),
            snapshot=self._is_cut_up(asked),
        )

    async def state(self) -> tuple[Hashable, Hashable] | None:
        """Return which database this is and a mark of its state, another one after any commit of any process.

        None if the database has no such mark. Two pages of one query that were read in one state are equal. A call of
        its own, it asks the watchdog first, as the query does.
        """
        self._check()
        await self._sweep_if_due()
        return self._dialect.state()

    def _is_cut_up(self, asked: Query) -> bool:
        """Say whether rows come in batches for which the database needs a transaction; the others are spared it."""
        return self._dialect.batches_need_snapshot and not 0 <= asked.limit <= _AT_ONCE


def _written(text: Callable[[Sequence[Row]], bytes], write: Write) -> Callable[[Sequence[Row]], None]:
    def take(rows: Sequence[Row]) -> None:
        if rows:
            write(text(rows))

    return take
