"""A SQL store, and a saver on it."""

from __future__ import annotations

import pytest

from store.integrations.langgraph import RollbookSaver
from store.interface.store import Store
from store.sql.store import SQLStore


@pytest.fixture
def sql(store: Store) -> SQLStore:
    """The open, empty store, as what it is."""
    assert isinstance(store, SQLStore)
    return store


@pytest.fixture
def saver(sql: SQLStore) -> RollbookSaver:
    """A checkpointer on the store."""
    return RollbookSaver(sql)
