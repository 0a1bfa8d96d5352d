"""Followers of the log in a server, which fill the indexes of its open partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final

from store.db.index_place import IndexableDialect
from store.indexing.background import IndexThread
from store.indexing.registry import all_indexes
from store.server.partitions import Partitions
from store.sql.database import database_of

_LOOK_SECONDS: Final = 2.0


@asynccontextmanager
async def filled_indexes(partitions: Partitions, *, is_first: bool = True) -> AsyncGenerator[None]:
    """Fill the indexes of all open partitions during the block.

    Args:
        partitions: the partitions of the server.
        is_first: whether this is the first process of the server. The other processes fill no indexes.
    """
    if not is_first or not all_indexes():
        yield
        return
    thread = IndexThread(all_indexes())
    looking = asyncio.create_task(_look(partitions, thread))
    try:
        yield
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
        await asyncio.to_thread(thread.close)


async def _look(partitions: Partitions, thread: IndexThread) -> None:
    while True:
        # A server that runs for a moment only fills no index.
        await asyncio.sleep(_LOOK_SECONDS)
        databases = {name: database_of(store) for name, store in partitions.open_stores()}
        for name in thread.partitions:
            if name not in databases:
                thread.leave(name)
        for name, database in databases.items():
            if database is not None and isinstance(database.core.dialect, IndexableDialect):
                thread.follow(name, database.core.dialect)
