"""Ids of new flows."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Final

from store.errors import Conflict, NotFound
from store.interface.store import Store
from store.sql.store import SQLStore


class FlowIds:
    """Ids of new flows: the time in seconds since the epoch as 8 hexadecimal digits.

    No process returns an id twice. Two processes that begin a flow of one database in the same second may choose the
    same id; their runs are then in one flow.
    """

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    async def unused(self, store: Store) -> str:
        """Return an id that no run of a store has: that of the current second, or of the first free one after it."""
        while True:
            with self._lock:
                self._last = max(int(time.time()), self._last + 1)
                flow_id = f"{self._last:08x}"
            if not isinstance(store, SQLStore):
                return flow_id
            with suppress(Conflict):
                try:
                    await store.runs.resolve(flow_id)
                except NotFound:
                    return flow_id


flow_ids: Final = FlowIds()
"""The ids of this process."""
