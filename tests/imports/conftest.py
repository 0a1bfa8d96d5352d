"""Fixtures of the tests of imports: an empty store on SQLite, on Postgres and behind a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from store import open_store
from store.client import HTTPStore
from store.interface.store import Store
from tests.client.served import Served
from tests.conftest import POSTGRES, SQLITE


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    """A server."""
    with Served() as served:
        yield served


@pytest.fixture
async def sqlite_store(tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store on SQLite."""
    async with await open_store(f"sqlite:///{tmp_path / 'rollbook.db'}") as store:
        yield store


@pytest.fixture(params=[SQLITE, POSTGRES, pytest.param("http", id="http")])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store on each database, and on SQLite behind a server."""
    is_postgres = request.param == "postgres"
    url = request.getfixturevalue("postgres_url") if is_postgres else f"sqlite:///{tmp_path / 'rollbook.db'}"
    async with await open_store(url) as store:
        if request.param != "http":
            yield store
            return
        with request.getfixturevalue("server").serving(store) as address:
            async with HTTPStore(address) as client:
                yield client
