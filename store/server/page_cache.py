"""Cache of pages that clients request repeatedly. A page is valid until the next commit. See decision 25."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock


class PageCache:
    """The most recently requested pages, each with the state of the database from which it was read.

    Each request passes the current state of the database, so a page that was read from another state is never returned.

    Args:
        most_bytes: the largest total size of the pages. The least recently used page is dropped first.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._pages: OrderedDict[Hashable, tuple[Hashable, bytes]] = OrderedDict()
        self._lock = Lock()
        self.size = 0
        """Bytes of all pages in the cache."""

    def get(self, key: Hashable, state: Hashable) -> bytes | None:
        """Return a page if it was read from this state."""
        with self._lock:
            cached = self._pages.get(key)
            if cached is None or cached[0] != state:
                return None
            self._pages.move_to_end(key)
            return cached[1]

    def keep(self, key: Hashable, state: Hashable, page: bytes) -> None:
        """Add a page.

        Args:
            key: the store and the query.
            state: the state before the page was read. If the page is newer than this state, the state never occurs
                again, so the page is never used.
            page: the JSON of the page.
        """
        with self._lock:
            self._drop(key)
            self._pages[key] = state, page
            self.size += len(page)
            while self.size > self._most:
                self._drop(next(iter(self._pages)))

    def _drop(self, key: Hashable) -> None:
        cached = self._pages.pop(key, None)
        if cached is not None:
            self.size -= len(cached[1])
