"""Pages of a SQL store as JSON text, written row by row as the database gives them."""

from collections.abc import Callable
from typing import Any

from store import texts
from store.db import filters, pages
from store.db.dialect import ReadSession
from store.db.filters import Query
from store.interface import AsAt
from store.journal import timeline
from store.sql_reads import SQLReads

Write = Callable[[bytes], object]

# Payload may be long, and so few are there at a time.
_AT_ONCE = 128


class SQLTexts(SQLReads):
    """What a server answers from a SQL store: the longest pages, in memory for no more than a few rows."""

    async def write_rollouts(self, write: Write, *, as_at: AsAt | None = None, **query: Any) -> int:
        """Write the JSON of each rollout that `query_rollouts` would return; return how many match before paging.

        Args:
            write: called once for each rollout, in their order.
            as_at: the moment, if not the present.
            query: the other arguments of `query_rollouts`, but for its older names.
        """
        asked = filters.asked(filters.ROLLOUTS, query)
        dialect = self._dialect

        def write_row(row: pages.Row) -> None:
            write(texts.rollout_of_page(row))

        async def write_past(session: ReadSession, until: int) -> pages.Page[None]:
            # Rows of the past are folded in any order, and their number is bounded.
            page = await timeline.rollouts(dialect, session, asked, until, texts.rollout_of_page)
            for text in page.items:
                write(text)
            return pages.Page([], page.total)

        page = await self._answer(
            lambda session: pages.rollouts(dialect, session, asked, write_row, batch=_AT_ONCE),
            write_past,
            as_at,
            snapshot=self._is_cut_up(asked),
        )
        return page.total

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
            write: called once for each span, in their order.
            rollout_id: whose spans.
            attempt_id: only those of this attempt.
            as_at: the moment, if not the present.
            at: the same as a number of the rollout's history.
            query: the other arguments of `query_spans`; without a `sort_by` the order is that of creation.
        """
        asked = filters.asked(filters.SPANS, query)
        dialect = self._dialect

        def write_row(row: pages.Row) -> None:
            write(texts.span_of_page(row))

        page = await self._answer(
            lambda session: pages.spans(dialect, session, rollout_id, attempt_id, asked, write_row, batch=_AT_ONCE),
            lambda session, until: timeline.spans(
                dialect, session, rollout_id, attempt_id, asked, until, write_row, batch=_AT_ONCE
            ),
            as_at,
            (rollout_id, at),
            snapshot=self._is_cut_up(asked),
        )
        return page.total

    def _is_cut_up(self, asked: Query) -> bool:
        """Say whether rows come in batches for which the database needs a transaction; the others are spared it."""
        return self._dialect.batches_need_snapshot and not 0 <= asked.limit <= _AT_ONCE
