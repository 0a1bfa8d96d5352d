"""Pages that were read before, for as long as nothing is committed: who polls asks for the same again and again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock


class KeptPages:
    """The last pages asked for, each with the state of the database that it was read from.

    A state is compared by whoever asks the database for it, with every request: nothing here grows old unseen.

    Args:
        most_bytes: of all pages together; the one that was not asked for the longest goes first.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._pages: OrderedDict[Hashable, tuple[Hashable, bytes]] = OrderedDict()
        self._lock = Lock()
        self.size = 0
        """Bytes of the pages that are kept."""

    def get(self, key: Hashable, state: Hashable) -> bytes | None:
        """Return a page if it was read from this very state."""
        with self._lock:
            kept = self._pages.get(key)
            if kept is None or kept[0] != state:
                return None
            self._pages.move_to_end(key)
            return kept[1]

    def keep(self, key: Hashable, state: Hashable, page: bytes) -> None:
        """Keep a page.

        Args:
            key: whose page it is, and what was asked.
            state: as it was known before the page was read. The page may be younger: then the state is gone, and the
                page with it.
            page: what was read.
        """
        with self._lock:
            self._drop(key)
            self._pages[key] = state, page
            self.size += len(page)
            while self.size > self._most:
                self._drop(next(iter(self._pages)))

    def _drop(self, key: Hashable) -> None:
        kept = self._pages.pop(key, None)
        if kept is not None:
            self.size -= len(kept[1])
