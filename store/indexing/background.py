"""Followers of the log that fill the indexes of partitions in the background, in a thread of a server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

from store.db.dialect import Dialect, existing_store
from store.db.index_place import indexable
from store.db.queries import log as log_queries
from store.errors import ReadOnly, StoreError
from store.indexing.following import IndexFollower
from store.indexing.index import Index
from store.runtime.loop_thread import LoopThread

logger = logging.getLogger("store.indexing")

_POLL_SECONDS: Final = 1.0
"""The maximum time until a follower notices new events."""
_PAUSE: Final = 40.0
"""While other processes or threads append events, a follower pauses for this multiple of the time of its last step."""
_QUIET_SECONDS: Final = 1.0
"""If no event was appended for this time, the writer is regarded as idle, and a follower makes no pauses."""
_LONGEST_PAUSE: Final = 10.0
"""The maximum pause in seconds."""
_RETRY_SECONDS: Final = 30.0
"""The time after an error until the indexes of a partition are followed again."""


class IndexThread:
    """Fills the indexes of any number of partitions of one database, in a thread of its own.

    While events are appended, the thread works for about a fortieth of the time, so it does not slow down the writer.
    As soon as the writer is idle, the thread works without pauses until the indexes contain all events.

    Args:
        indexes: the indexes to fill.
    """

    def __init__(self, indexes: Sequence[Index]) -> None:
        self._indexes = indexes
        self._thread = LoopThread("rollbook indexes")
        self._following: dict[str, Future[None]] = {}
        self._first: Dialect | None = None

    def follow(self, partition: str, dialect: Dialect) -> None:
        """Fill the indexes of a partition until `close` or `leave` is called.

        Args:
            partition: the name of the partition.
            dialect: the partition, which may be open in another event loop.
        """
        if partition in self._following or not self._indexes:
            return
        again = indexable(dialect).reopened()
        if self._first is not None:
            again.share(self._first)
        self._first = self._first or again
        self._following[partition] = self._thread.submit(self._follow(partition, again))

    def leave(self, partition: str) -> None:
        """Stop filling the indexes of a partition."""
        if (future := self._following.pop(partition, None)) is not None:
            future.cancel()

    @property
    def partitions(self) -> list[str]:
        """The names of the partitions whose indexes are filled."""
        return list(self._following)

    def close(self) -> None:
        """End the thread after the current step."""
        self._thread.leave()

    async def _follow(self, partition: str, dialect: Dialect) -> None:
        while True:
            try:
                async with existing_store(dialect) as store_id:
                    followers = [IndexFollower(dialect, store_id, index) for index in self._indexes]
                    try:
                        await self._follow_open(dialect, followers)
                    finally:
                        for follower in followers:
                            await follower.close()
            except ReadOnly as error:
                logger.info("the indexes of the partition %s are not filled: %s", partition, error)
                return
            except StoreError as error:
                logger.warning("the indexes of the partition %s are not filled at present: %s", partition, error)
            except Exception:
                # The indexes must follow while the server runs, so an unexpected error must not end the thread's task.
                logger.exception("the indexes of the partition %s are not filled at present", partition)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _follow_open(self, dialect: Dialect, followers: Sequence[IndexFollower]) -> None:
        contained = -1
        last, moved_at = await _end(dialect), time.monotonic() - _QUIET_SECONDS
        while True:
            end = await _end(dialect)
            if end == contained:
                await asyncio.sleep(_POLL_SECONDS)
                continue
            is_behind = False
            for follower in followers:
                began = time.monotonic()
                lag = await follower.step()
                is_behind |= lag.events_behind > 0
                now, last_before, last = time.monotonic(), last, await _end(dialect)
                moved_at = now if last != last_before else moved_at
                # Commits of large calls can be seconds apart, so the writer is idle only after `_QUIET_SECONDS`.
                is_busy = now - moved_at < _QUIET_SECONDS
                await asyncio.sleep(min((now - began) * _PAUSE, _LONGEST_PAUSE) if is_busy else 0)
            if not is_behind:
                contained = end


async def _end(dialect: Dialect) -> int:
    async with dialect.read() as session:
        last = await log_queries.last_commit(session)
    return 0 if last is None else int(last.last_position)
