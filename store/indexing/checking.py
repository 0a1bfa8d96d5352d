"""Comparison of indexes with the log, for `verify`, and their repair, for `rebuild`."""

from __future__ import annotations

from typing import Final

from sqlalchemy import func, select

from store.db.dialect import Dialect, ReadSession, existing_store
from store.db.index_place import IndexableDialect, indexable
from store.db.tables.core import rollouts
from store.indexing.following import IndexFollower, IndexLag, next_events
from store.indexing.index import Index, IndexedEvent
from store.indexing.reading import with_index
from store.indexing.registry import all_indexes
from store.models.log import Difference
from store.runtime.loop_thread import run_in_thread

SAMPLE: Final = 50
"""The default number of rollouts that are compared. They are chosen at random."""


async def check_indexes(dialect: Dialect, sample: int = SAMPLE) -> list[Difference]:
    """Return the differences between the indexes of an open partition and its log, for a sample of rollouts.

    Only the part of the log that an index contains is compared. An index that does not exist has no differences.
    """
    if not isinstance(dialect, IndexableDialect):
        return []
    differences: list[Difference] = []
    for index in all_indexes():
        async with dialect.read() as session:

            async def work(session: ReadSession, lag: IndexLag, index: Index = index) -> list[Difference]:
                return await sample_differences(session, lag, index, sample)

            differences += await with_index(session, index, work) or []
    return differences


async def sample_differences(session: ReadSession, lag: IndexLag, index: Index, sample: int) -> list[Difference]:
    """Return the differences of `sample` rollouts, chosen at random, up to the position of the index."""
    statement = select(rollouts.c.rollout_id).order_by(func.random()).limit(sample)
    rows = await session.fetch(session.dialect.sql(statement), {})
    differences: list[Difference] = []
    for row in rows:
        events = await events_of_rollout(session, index, row.rollout_id, lag.position)
        problem = await index.problem(session, row.rollout_id, events)
        if problem is not None:
            differences.append(
                Difference(check=f"index {index.name}", key=row.rollout_id, field=None, expected=None, found=problem)
            )
    return differences


async def events_of_rollout(session: ReadSession, index: Index, rollout_id: str, until: int) -> list[IndexedEvent]:
    """Return those events of a rollout that an index folds, up to a position."""
    events: list[IndexedEvent] = []
    after = 0
    while after < until:
        more, after, commit = await next_events(session, index.types, after, until, f"rollout/{rollout_id}")
        events += more
        if commit is None:
            break
    return events


async def make_again(dialect: Dialect, index: Index) -> IndexLag:
    """Drop an index and make it again from the whole log, in a thread of its own.

    Args:
        dialect: the partition, which may be open in any event loop.
        index: the index.
    """
    again = indexable(dialect).reopened()

    async def work() -> IndexLag:
        async with existing_store(again) as store_id:
            follower = IndexFollower(again, store_id, index)
            try:
                return await follower.make_again()
            finally:
                await follower.close()

    return await run_in_thread("rollbook index", work())
