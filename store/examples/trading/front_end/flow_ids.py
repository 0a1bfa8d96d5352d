"""Ids of new flows."""

from __future__ import annotations

import threading
import time
from typing import Final


class FlowIds:
    """Ids of new flows: the time in seconds since the epoch as 8 hexadecimal digits.

    No process returns an id twice. Two processes that begin a flow of one database in the same second may choose the
    same id; their runs are then in one flow.
    """

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def next(self) -> str:
        """Return the id of the current second, or of the first second after it whose id was not returned before."""
        with self._lock:
            self._last = max(int(time.time()), self._last + 1)
            return f"{self._last:08x}"


flow_ids: Final = FlowIds()
"""The ids of this process."""
