"""Work of which each process of a server does one at a time per store, because it reads a large part of it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from store.errors import Conflict
from store.sql.store import SQLStore


class Exclusive:
    """Refuses work on a store while this process does the same work on it.

    Args:
        name: the work, as the subject of an error message: `"a verification"`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._stores: set[SQLStore] = set()

    @contextmanager
    def on(self, store: SQLStore) -> Generator[None]:
        """Reserve the work on a store until the block ends.

        Raises:
            Conflict: the work is already running.
        """
        if store in self._stores:
            raise Conflict(f"{self._name} is already running", "try again in some seconds")
        self._stores.add(store)
        try:
            yield
        finally:
            self._stores.discard(store)
