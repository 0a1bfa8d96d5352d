"""Work that runs once per store at a time, because it reads a large part of the database."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from store.errors import Conflict
from store.sql.store import SQLStore


class Exclusive:
    """Refuses work on a store while the same work is running.

    Args:
        name: the work, as the subject of an error message: `"a verification"`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._stores: set[SQLStore] = set()

    @contextmanager
    def on(self, store: SQLStore) -> Generator[None]:
        """Do the work on a store until the end of the block.

        Raises:
            Conflict: the work is running for another visitor.
        """
        if store in self._stores:
            raise Conflict(f"{self._name} is running for another visitor", "try again in some seconds")
        self._stores.add(store)
        try:
            yield
        finally:
            self._stores.discard(store)
