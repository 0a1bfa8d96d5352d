"""All indexes of a store."""

from __future__ import annotations

from functools import cache

from sqlalchemy import select

from store.db.dialect import Dialect
from store.db.index_place import IndexableDialect
from store.db.tables.core import store_info
from store.indexing.following import IndexFollower
from store.indexing.index import Index
from store.indexing.search.index import SearchIndex
from store.indexing.usage_index import UsageIndex


@cache
def all_indexes() -> tuple[Index, ...]:
    """Return all indexes. Servers fill them, `verify` checks them, and removals of payload apply to them too."""
    return (SearchIndex(), UsageIndex())


async def follow_removals(dialect: Dialect) -> None:
    """Remove the payload that was removed from an open partition from its indexes too, in the running event loop."""
    if not isinstance(dialect, IndexableDialect):
        return
    async with dialect.read() as session:
        rows = await session.fetch(dialect.sql(select(store_info.c.store_id)), {})
    for index in all_indexes():
        follower = IndexFollower(dialect, rows[0].store_id, index)
        try:
            await follower.follow_removals()
        finally:
            await follower.close()
