"""The pace of an operation that changes a store in many transactions while other processes write."""

from __future__ import annotations

import asyncio
from typing import Final

_MOST_ROWS: Final = 256
_FEWEST_ROWS: Final = 8
# A transaction that takes longer than `_LONG_SECONDS` makes the next transaction smaller. A transaction that takes less
# than `_SHORT_SECONDS` makes the next transaction larger.
_LONG_SECONDS: Final = 0.03
_SHORT_SECONDS: Final = 0.01
_LEAST_PAUSE: Final = 0.005


class Pace:
    """The size of the next transaction, and the pause before it.

    Other writers wait while a transaction holds the write lock. So transactions are small on a slow machine, and after
    each of them, the operation waits for as long as the transaction held the lock.

    Args:
        is_shared: whether other processes may write to the store. If not, transactions are large, and there are no
            pauses.
    """

    def __init__(self, *, is_shared: bool = True) -> None:
        self._is_shared = is_shared
        self.rows = min(32, _MOST_ROWS) if is_shared else _MOST_ROWS
        """The maximum number of rows that the next transaction changes."""
        self.longest_seconds = 0.0
        """The longest time that one transaction held the write lock."""

    async def pause(self, seconds: float) -> None:
        """Adapt `rows` to the time for which a transaction held the write lock, and let other writers work."""
        self.longest_seconds = max(self.longest_seconds, seconds)
        if not self._is_shared:
            return
        if seconds > _LONG_SECONDS:
            self.rows = max(_FEWEST_ROWS, self.rows // 2)
        elif seconds < _SHORT_SECONDS:
            self.rows = min(_MOST_ROWS, self.rows * 2)
        await asyncio.sleep(max(_LEAST_PAUSE, seconds))
