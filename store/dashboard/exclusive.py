"""Limit on expensive reads: a process of a server runs each kind only once at a time on a store."""

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
        """Mark the work as running on a store until the `with` block ends.

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
