"""Reads of an index that may be behind the log, and steps that bring the index closer to the end of the log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from store.db.dialect import Dialect, ReadSession, existing_store
from store.db.index_place import indexable
from store.db.queries import log as log_queries
from store.errors import StoreError
from store.indexing.following import IndexFollower, IndexLag, read_state
from store.indexing.index import Index
from store.runtime.loop_thread import run_in_thread

T = TypeVar("T")

CATCH_UP_SECONDS: Final = 0.5
"""The time that a read spends to bring an index closer to the end of the log."""


async def with_index(
    session: ReadSession, index: Index, work: Callable[[ReadSession, IndexLag], Awaitable[T]]
) -> T | None:
    """Return the result of a read that sees the tables of an index beside those of the store.

    Args:
        session: a reading session that is not a snapshot.
        index: the index.
        work: reads from the session. Its second argument is the place of the index in the log.

    Returns:
        None if the index does not exist, or has another version.
    """
    async with indexable(session.dialect).index_place(index.name).visible(session) as is_there:
        if not is_there:
            return None
        state = await read_state(session, index)
        if state is None or state.version != index.version:
            return None
        last = await log_queries.last_commit(session)
        return await work(session, IndexLag(state.position, 0 if last is None else int(last.last_position)))


async def lag_of(session: ReadSession, index: Index) -> IndexLag | None:
    """Return the place of an index in the log; None if the index does not exist, or has another version."""

    async def place(_: ReadSession, lag: IndexLag) -> IndexLag:
        return lag

    return await with_index(session, index, place)


async def catch_up(dialect: Dialect, index: Index, seconds: float | None = CATCH_UP_SECONDS) -> IndexLag:
    """Let an index follow the log for at most `seconds`, in a thread of its own. Return its place in the log.

    Args:
        dialect: the partition, which may be open in any event loop.
        index: the index.
        seconds: the maximum time, which the last step may exceed; None to reach the end of the log.

    Raises:
        ReadOnly: the index cannot be written.
        Unavailable: another process held the lock of the index for ten seconds.
    """
    again = indexable(dialect).reopened()

    async def follow() -> IndexLag:
        async with existing_store(again) as store_id:
            follower = IndexFollower(again, store_id, index)
            try:
                return await follower.catch_up(seconds)
            finally:
                await follower.close()

    return await run_in_thread("rollbook index", follow())


async def fresh_lag(
    dialect: Dialect,
    read: Callable[[Callable[[ReadSession], Awaitable[IndexLag | None]]], Awaitable[IndexLag | None]],
    index: Index,
) -> IndexLag:
    """Bring an index closer to the end of the log if it is behind, in limited time. Return its place in the log.

    If the index exists but cannot be written, return the place that it has.

    Args:
        dialect: the partition.
        read: executes a read of the partition.
        index: the index.

    Raises:
        StoreError: the index does not exist, or has another version, and cannot be made.
    """

    async def look(session: ReadSession) -> IndexLag | None:
        return await lag_of(session, index)

    lag = await read(look)
    if lag is not None and not lag.events_behind:
        return lag
    try:
        return await catch_up(dialect, index)
    except StoreError:
        if lag is None:
            raise
        return lag
