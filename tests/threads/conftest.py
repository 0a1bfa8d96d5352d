"""Fixtures: a SQL store and a saver on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.integrations.langgraph import RollbookSaver
from store.interface.store import Store
from store.sql.store import SQLStore
from tests.conftest import SQLITE


@pytest.fixture(params=[SQLITE])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An SQLite file, or a partition of Postgres in tests marked `ON_BOTH` (`tests.threads.langgraph_samples`)."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'rollbook.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def sql(store: Store) -> SQLStore:
    """The open, empty store, as what it is."""
    assert isinstance(store, SQLStore)
    return store


@pytest.fixture
def saver(sql: SQLStore) -> RollbookSaver:
    """A checkpointer on the store."""
    return RollbookSaver(sql)
