"""Rows of several tables, read from a store at one position."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence

from store.exports.redaction import FieldRedaction
from store.exports.schema import Row, Table
from store.exports.source import SPANS, ExportSource
from store.interface.store import Store
from store.models.missing_rewards import AS_RECORDED, MissingReward
from store.models.queries import RolloutQuery
from store.runtime.progress import OnProgress, OperationProgress, Step, ignore


class TableRows:
    """The rows of tables for the rollouts that a query matches.

    Args:
        store: the store.
        query: the conditions on rollouts. The order, the limit and the offset are ignored.
        position: the position of the log at which everything is read.
        tables: the tables whose rows are made.
        redaction: the fields to leave out.
        missing: how ended rollouts without a reward count.
        step: the name of the step for progress.
        on_progress: called with the number of listed rollouts.
    """

    def __init__(
        self,
        store: Store,
        query: RolloutQuery,
        position: int,
        tables: Sequence[Table],
        *,
        redaction: FieldRedaction | None = None,
        missing: MissingReward = AS_RECORDED,
        step: Step = "exporting",
        on_progress: OnProgress = ignore,
    ) -> None:
        redaction = FieldRedaction() if redaction is None else redaction
        redaction.check(tables)
        self.tables = [table.without(redaction.columns.get(table.name, ())) for table in tables]
        self.rollouts = 0
        """The number of rollouts whose rows were yielded so far."""
        self._redaction = redaction
        self._step: Step = step
        self._on_progress = on_progress
        reads = frozenset(part for table in tables for part in table.reads)
        is_whole = any(table.name != SPANS for table in tables if SPANS in table.reads)
        self._source = ExportSource(store, query, position, reads, needs_whole_rollouts=is_whole, missing=missing)

    async def batches(self) -> AsyncGenerator[Mapping[str, Sequence[Row]]]:
        """Yield the rows of some rollouts at a time, by the name of the table. Without tables, yield nothing."""
        if not self.tables:
            return
        async for records in self._source.records():
            for record in records:
                self._redaction.apply(record)
                self.rollouts += record.is_last
            yield {table.name: [row for record in records for row in table.rows(record)] for table in self.tables}
            self._on_progress(OperationProgress(self._step, records[-1].offset, self._source.listed, "rollouts"))
